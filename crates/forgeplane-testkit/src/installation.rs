//! A whole installation for one test or demonstration: PostgreSQL, a NATS server with TLS, any number of coordinators
//! and workers, each a process of its own, as an operator would run them.
//!
//! Everything is on the loopback interface and in one temporary directory, and ends with the value.

mod authority;
mod namespaces;
mod process;
mod proxy;

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::nats_server::{NatsServer, NatsServerOptions, ServerTls};
use crate::postgres_server::{PostgresServer, copy as copy_all};
use authority::Authority;
pub use namespaces::{FarHost, in_the_place_of, own_mounts, own_network, small_disk};
pub use process::Process;
pub use proxy::Proxy;

/// The broker's password of every user; it is on the loopback interface, in a directory that is nobody else's.
const PASSWORD: &str = "only-for-tests";

/// The programs to run.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `forgeplane-coordinator`.
    pub coordinator: PathBuf,
    /// `forgeplane-worker`.
    pub worker: PathBuf,
    /// `forgeplane`, the command line.
    pub cli: PathBuf,
}

impl Programs {
    /// The programs in this directory.
    ///
    /// # Panics
    /// When one is missing.
    #[must_use]
    pub fn of(directory: &Path) -> Self {
        let program = |name: &str| {
            let path = directory.join(name);
            assert!(
                path.exists(),
                "{} is missing: build it with `cargo build --workspace --bins`",
                path.display()
            );
            path
        };
        Self {
            coordinator: program("forgeplane-coordinator"),
            worker: program("forgeplane-worker"),
            cli: program("forgeplane"),
        }
    }
}

/// How to set an installation up.
#[derive(Debug, Clone, Default)]
pub struct InstallationOptions {
    /// Without it, workers pull their jobs from the coordinators.
    pub nats: bool,
    /// Records in a file, for a single coordinator, and not in a database server.
    pub sqlite: bool,
    /// More lines for the coordinators' configuration, such as `settings.heartbeat_s = 1`.
    pub settings: Vec<String>,
}

/// A worker to start.
#[derive(Debug, Clone)]
pub struct WorkerSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its pool.
    pub pool: &'a str,
    /// Its only tool, by label.
    pub tool: &'a str,
    /// The tool's program.
    pub path: &'a Path,
}

/// A running installation.
#[derive(Debug)]
pub struct Installation {
    dir: TempDir,
    programs: Programs,
    authority: Authority,
    settings: Vec<String>,
    /// The database server; without it, records are in a file.
    postgres: Option<PostgresServer>,
    /// The broker, if there is one.
    pub nats: Option<NatsServer>,
    users: Vec<String>,
}

/// A coordinator's process.
#[derive(Debug)]
pub struct Coordinator {
    /// The process.
    pub process: Process,
    /// Where its HTTP API is.
    pub api: String,
    /// Where its worker API is.
    pub workers: String,
    /// Where its probes are.
    pub probes: String,
}

/// A worker's process.
#[derive(Debug)]
pub struct Worker {
    /// The process.
    pub process: Process,
    /// Its id.
    pub id: String,
    /// Where its probes are.
    pub probes: String,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Runs a command that must succeed, and gives its output.
fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {message}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// User ids for one worker that nothing else uses: installations of one process count up, processes start apart.
fn free_uid() -> u32 {
    static WORKERS: AtomicU32 = AtomicU32::new(0);
    2_000_000 + (std::process::id() % 20_000) * 64 + WORKERS.fetch_add(2, Ordering::Relaxed) % 64
}

impl Installation {
    /// Starts the services and makes the keys.
    ///
    /// # Panics
    /// When something cannot be started.
    #[must_use]
    pub fn start(programs: Programs, options: InstallationOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Isolated tools pass through to their workspaces, and to nothing else.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let authority = Authority::new(dir.path());
        fs::create_dir(dir.path().join("records")).unwrap();
        let postgres = (!options.sqlite).then(PostgresServer::start);
        let users = vec![format!("{{ user: coordinator, password: {PASSWORD:?} }}")];
        let nats = options.nats.then(|| {
            let (cert, key) = authority.issue(false);
            let tls = Some(ServerTls { cert, key, client_ca: None });
            NatsServer::start_with(&NatsServerOptions {
                tls,
                config: authorization(&users),
                ..NatsServerOptions::default()
            })
        });
        let installation =
            Self { dir, programs, authority, settings: options.settings, postgres, nats, users };
        let keys = installation.dir.path().join("keys");
        output(
            Command::new(&installation.programs.coordinator)
                .args(["keys", "--set"])
                .arg(format!("keys.directory={}", keys.display())),
        );
        installation
    }

    /// The temporary directory; tools may pass through it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// Makes a tool that passes for Terraform: it answers the version check and `init`, and does the rest by `body`, a
    /// shell script with the subcommand in `$1`, the attempt in `$ATTEMPT` and a file to write to in `$LEDGER`.
    #[must_use]
    pub fn tool(&self, body: &str) -> PathBuf {
        let known = "case \"$1\" in --version) echo 'Terraform v1.99.0'; exit 0;; init) exit 0;; esac";
        self.script("terraform", &format!("{known}\n{body}"))
    }

    /// Makes a program of a shell script, with the attempt in `$ATTEMPT` and a file to write to in `$LEDGER`.
    #[must_use]
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let (path, ledger) = (self.dir.path().join(name), self.dir.path().join("ledger"));
        fs::write(&ledger, "").unwrap();
        fs::set_permissions(&ledger, fs::Permissions::from_mode(0o666)).unwrap();
        let script = format!(
            "#!/bin/sh\nLEDGER={}\nATTEMPT=${{PWD##*/att_}}\nATTEMPT=att_${{ATTEMPT%%/*}}\n{body}\n",
            ledger.display()
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// What the tool wrote into its ledger.
    #[must_use]
    pub fn ledger(&self) -> String {
        fs::read_to_string(self.dir.path().join("ledger")).unwrap()
    }

    /// The database server.
    ///
    /// # Panics
    /// When records are in a file.
    pub fn postgres(&mut self) -> &mut PostgresServer {
        self.postgres.as_mut().expect("the installation has a database server")
    }

    fn sqlite(&self) -> PathBuf {
        self.records().join("records.db")
    }

    /// The directory of the records and of everything beside them, if they are in a file.
    #[must_use]
    pub fn records(&self) -> PathBuf {
        self.dir.path().join("records")
    }

    fn store(&self) -> String {
        match &self.postgres {
            Some(postgres) => format!("[store.postgres]\nurl = {:?}\n", postgres.url()),
            None => format!("[store]\nsqlite = {:?}\n", self.sqlite()),
        }
    }

    fn broker(&self, user: &str) -> String {
        let Some(nats) = &self.nats else { return String::new() };
        format!(
            "[nats]\nservers = [{:?}]\ntls = {{ required = true, ca_file = {:?} }}\nauth = {{ user = {{ name = {user:?}, password = {PASSWORD:?} }} }}\n",
            nats.url(),
            self.authority.file()
        )
    }

    /// Starts a coordinator and waits until it serves.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn coordinator(&self, name: &str) -> Coordinator {
        let [api, workers, probes] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
        let file = |suffix: &str| self.dir.path().join(format!("{name}.{suffix}"));
        let (cert, key) = (file("pem"), file("key"));
        self.certify(name, false);
        let mut config = self.settings.join("\n");
        write!(
            config,
            "\nkeys.directory = {:?}\napi.listen = {api:?}\nprobes.listen = {probes:?}\n\
             {}\
             [workers]\nlisten = {workers:?}\ncertificate = {cert:?}\nkey = {key:?}\n{}",
            self.dir.path().join("keys"),
            self.store(),
            self.broker("coordinator"),
        )
        .unwrap();
        let config_file = file("toml");
        private(&config_file, &config);
        let mut command = Command::new(&self.programs.coordinator);
        command.arg("--config").arg(config_file);
        let mut process = Process::new(name, command);
        process.start("workers: ");
        Coordinator {
            process,
            api: format!("http://{api}"),
            workers: format!("https://{workers}"),
            probes: format!("http://{probes}"),
        }
    }

    /// Gives a coordinator another certificate; `expired`: one that nobody accepts any more.
    ///
    /// # Panics
    /// When its files cannot be written.
    pub fn certify(&self, coordinator: &str, expired: bool) {
        let (certificate, key) = self.authority.issue(expired);
        for (suffix, content) in [("key", key), ("pem", certificate)] {
            private(&self.dir.path().join(format!("{coordinator}.{suffix}")), &content);
        }
    }

    /// Certificates come from another authority from now on; workers trust it besides the former one.
    pub fn replace_authority(&mut self) {
        self.authority = Authority::new(self.dir.path());
    }

    /// Changes the configuration of a worker or coordinator, for its next start.
    ///
    /// # Panics
    /// When what is to be replaced is not there.
    pub fn reconfigure(&self, name: &str, from: &str, to: &str) {
        let worker = self.dir.path().join("workers").join(name).join("worker.toml");
        let file = if worker.exists() { worker } else { self.dir.path().join(format!("{name}.toml")) };
        let config = fs::read_to_string(&file).unwrap();
        assert!(config.contains(from), "{from} is not in {config}");
        fs::write(&file, config.replacen(from, to, 1)).unwrap();
    }

    /// How to reach the broker as the coordinator does: the authority's file, the user and the password.
    #[must_use]
    pub fn broker_access(&self) -> (&Path, &'static str, &'static str) {
        (self.authority.file(), "coordinator", PASSWORD)
    }

    /// Makes an API token in a file, with the coordinator's own command; its owner is called like the role.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn token(&self, coordinator: &Coordinator, project: &str, role: &str) -> PathBuf {
        self.token_of(coordinator, project, role, role)
    }

    /// As [`Installation::token`], for somebody with a name of their own.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn token_of(&self, coordinator: &Coordinator, project: &str, name: &str, role: &str) -> PathBuf {
        let config = self.dir.path().join(format!("{}.toml", coordinator.process.name()));
        let mut command = Command::new(&self.programs.coordinator);
        command.arg("--config").arg(config).args([
            "token",
            "--project",
            project,
            "--name",
            name,
            "--role",
            role,
        ]);
        let file = self.dir.path().join(format!("{project}-{name}.token"));
        fs::write(&file, output(&mut command)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        file
    }

    /// The command line, as the owner of a token.
    #[must_use]
    pub fn cli(&self, coordinator: &Coordinator, token: &Path) -> Command {
        let mut command = Command::new(&self.programs.cli);
        command.args(["--url", &coordinator.api, "--token-file"]).arg(token).stdin(Stdio::null());
        command
    }

    /// Runs the check of the whole store; `Err` has what it found.
    ///
    /// # Errors
    /// Every violation, as text.
    pub fn check(&self) -> Result<String, String> {
        let mut command = Command::new(&self.programs.cli);
        match &self.postgres {
            Some(postgres) => {
                command.args(["check", "--postgres"]).env("FORGEPLANE_CHECK_POSTGRES_URL", postgres.url())
            }
            None => command.args(["check", "--sqlite"]).arg(self.sqlite()),
        };
        let output = command.output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let message = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(text) } else { Err(format!("{text}{message}")) }
    }

    /// Enrolls a worker as an administrator does, starts it, and lets its own user on the broker do what it needs.
    ///
    /// # Panics
    /// When one of the steps fails.
    #[must_use]
    pub fn worker(&mut self, spec: &WorkerSpec<'_>, coordinators: &[&Coordinator], admin: &Path) -> Worker {
        let urls: Vec<String> = coordinators.iter().map(|c| c.workers.clone()).collect();
        self.worker_at(spec, &urls, coordinators[0], admin)
    }

    /// As [`Installation::worker`], for a worker that reaches its coordinators at other addresses.
    ///
    /// # Panics
    /// When one of the steps fails.
    #[must_use]
    pub fn worker_at(
        &mut self,
        spec: &WorkerSpec<'_>,
        urls: &[String],
        coordinator: &Coordinator,
        admin: &Path,
    ) -> Worker {
        let WorkerSpec { name, pool, tool, path } = spec;
        let mut enroll = self.cli(coordinator, admin);
        let enrollment = output(enroll.args(["worker", "enroll", "--pool", pool]));
        let home = self.dir.path().join("workers").join(name);
        fs::create_dir_all(&home).unwrap();
        for dir in [&self.dir.path().join("workers"), &home] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).unwrap();
        }
        let token_file = home.join("enrollment.token");
        fs::write(&token_file, enrollment).unwrap();
        fs::set_permissions(&token_file, fs::Permissions::from_mode(0o600)).unwrap();
        let probes = format!("127.0.0.1:{}", free_port());
        let config = format!(
            "name = {name:?}\npool_name = {pool:?}\nenrollment_token_file = {token_file:?}\n\
             state_dir = {:?}\nworkspace_root = {:?}\niac_uid = {}\nprobes.listen = {probes:?}\n\
             [coordinator]\nurls = {urls:?}\nca = {:?}\n[tools]\n{tool} = {path:?}\n{}",
            home.join("state"),
            home.join("work"),
            free_uid(),
            self.authority.file(),
            self.broker(name),
        );
        let file = home.join("worker.toml");
        private(&file, &config);
        let mut command = Command::new(&self.programs.worker);
        command.arg("--config").arg(file);
        let mut process = Process::new(name, command);
        process.start("ready");
        let id = self.id_of(name, coordinator, admin);
        self.admit(name, &id, coordinator);
        Worker { process, id, probes: format!("http://{probes}") }
    }

    /// A worker's process on a copy of everything that the worker has on disk; not started.
    ///
    /// # Panics
    /// When it cannot be copied.
    #[must_use]
    pub fn copy_of(&self, name: &str) -> Process {
        let workers = self.dir.path().join("workers");
        let (home, copy) = (workers.join(name), workers.join(format!("{name}-copy")));
        copy_all(&home, &copy);
        let config = fs::read_to_string(home.join("worker.toml")).unwrap();
        let own: Vec<String> = config
            .lines()
            .map(|line| match line.split_once(" = ") {
                Some(("iac_uid", _)) => format!("iac_uid = {}", free_uid()),
                Some(("probes.listen", _)) => format!("probes.listen = \"127.0.0.1:{}\"", free_port()),
                _ => line.replace(home.to_str().unwrap(), copy.to_str().unwrap()),
            })
            .collect();
        let file = copy.join("worker.toml");
        private(&file, &own.join("\n"));
        let mut command = Command::new(&self.programs.worker);
        command.arg("--config").arg(file);
        Process::new(&format!("{name}-copy"), command)
    }

    /// What a worker has of its own on disk is from now on a copy of it, as after a backup was put back.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub fn put_back_state_of(&self, name: &str) {
        let state = self.dir.path().join("workers").join(name).join("state");
        let gone = state.with_extension("gone");
        fs::rename(&state, &gone).unwrap();
        copy_all(&gone, &state);
    }

    fn id_of(&self, name: &str, coordinator: &Coordinator, admin: &Path) -> String {
        let list = output(self.cli(coordinator, admin).args(["worker", "list", "-o", "json"]));
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let workers = list["items"].as_array().unwrap();
        let worker = workers.iter().find(|w| w["worker"]["name"] == name).expect("the worker has registered");
        worker["worker"]["id"].as_str().unwrap().to_owned()
    }

    /// Makes a user on the broker who may do what this worker needs and nothing else.
    fn admit(&mut self, name: &str, id: &str, coordinator: &Coordinator) {
        let Some(nats) = &self.nats else { return };
        let config = self.dir.path().join(format!("{}.toml", coordinator.process.name()));
        let mut command = Command::new(&self.programs.coordinator);
        let permissions = output(command.arg("--config").arg(config).args(["nats-permissions", id]));
        self.users.push(format!("{{ user: {name:?}, password: {PASSWORD:?}, permissions: {permissions} }}"));
        nats.reload(&authorization(&self.users));
    }
}

/// Writes a file that nobody else can read.
fn private(file: &Path, content: &str) {
    fs::write(file, content).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

fn authorization(users: &[String]) -> String {
    format!("authorization {{ users: [\n{}\n] }}\n", users.join("\n"))
}
