//! A coordinator on the in-memory adapters with one real worker in the same process, and what tests ask of them.
//!
//! Tools run as user ids of their own, as in production: tests with a house need root.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use forgeplane_core::coordinator::{
    Coordinator, Loops, NewInstance, NewRun, PushTemplate, RunView, WorkerView,
};
use forgeplane_core::id::RunId;
use forgeplane_core::memory::{MemoryBlobs, MemoryQueue, MemoryStore};
use forgeplane_core::model::*;
use forgeplane_core::ports::{ControlPlane, EntropyExt as _, StaticKey, SystemEntropy};
use forgeplane_core::rules::Settings;
use forgeplane_core::rules::admission::RunRequest;
use forgeplane_worker::executor::Executor;
use forgeplane_worker::sandbox::Isolation;
use forgeplane_worker::uid_lock::{DEFAULT_DIR, UidLock};
use forgeplane_worker::{Shutdown, Tools, Worker, WorkerConfig, WorkerError};
use tokio::task::JoinHandle;

/// How long a test waits for something that must happen; only a failing test waits that long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A coordinator and the people who use it.
pub struct House {
    /// The coordinator.
    pub coordinator: Coordinator,
    /// An administrator.
    pub alice: Caller,
    /// Another one.
    pub bob: Caller,
    /// Everything that is on disk; passable for every user id.
    pub directory: tempfile::TempDir,
    /// How tools run.
    pub isolation: Isolation,
    /// The sandbox helper, unless it is the test's own program.
    helper: Option<PathBuf>,
    _loops: Loops,
}

/// Settings for tests: a cancel arrives soon.
#[must_use]
pub fn settings() -> Settings {
    Settings {
        heartbeat: Duration::from_millis(200),
        worker_offline_after: Duration::from_secs(10),
        ..Settings::default()
    }
}

impl House {
    /// A house; `helper` as in [`WorkerConfig::helper`].
    ///
    /// # Panics
    /// As every method here: when something that must work does not.
    pub async fn new(settings: Settings, helper: Option<PathBuf>) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("fp-worker-")
            .permissions(std::fs::Permissions::from_mode(0o711))
            .tempdir()
            .unwrap();
        let uid = free_uid();
        let coordinator = Coordinator::builder()
            .store(MemoryStore::new())
            .queue(MemoryQueue::default())
            .blobs(MemoryBlobs::default())
            .keys(StaticKey::new("k1", SystemEntropy.bytes()))
            .signing_key(SystemEntropy.bytes())
            .settings(settings)
            .build()
            .await
            .unwrap();
        let project = coordinator.ensure_project(&name("default")).await.unwrap();
        let mut callers = Vec::new();
        for who in ["alice", "bob"] {
            let (_, secret) =
                coordinator.issue_token(project.id, &name(who), Role::Admin, None).await.unwrap();
            callers.push(coordinator.authenticate(&secret).await.unwrap());
        }
        let bob = callers.remove(1);
        Self {
            _loops: coordinator.start(),
            coordinator,
            alice: callers.remove(0),
            bob,
            directory,
            isolation: Isolation::Uid { uid, gid: uid, reaper_uid: uid + 1 },
            helper,
        }
    }

    /// The configuration of the house's worker, with one tool.
    pub async fn config(&self, tool: Tool, path: &Path) -> WorkerConfig {
        let mut config = WorkerConfig::new(
            name("w1"),
            name("default"),
            self.directory.path().join("worker"),
            self.directory.path().join("work"),
            self.isolation,
        );
        config.helper.clone_from(&self.helper);
        config.tools = Tools::Explicit(BTreeMap::from([(tool, path.to_owned())]));
        config.enrollment_token =
            Some(self.coordinator.issue_enrollment(&name("default"), Duration::from_secs(60)).await.unwrap());
        config
    }

    /// Starts a worker with one tool and the shipped executors.
    pub async fn worker(&self, tool: Tool, path: &Path) -> RunningWorker {
        let config = self.config(tool, path).await;
        self.worker_with(config, self.coordinator.in_process()).await
    }

    /// Starts a worker with one tool and an executor for it.
    pub async fn worker_of(&self, executor: impl Executor, path: &Path) -> RunningWorker {
        let config = self.config(executor.tool(), path).await;
        let worker = Worker::new(config, self.coordinator.in_process(), self.coordinator.queue());
        RunningWorker::start(worker.executor(executor)).await
    }

    /// Starts a worker with this configuration and control plane.
    pub async fn worker_with(&self, config: WorkerConfig, control: impl ControlPlane) -> RunningWorker {
        RunningWorker::start(Worker::new(config, control, self.coordinator.queue())).await
    }

    /// Pushes a template with these files and makes an instance of it, both called `app`.
    pub async fn app(&self, tool: Tool, files: &[(&str, &str)], change: impl FnOnce(&mut PushTemplate)) {
        let mut push = PushTemplate {
            name: name("app"),
            tool,
            source: pack(files).into(),
            entrypoint: None,
            schema: None,
            defaults: Object::new(),
            pool: name("default"),
            execution_timeout_s: 300,
            max_execution_timeout_s: None,
            no_output_timeout_s: None,
            queue_timeout_s: None,
            cancel_grace_s: 30,
            approval: ApprovalPolicy { required: 0, ..ApprovalPolicy::default() },
        };
        change(&mut push);
        self.coordinator.push_template(&self.alice, push).await.unwrap();
        self.instance("app", Object::new(), BTreeMap::new()).await;
    }

    /// Makes an instance of the template `app`.
    pub async fn instance(&self, called: &str, inputs: Object, secrets: BTreeMap<String, Name>) {
        let new = NewInstance {
            name: name(called),
            template: "app".into(),
            template_version: None,
            inputs,
            secrets,
            pool: None,
        };
        self.coordinator.create_instance(&self.alice, new).await.unwrap();
    }

    /// Creates a run of the instance `app`.
    pub async fn create(&self, operation: Operation) -> RunId {
        self.create_for("app", operation).await
    }

    /// Creates a run of an instance.
    pub async fn create_for(&self, instance: &str, operation: Operation) -> RunId {
        let request = RunRequest { operation, inputs: Object::new(), execution_timeout_s: None, priority: 0 };
        let new = NewRun { instance: instance.into(), request, idempotency_key: None };
        self.coordinator.create_run(&self.alice, new).await.unwrap().id
    }

    /// A run as it is now.
    pub async fn view(&self, run: RunId) -> RunView {
        self.coordinator.run(&self.alice, run).await.unwrap()
    }

    /// Waits until something holds of a run, woken by events.
    pub async fn until(&self, run: RunId, holds: impl Fn(&RunView) -> bool) -> RunView {
        let mut events = self.coordinator.signals().events();
        let waiting = async {
            loop {
                let view = self.view(run).await;
                if holds(&view) {
                    return view;
                }
                events.changed().await;
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(view) => view,
            Err(_) => panic!("{:#?}\n{}", self.view(run).await.run, self.log(run).await),
        }
    }

    /// Waits until a run is over, however it ends.
    pub async fn ended(&self, run: RunId) -> RunView {
        self.until(run, |view| view.run.status.is_terminal()).await
    }

    /// The only worker.
    pub async fn one_worker(&self) -> WorkerView {
        let mut workers = self.coordinator.workers(&self.alice).await.unwrap();
        assert_eq!(workers.len(), 1);
        workers.remove(0)
    }

    /// Waits until something holds of the only worker; contact makes no event, so it is looked at again and again.
    pub async fn until_worker(&self, holds: impl Fn(&WorkerView) -> bool) -> WorkerView {
        let waiting = async {
            loop {
                let worker = self.one_worker().await;
                if holds(&worker) {
                    return worker;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the worker comes to be as expected")
    }

    /// Runs an operation that must succeed.
    pub async fn succeed(&self, operation: Operation) -> RunView {
        let run = self.create(operation).await;
        self.must_succeed(run).await
    }

    /// Waits until a run has succeeded.
    pub async fn must_succeed(&self, run: RunId) -> RunView {
        let view = self.ended(run).await;
        assert_eq!(view.run.status, RunStatus::Succeeded, "{:?}\n{}", view.run.error, self.log(run).await);
        view
    }

    /// Plans and applies.
    pub async fn apply(&self) -> RunView {
        let plan = self.succeed(Operation::Plan { destroy: false }).await;
        let apply = self.coordinator.promote(&self.alice, plan.run.id).await.unwrap();
        self.must_succeed(apply.id).await
    }

    /// The whole log of a run's newest attempt.
    pub async fn log(&self, run: RunId) -> String {
        let slice = self.coordinator.log(&self.alice, run, None, 0, usize::MAX).await.unwrap();
        slice.chunks.iter().map(|c| String::from_utf8_lossy(&c.frame.bytes).into_owned()).collect()
    }

    /// Waits until the log contains a text.
    pub async fn until_logged(&self, run: RunId, text: &str) {
        let mut logs = self.coordinator.signals().logs();
        let waiting = async {
            while !self.log(run).await.contains(text) {
                logs.changed().await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("{text:?} is not in the log:\n{}", self.log(run).await);
        }
    }

    /// The signed outcome of a run's newest attempt, verified offline.
    pub async fn outcome(&self, run: RunId) -> forgeplane_core::evidence::Outcome {
        let evidence = self.coordinator.evidence(&self.alice, run, None).await.unwrap();
        evidence.verify().unwrap().outcome
    }

    /// The current state document.
    pub async fn state(&self) -> serde_json::Value {
        let (_, document) = self.coordinator.pull_state(&self.alice, "app", None).await.unwrap();
        serde_json::from_slice(&document).unwrap()
    }

    /// A file for scripts to write to: outside every workspace, writable for the tool.
    pub fn ledger(&self) -> PathBuf {
        let path = self.directory.path().join("ledger");
        if !path.exists() {
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        }
        path
    }

    /// What the tool wrote there.
    pub fn ledger_text(&self) -> String {
        std::fs::read_to_string(self.ledger()).unwrap()
    }

    /// Writes an executable script into the house.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A fake `terraform`: answers the version check and `init`; `body` does the rest, with the subcommand in
    /// `$1` and the ledger in `$LEDGER`.
    pub fn fake_terraform(&self, body: &str) -> PathBuf {
        let ledger = self.ledger();
        self.script(
            "terraform",
            &format!(
                "case \"$1\" in --version) echo 'Terraform v1.99.0'; exit 0;; init) exit 0;; esac\nLEDGER={}\n{body}",
                ledger.display()
            ),
        )
    }

    /// Processes of the tools' user id, as directories below `/proc`.
    pub fn processes(&self) -> Vec<PathBuf> {
        let Isolation::Uid { uid, .. } = self.isolation else { return Vec::new() };
        let is_ours = |process: &PathBuf| {
            let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
            let uids = status.lines().find(|line| line.starts_with("Uid:")).unwrap_or_default();
            uids.split_whitespace().any(|word| word == uid.to_string()) && !status.contains("State:\tZ")
        };
        std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()).filter(is_ours).collect()
    }
}

/// A user id that no other house uses: houses of one process count up, processes start apart, and whatever is
/// in use all the same is stepped over.
fn free_uid() -> u32 {
    static HOUSES: AtomicU32 = AtomicU32::new(0);
    let apart = (std::process::id() % 20_000) * 64 + HOUSES.fetch_add(2, Ordering::Relaxed) % 64;
    let start = 300_000 + apart;
    UidLock::acquire_free(Path::new(DEFAULT_DIR), start..start + 64, 2).unwrap().uid()
}

/// A worker that runs in the background.
pub struct RunningWorker {
    /// How it is asked to end.
    pub shutdown: Shutdown,
    task: JoinHandle<Result<(), WorkerError>>,
}

impl RunningWorker {
    async fn start(worker: Worker) -> Self {
        let shutdown = Shutdown::new();
        let started = worker.start(shutdown.clone()).await.unwrap();
        Self { shutdown, task: tokio::spawn(started.run()) }
    }

    /// Waits until it has ended as asked for.
    pub async fn ended(self) {
        self.result().await.unwrap();
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// As the worker does.
    pub async fn result(self) -> Result<(), WorkerError> {
        self.task.await.unwrap()
    }

    /// Drops the worker where it is, as a crash would; its tool is left to the next one.
    pub async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// A valid name.
pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// The real Terraform.
pub fn terraform() -> PathBuf {
    in_path("terraform").expect("these tests run a real Terraform: put `terraform` into PATH")
}

/// The real Ansible: from the path in `FORGEPLANE_TEST_ANSIBLE_PLAYBOOK`, which `cargo xtask test` sets, or from `PATH`.
pub fn ansible() -> PathBuf {
    let named = std::env::var_os("FORGEPLANE_TEST_ANSIBLE_PLAYBOOK").map(PathBuf::from);
    named.or_else(|| in_path("ansible-playbook")).expect(
        "these tests run a real Ansible: run them with `cargo xtask test`, or put ansible-playbook into PATH",
    )
}

fn in_path(program: &str) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// A source bundle of these files.
pub fn pack(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}
