//! `forgeplane dev`: coordinator, worker and API in one process, on SQLite, without services.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use forgeplane_blobs::ObjectBlobs;
use forgeplane_core::coordinator::Coordinator;
use forgeplane_core::memory::MemoryQueue;
use forgeplane_core::model::{Name, Project, Role, Tool};
use forgeplane_core::ports::StaticKey;
use forgeplane_core::rules::Settings;
use forgeplane_store_sqlite::SqliteStore;
use forgeplane_worker::sandbox::Isolation;
use forgeplane_worker::uid_lock::{self, UidLock, UidLockError};
use forgeplane_worker::unpack;
use forgeplane_worker::{Shutdown, Tools, Worker, WorkerConfig, WorkerError};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::args::DevOptions;
use crate::failure::Failure;

/// The users that `forgeplane dev` makes for its project.
const USERS: [(&str, Role); 3] =
    [("admin", Role::Admin), ("operator", Role::Operator), ("approver", Role::Approver)];
/// Where an unused IaC user id is looked for when none is given; each is followed by its reaper's.
const UID_RANGE: std::ops::Range<u32> = 61_000..61_184;
/// Workspaces of the default, isolated mode: every parent is passable for the tools' user id.
const WORKSPACES: &str = "/var/lib/forgeplane/workspaces";
/// How long the worker's enrollment token is good for.
const ENROLLMENT_TTL: Duration = Duration::from_secs(600);

/// Runs until SIGINT or SIGTERM.
pub async fn run(options: DevOptions) -> Result<ExitCode, Failure> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    if !options.listen.ip().is_loopback() {
        return Err(Failure::local("not_loopback", format!("{} is not a loopback address", options.listen))
            .way_out("`forgeplane dev` speaks plain HTTP; listen on 127.0.0.1"));
    }
    let data = Data::open(&options.data_dir)?;
    let store =
        SqliteStore::open(data.path("forgeplane.db")).map_err(|e| Failure::local(e.code(), e.to_string()))?;
    let listener = TcpListener::bind(options.listen).await.map_err(|e| {
        Failure::local("address_unavailable", format!("cannot listen on {}: {e}", options.listen))
            .way_out("end the other process, or choose another port with --listen")
    })?;
    let address = listener.local_addr()?;
    let coordinator = coordinator(&data, store, options.unsafe_no_isolation).await?;
    let project = project(&coordinator, &data).await?;
    let loops = coordinator.start();
    let api_stop = CancellationToken::new();
    let api = tokio::spawn(forgeplane_server::serve(listener, coordinator.clone(), api_stop.clone()));

    let shutdown = Shutdown::new();
    let signals = tokio::spawn(end_on_signal(shutdown.clone()));
    let result = work(&options, &data, &coordinator, &project, address, shutdown).await;

    signals.abort();
    data.forget_url();
    api_stop.cancel();
    match api.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "the API ended with an error"),
        Err(error) => tracing::error!(%error, "the API ended with an error"),
    }
    loops.stop().await;
    result.map(|()| ExitCode::SUCCESS)
}

/// Runs the built-in worker until shutdown.
async fn work(
    options: &DevOptions,
    data: &Data,
    coordinator: &Coordinator,
    project: &Project,
    address: SocketAddr,
    shutdown: Shutdown,
) -> Result<(), Failure> {
    let pool: Name = options
        .pool
        .parse()
        .map_err(|e| Failure::local("invalid_pool", format!("--pool {:?}: {e}", options.pool)))?;
    let token = coordinator
        .issue_enrollment(&pool, ENROLLMENT_TTL)
        .await
        .map_err(|e| Failure::local(e.code(), e.to_string()))?;
    let started = loop {
        let (isolation, workspaces) = isolation(options, data)?;
        let workspaces = options.workspace_root.clone().unwrap_or(workspaces);
        let mut config =
            WorkerConfig::new(data.worker_name()?, pool.clone(), data.path("worker"), workspaces, isolation);
        config.tools = tools(&options.tools)?;
        config.enrollment_token = Some(token.clone());
        let worker = Worker::new(config, coordinator.in_process(), coordinator.queue());
        match worker.start(shutdown.clone()).await {
            // Another process took the user id between choosing and using it.
            Err(WorkerError::UidLock(UidLockError::Taken { uid })) if options.iac_uid.is_none() => {
                tracing::debug!(uid, "choosing another user id");
            }
            started => break started.map_err(worker_failed)?,
        }
    };
    let url = format!("http://{address}");
    data.announce_url(&url)?;
    println!("forgeplane dev: project `{}`, data in {}", project.name, data.root.display());
    if options.unsafe_no_isolation {
        println!("UNSAFE: tools run without isolation");
    }
    for (user, role) in USERS {
        println!("  --as {user:<9} role {}", role.as_str());
    }
    println!("ready: {url}");
    started.run().await.map_err(worker_failed)
}

fn worker_failed(error: WorkerError) -> Failure {
    let failure = Failure::local(error.code(), error.to_string());
    if error.code() == "not_root" {
        failure.way_out("run as root, or accept the unsafe local development mode with --unsafe-no-isolation")
    } else {
        failure
    }
}

async fn end_on_signal(shutdown: Shutdown) {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        tracing::error!("signals cannot be handled; end this process with SIGKILL");
        return;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("stopping: a running tool is interrupted and saves its state first");
    shutdown.stop();
}

async fn coordinator(
    data: &Data,
    store: SqliteStore,
    unsafe_no_isolation: bool,
) -> Result<Coordinator, Failure> {
    let settings = Settings { unsafe_allow_no_isolation: unsafe_no_isolation, ..Settings::default() };
    let blobs = ObjectBlobs::local(data.path("blobs"))
        .map_err(|e| Failure::local("blob_unavailable", e.to_string()))?;
    Coordinator::builder()
        .store(store)
        .queue(MemoryQueue::default())
        .blobs(blobs)
        .keys(StaticKey::new("dev", data.key("sealing")?))
        .signing_key(data.key("signing")?)
        .settings(settings)
        .source_check(unpack::admit)
        .build()
        .await
        .map_err(|e| Failure::local(e.code(), e.to_string()))
}

/// The project with its users; tokens of an earlier start are kept while they work.
async fn project(coordinator: &Coordinator, data: &Data) -> Result<Project, Failure> {
    let failed = |e: forgeplane_core::coordinator::CoordinatorError| Failure::local(e.code(), e.to_string());
    let name: Name = "default".parse().map_err(|e| Failure::local("invalid_project", format!("{e}")))?;
    let project = coordinator.ensure_project(&name).await.map_err(failed)?;
    for (user, role) in USERS {
        let file = data.path("tokens").join(format!("{user}.token"));
        if let Ok(text) = std::fs::read_to_string(&file) {
            let token = SecretString::from(text.trim().to_owned());
            if coordinator.authenticate(&token).await.is_ok() {
                continue;
            }
        }
        let user: Name = user.parse().map_err(|e| Failure::local("invalid_user", format!("{e}")))?;
        let (_, token) = coordinator.issue_token(project.id, &user, role, None).await.map_err(failed)?;
        write_private(&file, token.expose_secret())?;
    }
    Ok(project)
}

/// How the worker isolates tools, and where workspaces go by default.
fn isolation(options: &DevOptions, data: &Data) -> Result<(Isolation, PathBuf), Failure> {
    if options.unsafe_no_isolation {
        return Ok((Isolation::UnsafeNone, data.path("workspaces")));
    }
    let uid = match options.iac_uid {
        Some(uid) => uid,
        // Released again at once: the worker takes it for itself when it starts.
        None if nix::unistd::geteuid().is_root() => {
            UidLock::acquire_free(Path::new(uid_lock::DEFAULT_DIR), UID_RANGE, 2)
                .map_err(|e| Failure::local(e.code(), e.to_string()).way_out("give one with --iac-uid"))?
                .uid()
        }
        None => UID_RANGE.start,
    };
    let gid = options.iac_gid.unwrap_or(uid);
    Ok((Isolation::Uid { uid, gid, reaper_uid: uid + 1 }, PathBuf::from(WORKSPACES)))
}

fn tools(given: &[String]) -> Result<Tools, Failure> {
    if given.is_empty() {
        return Ok(Tools::Detect);
    }
    let mut paths = BTreeMap::new();
    for text in given {
        let wrong = |why: &str| Failure::local("invalid_tool", format!("--tool {text:?}: {why}"));
        let (label, path) = text.split_once('=').ok_or_else(|| wrong("expected TOOL=PATH"))?;
        let tool: Tool =
            label.parse().map_err(|e: forgeplane_core::model::UnknownTool| wrong(&e.to_string()))?;
        let path = std::path::absolute(path).map_err(|e| wrong(&e.to_string()))?;
        paths.insert(tool, path);
    }
    Ok(Tools::Explicit(paths))
}

/// The data directory.
struct Data {
    root: PathBuf,
}

impl Data {
    fn open(root: &Path) -> Result<Self, Failure> {
        let failed = |path: &Path, e: std::io::Error| {
            Failure::local("data_dir_unusable", format!("{}: {e}", path.display()))
                .way_out("choose another --data-dir")
        };
        let root = std::path::absolute(root).map_err(|e| failed(root, e))?;
        for dir in [root.clone(), root.join("keys"), root.join("tokens")] {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .map_err(|e| failed(&dir, e))?;
        }
        Ok(Self { root })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A 256-bit key, made at the first start.
    fn key(&self, name: &str) -> Result<[u8; 32], Failure> {
        let path = self.path("keys").join(format!("{name}.key"));
        let mut key = [0; 32];
        match std::fs::read_to_string(&path) {
            Ok(text) => hex::decode_to_slice(text.trim(), &mut key).map_err(|_| {
                Failure::local("key_unreadable", format!("{} is not a key of 64 hex digits", path.display()))
                    .way_out("restore it from a backup: without it, sealed data cannot be opened")
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                getrandom::fill(&mut key).map_err(|e| Failure::local("no_randomness", e.to_string()))?;
                write_private(&path, &hex::encode(key))?;
            }
            Err(error) => {
                return Err(Failure::local("key_unreadable", format!("{}: {error}", path.display())));
            }
        }
        Ok(key)
    }

    /// The built-in worker's name: new with a new worker directory, since a name belongs to one key.
    fn worker_name(&self) -> Result<Name, Failure> {
        let path = self.path("worker").join("name");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().to_owned(),
            Err(_) => {
                let mut random = [0; 4];
                getrandom::fill(&mut random).map_err(|e| Failure::local("no_randomness", e.to_string()))?;
                let name = format!("dev-{}", hex::encode(random));
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(self.path("worker"))?;
                write_private(&path, &name)?;
                name
            }
        };
        text.parse().map_err(|e| Failure::local("invalid_worker_name", format!("{}: {e}", path.display())))
    }

    /// Tells the command line where to find this process.
    fn announce_url(&self, url: &str) -> Result<(), Failure> {
        write_private(&self.path("url"), url)
    }

    fn forget_url(&self) {
        // A leftover file only makes the command line try a dead address.
        let _ = std::fs::remove_file(self.path("url"));
    }
}

/// Writes a file that only its owner can read, whole or not at all.
fn write_private(path: &Path, content: &str) -> Result<(), Failure> {
    use std::io::Write as _;
    let temporary = path.with_extension("new");
    let mut file =
        std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
    writeln!(file, "{content}")?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    Ok(())
}
