//! A worker with a scripted control plane, and what tests ask of the two.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::{BundleManifest, Conclusion, Envelope, NotStarted, Outcome, StateRef};
use forgeplane_core::id::{AttemptId, InstanceId, ProjectId, RunId, StateObjectId, TemplateId};
use forgeplane_core::model::*;
use forgeplane_core::ports::Bundle;
use forgeplane_worker::host::{Host, Machine};
use forgeplane_worker::sandbox::Isolation;
use forgeplane_worker::uid_lock::UidLock;
use forgeplane_worker::{Shutdown, Tools, Worker, WorkerConfig, WorkerError};
use jiff::Timestamp;
use tokio::task::JoinHandle;

use crate::script::{Offer, Port, Script};

/// Where tests share out user ids. The worker's own lock is elsewhere, so a test keeps its ids between workers.
const UIDS: &str = "/run/lock/forgeplane-session-tests";

pub struct Bench {
    pub script: Arc<Script>,
    pub directory: tempfile::TempDir,
    pub config: WorkerConfig,
    _uid: UidLock,
}

/// What an attempt is to do; the rest has defaults.
pub struct Order {
    pub operation: Operation,
    pub files: Vec<(&'static str, &'static str)>,
    pub entrypoint: Option<&'static str>,
    pub timeout: Duration,
    pub grace_s: u64,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            operation: Operation::PlanOnly,
            files: vec![("main.tf", "")],
            entrypoint: None,
            timeout: Duration::from_secs(300),
            grace_s: 30,
        }
    }
}

impl Bench {
    /// A worker whose Terraform is a script: it answers the version check and `init`; `body` does the rest,
    /// with the subcommand in `$1` and the ledger in `$LEDGER`.
    pub fn with_script(body: &str) -> Self {
        let bench = Self::with_tool(PathBuf::new());
        let ledger = bench.ledger();
        std::fs::write(&ledger, "").unwrap();
        std::fs::set_permissions(&ledger, std::fs::Permissions::from_mode(0o666)).unwrap();
        let body = format!(
            "#!/bin/sh\ncase \"$1\" in --version) echo 'Terraform v1.99.0'; exit 0;; init) exit 0;; esac\nLEDGER={}\n{body}\n",
            ledger.display()
        );
        let tool = bench.executable("terraform", &body);
        bench.tool(tool)
    }

    pub fn with_tool(path: PathBuf) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("fp-session-")
            .permissions(std::fs::Permissions::from_mode(0o711))
            .tempdir()
            .unwrap();
        let lock = UidLock::acquire_free(Path::new(UIDS), 360_000..420_000, 2).unwrap();
        let uid = lock.uid();
        let mut config = WorkerConfig::new(
            "w1".parse().unwrap(),
            "default".parse().unwrap(),
            directory.path().join("worker"),
            directory.path().join("work"),
            Isolation::Uid { uid, gid: uid, reaper_uid: uid + 1 },
        );
        config.helper = Some(PathBuf::from(env!("CARGO_BIN_EXE_forgeplane-sandbox")));
        config.enrollment_token = Some("token".to_owned().into());
        Self { script: Script::new(), directory, config, _uid: lock }.tool(path)
    }

    fn tool(mut self, path: PathBuf) -> Self {
        self.config.tools = Tools::Explicit(BTreeMap::from([(Tool::Terraform, path)]));
        self
    }

    pub fn executable(&self, name: &str, body: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, body).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub fn ledger(&self) -> PathBuf {
        self.directory.path().join("ledger")
    }

    pub fn ledger_text(&self) -> String {
        std::fs::read_to_string(self.ledger()).unwrap()
    }

    /// Waits until the tool has written this into the ledger.
    pub async fn until_ledger(&self, text: &str) {
        let waiting = async {
            while !self.ledger_text().contains(text) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("the tool to get there");
    }

    pub async fn start(&self) -> Result<RunningWorker, WorkerError> {
        self.start_on(Machine).await
    }

    pub async fn start_on(&self, host: impl Host) -> Result<RunningWorker, WorkerError> {
        let shutdown = Shutdown::new();
        let port = Port(Arc::clone(&self.script));
        let worker = Worker::new(self.config.clone(), port.clone(), Arc::new(port)).host(host);
        let started = worker.start(shutdown.clone()).await?;
        Ok(RunningWorker { shutdown, task: tokio::spawn(started.run()) })
    }

    /// Offers and publishes an attempt.
    pub fn attempt(&self, fence: u64, order: Order) -> Job {
        let now = Timestamp::UNIX_EPOCH;
        let id = u8::try_from(fence).unwrap();
        let run = RunId::new(now, [id; 10]);
        let project = ProjectId::new(now, [1; 10]);
        let attempt = AttemptId::new(now, [id; 10]);
        let object = StateObjectId::new(now, [1; 10]);
        let source: Bytes = pack(&order.files).into();
        let snapshot = Snapshot {
            run,
            project,
            instance: InstanceId::new(now, [1; 10]),
            instance_name: "app".parse().unwrap(),
            template: TemplateId::new(now, [1; 10]),
            template_version: 1,
            tool: Tool::Terraform,
            operation: order.operation,
            source: Digest::of(&source),
            entrypoint: order.entrypoint.map(str::to_owned),
            inputs: Object::new(),
            secrets: Vec::new(),
            environment: BTreeMap::new(),
            pool: "default".parse().unwrap(),
            execution_timeout_s: order.timeout.as_secs(),
            cancel_grace_s: order.grace_s,
            no_output_timeout_s: None,
            queue_timeout_s: None,
            state_object: Some(object),
            base_generation: 0,
            plan: None,
            approval: ApprovalPolicy::default(),
        };
        let manifest = BundleManifest {
            project,
            run,
            attempt,
            number: 1,
            fence: Fence(fence),
            worker: self.script.worker,
            snapshot: snapshot.digest(),
            source: snapshot.source,
            state: Some(StateRef { object, generation: 0, digest: None }),
            plan: None,
            lock_file: None,
        };
        let bundle = Bundle {
            manifest: Envelope::sign(&manifest, self.script.key()).unwrap(),
            snapshot: snapshot.to_bytes().into(),
            source,
            state: None,
            plan: None,
            lock_file: None,
        };
        let offer = Offer {
            bundle,
            timeout: order.timeout,
            claimed: None,
            closed: false,
            log: Vec::new(),
            generation: 0,
            states: Vec::new(),
            artifacts: BTreeMap::new(),
        };
        self.script.offer(attempt, offer);
        let job =
            Job { project, run, attempt, fence: Fence(fence), worker: self.script.worker, publication: 1 };
        self.script.publish(&job);
        job
    }

    /// Waits for the attempt's conclusion.
    pub async fn conclusion(&self, job: &Job) -> Conclusion {
        self.script.until("the attempt ends", |s| s.conclusion(job.attempt).is_some()).await;
        self.script.conclusion(job.attempt).unwrap()
    }

    pub async fn outcome(&self, job: &Job) -> Outcome {
        match self.conclusion(job).await {
            Conclusion::Outcome(outcome) => *outcome,
            other => panic!("expected an outcome, got {other:?}"),
        }
    }

    pub async fn not_started(&self, job: &Job) -> NotStarted {
        match self.conclusion(job).await {
            Conclusion::NotStarted(statement) => *statement,
            other => panic!("expected the tool not to have started, got {other:?}"),
        }
    }

    pub fn log(&self, job: &Job) -> String {
        self.script.look(job.attempt, |offer| String::from_utf8_lossy(&offer.log).into_owned())
    }

    /// The files of a folder below the worker's state directory: name and content.
    /// The worker's own files are from now on a copy of what they were.
    pub fn put_a_copy_in_place(&self) {
        let (state, original) = (&self.config.state_dir, self.directory.path().join("original"));
        std::fs::rename(state, &original).unwrap();
        let copied = std::process::Command::new("cp").arg("-a").args([&original, state]).status().unwrap();
        assert!(copied.success());
    }

    pub fn kept(&self, folder: &str) -> Vec<(String, String)> {
        kept(&self.config.state_dir.join(folder))
    }
}

pub fn kept(folder: &Path) -> Vec<(String, String)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// A worker that runs in the background.
pub struct RunningWorker {
    pub shutdown: Shutdown,
    task: JoinHandle<Result<(), WorkerError>>,
}

impl RunningWorker {
    pub async fn result(self) -> Result<(), WorkerError> {
        self.task.await.unwrap()
    }

    /// Drops the worker where it is, as a crash would; its tool is left to the next one.
    pub async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// Lets it finish what it does, and waits for its end.
    pub async fn drain(self) {
        self.shutdown.drain.cancel();
        self.result().await.unwrap();
    }
}

fn pack(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

pub fn terraform() -> PathBuf {
    std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|dir| dir.join("terraform"))
        .find(|path| path.is_file())
        .expect("these tests run a real Terraform: put `terraform` into PATH")
}
