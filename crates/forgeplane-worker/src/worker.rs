//! The worker: assembled, started, kept in touch.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forgeplane_core::evidence::Cleanup;
use forgeplane_core::failpoint::{self, Failpoint};
use forgeplane_core::model::{Fence, StopCause, Tool};
use forgeplane_core::ports::{ControlError, ControlPlane, Delivery, Heartbeat, Holding, JobQueue, Orders};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::attempt::Verdict;
use crate::config::{Tools, WorkerConfig};
use crate::durable;
use crate::error::{WorkerError, at};
use crate::executor::{AnsibleExecutor, Executor, TerraformExecutor};
use crate::heartbeat::Heartbeats;
use crate::host::{Guard, Host, Machine, Processes};
use crate::identity::Identity;
use crate::journal::Journal;
use crate::link::{Introduction, Link};
use crate::retry::Pause;
use crate::sandbox::Isolation;
use crate::stop::StopLatch;
use crate::tools::{self, FoundTool};
use crate::uid_lock::UidLock;
use crate::unsaved::Unsaved;
use crate::workspace;

/// How often a delivery under way is kept from being delivered again.
const IN_PROGRESS: Duration = Duration::from_secs(15);

/// How a worker is asked to end.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Take nothing new; finish what runs.
    pub drain: CancellationToken,
    /// Also stop what runs: one SIGINT, the grace period, state saved, outcome signed.
    pub stop: CancellationToken,
}

impl Shutdown {
    /// A shutdown that was not asked for.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the end of the worker, and of what it runs.
    pub fn stop(&self) {
        self.drain.cancel();
        self.stop.cancel();
    }
}

/// How long a worker that ends tries to say so.
const LAST_WORD: Duration = Duration::from_secs(2);
/// How long after a failed replacement of the key the next one is tried.
const ROTATION_PAUSE: Duration = Duration::from_secs(10);

/// A worker, ready to run.
pub struct Worker {
    host: Arc<dyn Host>,
    config: WorkerConfig,
    control: Arc<dyn ControlPlane>,
    queue: Arc<dyn JobQueue>,
    executors: BTreeMap<Tool, Arc<dyn Executor>>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker with the shipped executors.
    pub fn new(config: WorkerConfig, control: impl ControlPlane, queue: Arc<dyn JobQueue>) -> Self {
        let host = Arc::new(Machine);
        Self { host, config, control: Arc::new(control), queue, executors: BTreeMap::new() }
            .executor(TerraformExecutor::terraform())
            .executor(TerraformExecutor::tofu())
            .executor(AnsibleExecutor)
    }

    /// The machine it is on; the one this process runs on, unless set.
    #[must_use]
    pub fn host(mut self, host: impl Host) -> Self {
        self.host = Arc::new(host);
        self
    }

    /// Adds an executor, or replaces the one for its tool.
    #[must_use]
    pub fn executor(mut self, executor: impl Executor) -> Self {
        self.executors.insert(executor.tool(), Arc::new(executor));
        self
    }

    /// Starts the worker: takes its user id, sweeps it, finds tools, registers, and deals with what the
    /// journal remembers.
    ///
    /// # Errors
    /// [`WorkerError`]: what is wrong with the machine, the configuration or the credentials. An unreachable
    /// coordinator is waited for.
    pub async fn start(self, shutdown: Shutdown) -> Result<Started, WorkerError> {
        let Self { host, config, control, queue, executors } = self;
        if let Tools::Explicit(tools) = &config.tools
            && let Some(tool) = tools.keys().find(|tool| !executors.contains_key(tool))
        {
            return Err(WorkerError::NoExecutor { tool: *tool });
        }
        let processes = host.processes(config.isolation, config.helper.clone())?;
        let uid_lock = match config.isolation {
            Isolation::Uid { uid, .. } => Some(UidLock::acquire(&config.uid_lock_dir, uid)?),
            Isolation::UnsafeNone => None,
        };
        let found_at_start = processes.clear().await;
        if found_at_start == Cleanup::Dirty {
            return Err(WorkerError::DirtyUid);
        }
        let disk = host.disk();
        durable::private_dir(&*disk, &config.state_dir).map_err(at(&config.state_dir))?;
        let state_lock = disk
            .lock(&config.state_dir)
            .map_err(at(&config.state_dir))?
            .ok_or_else(|| WorkerError::StateDirInUse { path: config.state_dir.clone() })?;
        let identity = Arc::new(Identity::load(&*host, &config.state_dir)?);
        let journal = Journal::open(Arc::clone(&disk), &config.state_dir)?;
        let unsaved = Unsaved::open(disk, &config.state_dir)?;
        let scratch = Scratch::make(&config)?;
        workspace::remove_leftovers(&config.workspace_root).map_err(at(&config.workspace_root))?;
        let tools = tools::find(&config.tools, &*processes, &scratch.0).await?;
        drop(scratch);
        if config.isolation == Isolation::UnsafeNone {
            tracing::warn!("UNSAFE: this worker runs tools without isolation; only for local development");
        }
        let introduction = Introduction {
            name: config.name.clone(),
            pool: config.pool.clone(),
            capabilities: tools.values().map(|t| (t.tool.label().to_owned(), t.version.clone())).collect(),
            unsafe_no_isolation: config.isolation == Isolation::UnsafeNone,
            enrollment_token: config.enrollment_token.clone(),
        };
        let link = open_link(&*host, control, &identity, introduction, &shutdown.drain).await?;
        tracing::info!(worker = %link.worker, tools = ?tools.keys().collect::<Vec<_>>(), "registered");
        let running = Arc::new(Running {
            host,
            config,
            link: Arc::new(link),
            identity,
            journal,
            unsaved,
            found_at_start,
            processes,
            tools,
            executors,
            holdings: Holdings::default(),
            current: Mutex::new(None),
            orders: watch::Sender::new(Orders::default()),
            beats: watch::Sender::new(0),
            draining: shutdown.drain.clone(),
            _uid_lock: uid_lock,
            _state_lock: state_lock,
        });
        Ok(Started { running, queue, shutdown })
    }

    /// Starts the worker and runs it until it is shut down.
    ///
    /// # Errors
    /// As [`Worker::start`]; later, when its own files fail or its identity was taken out of service.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), WorkerError> {
        self.start(shutdown).await?.run().await
    }
}

/// A directory for version checks, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn make(config: &WorkerConfig) -> Result<Self, WorkerError> {
        use std::os::unix::fs::{DirBuilderExt as _, lchown};
        let root = &config.workspace_root;
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(root).map_err(at(root))?;
        let path = root.join("tool-check");
        let _ = std::fs::remove_dir_all(&path);
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(at(&path))?;
        if let Isolation::Uid { uid, gid, .. } = config.isolation {
            lchown(&path, Some(uid), Some(gid)).map_err(at(&path))?;
        }
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn open_link(
    host: &dyn Host,
    control: Arc<dyn ControlPlane>,
    identity: &Arc<Identity>,
    introduction: Introduction,
    stop: &CancellationToken,
) -> Result<Link, WorkerError> {
    let mut pause = Pause::new(host.entropy());
    loop {
        match Link::open(host.entropy(), Arc::clone(&control), Arc::clone(identity), introduction.clone())
            .await
        {
            Err(WorkerError::Control(ControlError::Unavailable(error))) => {
                tracing::warn!(%error, "the coordinator is not available; trying again");
                if !pause.wait(stop).await {
                    return Err(ControlError::Unavailable(error).into());
                }
            }
            other => return other,
        }
    }
}

/// A registered worker.
pub struct Started {
    running: Arc<Running>,
    queue: Arc<dyn JobQueue>,
    shutdown: Shutdown,
}

/// Everything a registered worker works with.
pub(crate) struct Running {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) config: WorkerConfig,
    pub(crate) link: Arc<Link>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) journal: Journal,
    pub(crate) unsaved: Unsaved,
    /// What the sweep at the start could say of what earlier workers left running.
    pub(crate) found_at_start: Cleanup,
    pub(crate) processes: Arc<dyn Processes>,
    pub(crate) tools: BTreeMap<Tool, FoundTool>,
    pub(crate) executors: BTreeMap<Tool, Arc<dyn Executor>>,
    pub(crate) holdings: Holdings,
    current: Mutex<Option<(Fence, StopLatch)>>,
    orders: watch::Sender<Orders>,
    /// Heartbeats that were answered.
    pub(crate) beats: watch::Sender<u32>,
    pub(crate) draining: CancellationToken,
    _uid_lock: Option<UidLock>,
    _state_lock: Guard,
}

/// The claimed attempts that heartbeats name.
#[derive(Debug, Default)]
pub(crate) struct Holdings(Mutex<Vec<Holding>>);

/// Names an attempt in heartbeats as long as it lives.
pub(crate) struct Held<'a> {
    holdings: &'a Holdings,
    holding: Holding,
}

impl Holdings {
    fn all(&self) -> MutexGuard<'_, Vec<Holding>> {
        // Entries are pushed and removed whole; a panic elsewhere cannot leave one half-made.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hold(&self, holding: Holding) -> Held<'_> {
        self.all().push(holding.clone());
        Held { holdings: self, holding }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.holdings.all().retain(|h| *h != self.holding);
    }
}

impl Running {
    fn current(&self) -> MutexGuard<'_, Option<(Fence, StopLatch)>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt begins: orders for its fence reach this latch, also those that came before.
    pub(crate) fn begin(&self, fence: Fence) -> StopLatch {
        let latch = StopLatch::default();
        *self.current() = Some((fence, latch.clone()));
        self.obey(&self.orders.borrow());
        latch
    }

    /// The attempt is over.
    pub(crate) fn end(&self) {
        *self.current() = None;
    }

    fn obey(&self, orders: &Orders) {
        if let Some((fence, latch)) = &*self.current()
            && let Some(order) = orders.stops.iter().find(|o| o.fence == *fence)
        {
            latch.stop(order.cause);
        }
    }

    fn stop_current(&self, cause: StopCause) {
        if let Some((_, latch)) = &*self.current() {
            latch.stop(cause);
        }
    }

    pub(crate) fn take_orders(&self, orders: Orders) {
        self.obey(&orders);
        self.orders.send_replace(orders);
    }

    /// Waits until the coordinator wants this worker's key replaced.
    async fn rotation_ordered(&self) {
        let mut orders = self.orders.subscribe();
        let ordered = |orders: &Orders| orders.rotate_key == Some(self.identity.key_id());
        // The sender lives as long as `self`.
        let _ = orders.wait_for(ordered).await;
    }

    /// Replaces the signing key, unless something was signed with it or may have to be.
    async fn replace_key(&self) -> Result<(), WorkerError> {
        if self.journal.entries()?.is_empty() {
            self.link.replace_key().await
        } else {
            Err(ControlError::Unavailable("outcomes that the old key signed are not delivered yet".into())
                .into())
        }
    }

    pub(crate) fn heartbeat(&self) -> Heartbeat {
        Heartbeat {
            holding: self.holdings.all().clone(),
            draining: self.draining.is_cancelled(),
            newest: self.journal.newest(),
            short_of: self.short_of(),
        }
    }

    /// What is missing for another job. A disk that cannot be looked at is left to whoever writes to it.
    fn short_of(&self) -> Option<String> {
        let least = self.config.min_free_bytes;
        [&self.config.workspace_root, &self.config.state_dir].into_iter().find_map(|directory| {
            let free = self.host.free_space(directory).ok().filter(|free| *free < least)?;
            let mib = |bytes: u64| bytes >> 20;
            Some(format!(
                "room on the disk of {}: {} MiB are free, {} are wanted",
                directory.display(),
                mib(free),
                mib(least)
            ))
        })
    }

    /// Watches for orders, so that a cancel arrives at once and not with the next heartbeat.
    async fn watch_orders(&self) {
        let never = CancellationToken::new();
        let mut pause = self.link.pause();
        loop {
            let known = self.orders.borrow().clone();
            match self.link.orders(&known).await {
                Ok(orders) => {
                    pause.reset();
                    self.take_orders(orders);
                }
                Err(error) => {
                    tracing::debug!(%error, "orders cannot be had");
                    pause.wait(&never).await;
                }
            }
        }
    }
}

impl Started {
    /// The worker's id.
    #[must_use]
    pub fn worker(&self) -> forgeplane_core::id::WorkerId {
        self.running.link.worker
    }

    /// Runs until shut down: recovers the journal, then takes jobs one at a time.
    ///
    /// # Errors
    /// When the worker's own files fail, or the coordinator has taken its identity out of service. Outcomes
    /// that could not be delivered stay in the journal.
    pub async fn run(self) -> Result<(), WorkerError> {
        let Self { running, queue, shutdown } = self;
        let _heartbeat = Heartbeats::start(Arc::clone(&running))?;
        let out_of_service = &running.link.out_of_service;
        let ends = Ends { taking: CancellationToken::new(), waiting: CancellationToken::new() };
        // Dropped with this future, however it ends: nothing of this worker outlives it.
        let mut beside = JoinSet::new();
        let watching = Arc::clone(&running);
        beside.spawn(async move { watching.watch_orders().await });
        let (stopping, stop) = (Arc::clone(&running), shutdown.stop.clone());
        beside.spawn(async move {
            stop.cancelled().await;
            stopping.stop_current(StopCause::Cancel);
        });
        beside.spawn(either(shutdown.drain.clone(), out_of_service.clone(), ends.taking.clone()));
        beside.spawn(either(shutdown.stop.clone(), out_of_service.clone(), ends.waiting.clone()));
        let result = take_jobs(&running, &*queue, &ends).await;
        beside.shutdown().await;
        if running.draining.is_cancelled() {
            // So that nothing more is offered to a worker that is not there; without it the offers would expire.
            let _ = tokio::time::timeout(LAST_WORD, running.link.heartbeat(running.heartbeat())).await;
        }
        result?;
        match running.link.refusal() {
            Some(refusal) => Err(ControlError::Refused(refusal.clone()).into()),
            None => Ok(()),
        }
    }
}

/// What ends before the worker does.
struct Ends {
    /// Taking jobs.
    taking: CancellationToken,
    /// Waiting for a coordinator that is away, or that hears this worker no more.
    waiting: CancellationToken,
}

async fn either(one: CancellationToken, other: CancellationToken, end: CancellationToken) {
    tokio::select! {
        biased;
        () = one.cancelled() => {}
        () = other.cancelled() => {}
    }
    end.cancel();
}

async fn take_jobs(running: &Running, queue: &dyn JobQueue, ends: &Ends) -> Result<(), WorkerError> {
    if !running.recover(&ends.taking).await? {
        return Ok(());
    }
    let mut pause = running.link.pause();
    let mut rotation_pause = tokio::time::Instant::now();
    loop {
        let subscribed = tokio::select! {
            biased;
            () = ends.taking.cancelled() => return Ok(()),
            subscribed = queue.subscribe(running.link.worker) => subscribed,
        };
        let mut stream = match subscribed {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "the job queue is not available; trying again");
                if !pause.wait(&ends.taking).await {
                    return Ok(());
                }
                continue;
            }
        };
        pause.reset();
        loop {
            let mut next = stream.next();
            let delivery = loop {
                tokio::select! {
                    biased;
                    () = ends.taking.cancelled() => return Ok(()),
                    // Between jobs: then nothing has to be signed with the key that goes.
                    () = async {
                        tokio::time::sleep_until(rotation_pause).await;
                        running.rotation_ordered().await;
                    } => if let Err(error) = running.replace_key().await {
                        tracing::warn!(%error, "the key could not be replaced; trying again");
                        rotation_pause = tokio::time::Instant::now() + ROTATION_PAUSE;
                    },
                    delivery = &mut next => break delivery,
                }
            };
            drop(next);
            let delivery = match delivery {
                Ok(delivery) => delivery,
                Err(error) => {
                    tracing::warn!(%error, "the job queue was lost; subscribing again");
                    break;
                }
            };
            let job = delivery.job().clone();
            failpoint::reach(Failpoint::JobTaken);
            // Beside each other: a queue that does not answer must not keep a stop from reaching the tool.
            let verdict = tokio::select! {
                biased;
                verdict = running.deal_with(&job, &ends.taking, &ends.waiting) => verdict?,
                never = keep_in_progress(&*delivery) => match never {},
            };
            failpoint::reach(Failpoint::Forgotten);
            let answered = match verdict {
                Verdict::Done | Verdict::Quarantined => delivery.ack().await,
                Verdict::Again => delivery.nak(Duration::from_secs(1)).await,
            };
            if let Err(error) = answered {
                tracing::debug!(%error, "a job will be delivered again, which is harmless");
            }
            failpoint::reach(Failpoint::Acknowledged);
            if verdict == Verdict::Quarantined {
                tracing::error!(
                    "processes of the IaC user id cannot be killed: this worker takes no more work"
                );
                ends.taking.cancelled().await;
                return Ok(());
            }
        }
    }
}

/// Tells the queue again and again that a job is being worked on.
async fn keep_in_progress(delivery: &dyn Delivery) -> Infallible {
    loop {
        tokio::time::sleep(IN_PROGRESS).await;
        if let Err(error) = delivery.in_progress().await {
            tracing::debug!(%error, "the queue does not hear that the job is in progress");
        }
    }
}
