//! Coordinators and workers as processes: started, killed, started again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forgeplane_core::coordinator::{Coordinator, CoordinatorError};
use forgeplane_core::memory::{MemoryBlobs, MemoryStore};
use forgeplane_core::model::{Name, Tool};
use forgeplane_core::ports::{JobQueue, StaticKey};
use forgeplane_core::rules::Settings;
use forgeplane_worker::sandbox::Isolation;
use forgeplane_worker::{Shutdown, Tools, Worker, WorkerConfig};
use jiff::SignedDuration;
use secrecy::SecretString;

use super::broker::{Broker, BrokerEnd};
use super::disk::SimDisk;
use super::life::Life;
use super::lock;
use super::machine::{Services, SimMachine};
use super::store::StoreEnd;
use super::wire::{Network, Wire};
use super::world::World;

/// The figures of `protocol.md` 1.6, five times as fast: what matters is their order.
fn settings() -> Settings {
    Settings {
        heartbeat: Duration::from_secs(1),
        offer_ttl: Duration::from_secs(12),
        worker_offline_after: Duration::from_secs(6),
        unresolved_after: Duration::from_secs(24),
        republish_after: Duration::from_secs(2),
        deadline_margin: Duration::from_secs(12),
        session_ttl: Duration::from_secs(180),
        unsafe_allow_no_isolation: true,
        ..Settings::default()
    }
}

/// How far the clocks of workers are off: nothing depends on them.
const YEARS_OFF: [SignedDuration; 3] = [
    SignedDuration::ZERO,
    SignedDuration::from_hours(24 * 365 * 10),
    SignedDuration::from_hours(-24 * 365 * 10),
];

/// How jobs reach the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Jobs {
    /// By a broker.
    Broker,
    /// From the coordinators.
    Outbox,
}

/// Everything that runs.
pub(super) struct Cluster {
    pub(super) world: Arc<World>,
    pub(super) store: Arc<MemoryStore>,
    pub(super) network: Arc<Network>,
    pub(super) broker: Arc<Broker>,
    pub(super) workers: Vec<WorkerSeat>,
    coordinator_lives: Vec<Mutex<Life>>,
    blobs: Arc<MemoryBlobs>,
    jobs: Jobs,
    tool: PathBuf,
}

/// The place of one worker: its disk and its current life.
pub(super) struct WorkerSeat {
    pub(super) name: Name,
    pub(super) disk: SimDisk,
    root: PathBuf,
    /// How far its clock is off.
    off: SignedDuration,
    life: Mutex<Life>,
    shutdown: Mutex<Shutdown>,
    loses_power: AtomicBool,
    /// What its disk was copied to, and when it dies for the next time, is put back from.
    backup: Mutex<Backup>,
    /// It never comes back.
    pub(super) gone: AtomicBool,
    /// A copy of its disk was used.
    pub(super) is_copied: AtomicBool,
}

/// A copy of a worker's disk.
#[derive(Default)]
enum Backup {
    #[default]
    None,
    Made(SimDisk),
    /// It is to be put back.
    Wanted(SimDisk),
}

impl Cluster {
    pub(super) fn new(
        world: Arc<World>,
        coordinators: usize,
        workers: usize,
        jobs: Jobs,
        directory: &std::path::Path,
        tool: PathBuf,
    ) -> Self {
        let seats = (0..workers)
            .map(|index| WorkerSeat {
                name: name(&format!("w{index}")),
                disk: SimDisk::new(Arc::clone(&world)),
                root: directory.join(format!("w{index}")),
                off: YEARS_OFF[index % YEARS_OFF.len()],
                life: Mutex::new(Life::new()),
                shutdown: Mutex::default(),
                loses_power: AtomicBool::new(false),
                backup: Mutex::default(),
                gone: AtomicBool::new(false),
                is_copied: AtomicBool::new(false),
            })
            .collect();
        Self {
            store: Arc::new(MemoryStore::new()),
            network: Arc::new(Network::new(Arc::clone(&world), coordinators)),
            broker: Arc::new(Broker::new(Arc::clone(&world))),
            workers: seats,
            coordinator_lives: (0..coordinators).map(|_| Mutex::new(Life::new())).collect(),
            blobs: Arc::default(),
            jobs,
            tool,
            world,
        }
    }

    /// A coordinator on the shared database, in a new life.
    async fn coordinator(&self, life: &Life) -> Result<Coordinator, CoordinatorError> {
        let store =
            StoreEnd { store: Arc::clone(&self.store), world: Arc::clone(&self.world), life: life.clone() };
        let builder = Coordinator::builder()
            .store(store)
            .blobs(Arc::clone(&self.blobs))
            .keys(StaticKey::new("k1", [7; 32]))
            .signing_key([9; 32])
            .clock(Arc::clone(&self.world))
            .entropy(Arc::clone(&self.world))
            .settings(settings());
        let builder = match self.jobs {
            Jobs::Broker => builder.queue(BrokerEnd { broker: Arc::clone(&self.broker), life: life.clone() }),
            Jobs::Outbox => builder.outbox_queue(),
        };
        builder.build().await
    }

    /// Keeps a coordinator running for ever.
    pub(super) async fn keep_coordinator(self: Arc<Self>, index: usize) {
        loop {
            let life = Life::new();
            *lock(&self.coordinator_lives[index]) = life.clone();
            if let Ok(coordinator) = self.coordinator(&life).await {
                let starting = coordinator.clone();
                // Bound to the life, as everything a process does: the loops end with it.
                let loops = life.spawn(async move {
                    let loops = starting.start();
                    std::future::pending::<()>().await;
                    drop(loops);
                });
                self.network.set(index, Some((life.clone(), coordinator)));
                life.over().await;
                self.network.set(index, None);
                let _ = loops.await;
            }
            tracing::debug!(index, "a coordinator is dead");
            self.world.count(|c| c.crashes += 1);
            tokio::time::sleep(self.world.fate.millis(6_000)).await;
        }
    }

    /// Keeps a worker running until its machine is gone.
    pub(super) async fn keep_worker(self: Arc<Self>, index: usize, token: SecretString) {
        let seat = &self.workers[index];
        let home = Arc::new(AtomicUsize::new(index));
        while !seat.gone.load(Ordering::Relaxed) {
            let life = Life::new();
            let shutdown = Shutdown::new();
            *lock(&seat.life) = life.clone();
            *lock(&seat.shutdown) = shutdown.clone();
            let wire = Wire {
                network: Arc::clone(&self.network),
                life: life.clone(),
                worker: index,
                home: Arc::clone(&home),
            };
            let worker = self.worker(seat, wire, seat.disk.of(&life), &seat.root, Some(token.clone()));
            let ended = life.spawn(worker.run(shutdown)).await;
            match ended {
                Ok(Some(Ok(()))) => tracing::debug!(index, "a worker ended"),
                Ok(Some(Err(error))) => {
                    tracing::debug!(index, %error, code = error.code(), "a worker gave up");
                    if matches!(error.code(), "worker_disabled" | "key_unusable") {
                        seat.gone.store(true, Ordering::Relaxed);
                    }
                }
                Ok(None) => {
                    tracing::debug!(index, "a worker is dead");
                    self.world.count(|c| c.crashes += 1);
                }
                // A panic of the worker is one of the schedule.
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
            life.end();
            if seat.loses_power.swap(false, Ordering::Relaxed) {
                self.world.count(|c| c.power_losses += 1);
                seat.disk.lose_power();
            }
            seat.put_back_if_wanted();
            tokio::time::sleep(self.world.fate.millis(8_000)).await;
        }
    }

    fn queue(&self, wire: &Wire) -> Arc<dyn JobQueue> {
        match self.jobs {
            Jobs::Broker => Arc::new(BrokerEnd { broker: Arc::clone(&self.broker), life: wire.life.clone() }),
            Jobs::Outbox => Arc::new(wire.clone()),
        }
    }

    /// A worker's program on a machine with this disk.
    fn worker(
        &self,
        seat: &WorkerSeat,
        wire: Wire,
        disk: SimDisk,
        root: &std::path::Path,
        token: Option<SecretString>,
    ) -> Worker {
        let host = SimMachine {
            world: Arc::clone(&self.world),
            life: wire.life.clone(),
            disk,
            services: Services::default(),
            off: seat.off,
        };
        let isolation = Isolation::UnsafeNone;
        let mut config = WorkerConfig::new(
            seat.name.clone(),
            name("default"),
            "/state".into(),
            root.to_owned(),
            isolation,
        );
        config.tools = Tools::Explicit(BTreeMap::from([(Tool::Terraform, self.tool.clone())]));
        config.enrollment_token = token;
        let queue = self.queue(&wire);
        Worker::new(config, wire, queue).host(host)
    }

    /// Somebody makes a backup of a worker's disk; or the machine dies after so many more things it does, and goes on from
    /// the backup that was made of it.
    pub(super) fn back_up_or_put_back(&self, index: usize, steps: u64) {
        let seat = &self.workers[index];
        let mut backup = lock(&seat.backup);
        *backup = match std::mem::take(&mut *backup) {
            Backup::None => Backup::Made(seat.disk.copied()),
            Backup::Made(disk) => {
                self.crash_worker(index, steps, true);
                Backup::Wanted(disk)
            }
            wanted @ Backup::Wanted(_) => wanted,
        };
    }

    /// Somebody starts a copy of a worker's state on another machine, and throws it away after a while.
    pub(super) fn start_twin(self: &Arc<Self>, index: usize, how_long: Duration) {
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let seat = &this.workers[index];
            let life = Life::new();
            let wire = Wire {
                network: Arc::clone(&this.network),
                life: life.clone(),
                worker: index,
                home: Arc::default(),
            };
            let disk = seat.disk.copied().of(&life);
            let root = seat.root.with_extension("twin");
            let twin = this.worker(seat, wire, disk, &root, None);
            tracing::debug!(index, "a twin starts");
            seat.is_copied.store(true, Ordering::Relaxed);
            let running = life.spawn(twin.run(Shutdown::new()));
            if let Ok(ended) = tokio::time::timeout(how_long, running).await {
                tracing::debug!(index, ?ended, "a twin ended");
            }
            life.end();
        });
    }

    /// What the journals of machines that still exist hold, by path.
    pub(super) fn journals(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let living = self.workers.iter().filter(|seat| !seat.gone.load(Ordering::Relaxed));
        living
            .flat_map(|seat| seat.disk.below("/state/journal"))
            .filter(|(path, _)| path.extension().is_some_and(|e| e == "json"))
            .collect()
    }

    /// Kills a coordinator after so many more things it does.
    pub(super) fn crash_coordinator(&self, index: usize, steps: u64) {
        lock(&self.coordinator_lives[index]).light_fuse(steps);
    }

    /// Kills a worker after so many more things it does.
    pub(super) fn crash_worker(&self, index: usize, steps: u64, power: bool) {
        let seat = &self.workers[index];
        seat.loses_power.store(power, Ordering::Relaxed);
        lock(&seat.life).light_fuse(steps);
    }

    /// Asks a worker to end: SIGTERM, or a second one.
    pub(super) fn drain_worker(&self, index: usize, stop: bool) {
        let shutdown = lock(&self.workers[index].shutdown).clone();
        if stop {
            shutdown.stop();
        } else {
            shutdown.drain.cancel();
        }
    }

    /// A worker's machine is lost for good.
    pub(super) fn lose_worker(&self, index: usize) {
        self.workers[index].gone.store(true, Ordering::Relaxed);
        lock(&self.workers[index].life).end();
    }

    /// Nothing is broken any more and nothing will be.
    pub(super) fn heal(&self) {
        self.world.fate.set_calm(true);
        self.world.heal_store();
        self.network.heal();
        self.broker.heal();
        for life in &self.coordinator_lives {
            lock(life).light_fuse(u64::MAX);
        }
        for seat in &self.workers {
            seat.loses_power.store(false, Ordering::Relaxed);
            lock(&seat.life).light_fuse(u64::MAX);
        }
    }
}

impl WorkerSeat {
    /// After its death.
    fn put_back_if_wanted(&self) {
        let mut backup = lock(&self.backup);
        *backup = match std::mem::take(&mut *backup) {
            Backup::Wanted(disk) => {
                tracing::debug!(worker = %self.name, "its disk is put back from a backup");
                self.disk.put_back(&disk);
                self.is_copied.store(true, Ordering::Relaxed);
                Backup::None
            }
            other => other,
        };
    }
}

/// A valid name.
pub(super) fn name(text: &str) -> Name {
    #[allow(clippy::expect_used)]
    text.parse().expect("the names of the simulation are valid")
}
