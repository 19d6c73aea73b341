//! Deterministic simulation: the production coordinator and the production worker in a world that is made up.
//!
//! Time, network, broker, database connection, disk and tools are simulated; everything between is the code that runs
//! in production: [`Coordinator`](forgeplane_core::coordinator::Coordinator) with its loops,
//! [`Worker`](forgeplane_worker::Worker) with its journal, Terraform executor, state server and log shipping. One seed
//! decides everything that is left to chance, and one thread runs it, so a schedule that fails fails again from its
//! seed.
//!
//! | file | holds |
//! | --- | --- |
//! | `fate` | the dice |
//! | `life` | processes, which can be killed between any two things they do |
//! | `disk` | what a power loss leaves of a worker's files: torn and lost writes |
//! | `store` | the database connection: outages, commits whose result is not known, or that happen later |
//! | `broker`, `wire` | messages lost, repeated, delayed, reordered; lines that are cut in one direction or both |
//! | `machine`, `tool` | a worker's machine and a Terraform that only changes the world's ledger |
//! | `people`, `chaos` | who uses the installation and what breaks it |
//! | `verdict` | the records compared with what really happened |
//!
//! ```
//! let schedule = forgeplane_sim::simulation::run(7)?;
//! assert!(schedule.violations.is_empty(), "{:#?}", schedule.violations);
//! # Ok::<_, std::io::Error>(())
//! ```

mod broker;
mod chaos;
mod cluster;
mod disk;
mod fate;
mod life;
mod machine;
mod people;
mod store;
mod tool;
mod verdict;
mod wire;
mod world;

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forgeplane_core::digest::Digest;
use futures_util::future::join_all;

use cluster::{Cluster, Jobs};
use people::People;
use world::World;

pub use world::{Counts, Planted};

/// How long everything may take once nothing is broken any more, simulated.
const PATIENCE: Duration = Duration::from_secs(900);

/// Locks: one thread runs a schedule, and a panic in it ends the schedule.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What came of one schedule.
#[derive(Debug, Clone)]
pub struct Schedule {
    /// Where it came from.
    pub seed: u64,
    /// Everything that must not be.
    pub violations: Vec<String>,
    /// What happened.
    pub counts: Counts,
    /// Comparisons of records with each other and with the world.
    pub compared: u64,
    /// Attempts.
    pub attempts: u64,
    /// Receipts.
    pub receipts: u64,
    /// The most starts of one attempt.
    pub most_starts: u32,
    /// Digest over the history: two runs of a seed have the same.
    pub history: Digest,
    /// How much time passed in the simulation.
    pub simulated: Duration,
}

/// Runs the schedule of a seed.
///
/// # Errors
/// When the simulation itself cannot run: no directory for workspaces, no runtime.
pub fn run(seed: u64) -> io::Result<Schedule> {
    run_with(seed, None)
}

/// Runs the schedule of a seed in a world that breaks a promise.
///
/// # Errors
/// As [`run`].
pub fn run_with(seed: u64, planted: Option<Planted>) -> io::Result<Schedule> {
    let memory = Path::new("/dev/shm");
    let mut directory = tempfile::Builder::new();
    directory.prefix("fp-sim-");
    let directory = if memory.is_dir() { directory.tempdir_in(memory) } else { directory.tempdir() }?;
    let tool = directory.path().join("terraform");
    std::fs::write(&tool, "a tool that only the simulation can run")?;
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(schedule(seed, planted, directory.path(), &tool)))
}

async fn schedule(seed: u64, planted: Option<Planted>, directory: &Path, tool: &Path) -> Schedule {
    let world = Arc::new(World::new(seed, planted));
    let fate = &world.fate;
    let coordinators = 1 + usize::from(fate.happens(700));
    let workers = 1 + usize::try_from(fate.below(3)).unwrap_or(0);
    let jobs = if fate.happens(700) { Jobs::Broker } else { Jobs::Outbox };
    let (instances, rounds) = (1 + fate.below(2), 1 + fate.below(2));
    let cluster =
        Arc::new(Cluster::new(Arc::clone(&world), coordinators, workers, jobs, directory, tool.to_owned()));
    for index in 0..coordinators {
        tokio::spawn(Arc::clone(&cluster).keep_coordinator(index));
    }
    let mut verdict = match People::move_in(Arc::clone(&cluster), instances).await {
        Ok((people, tokens)) => {
            for (index, token) in tokens.into_iter().enumerate() {
                tokio::spawn(Arc::clone(&cluster).keep_worker(index, token));
            }
            tokio::spawn(people.clone().resolve_forever());
            live(&cluster, &people, instances, rounds).await
        }
        Err(error) => {
            let mut verdict = verdict::Verdict::new();
            verdict.violations.push(format!("nothing works at all: {error}"));
            verdict
        }
    };
    verdict.violations.dedup();
    Schedule {
        seed,
        violations: verdict.violations,
        counts: world.counts(),
        compared: verdict.compared,
        attempts: verdict.attempts,
        receipts: verdict.receipts,
        most_starts: verdict.most_starts,
        history: verdict.history,
        simulated: world.age(),
    }
}

/// Work under chaos, then peace until nothing is left to do, then judgement.
async fn live(cluster: &Arc<Cluster>, people: &People, instances: u64, rounds: u64) -> verdict::Verdict {
    let delivered = join_all((0..instances).map(|i| tokio::spawn(people.clone().deliver(i, rounds))));
    let how_long = Duration::from_secs(5) + cluster.world.fate.millis(25_000);
    let end = async {
        chaos::reign(cluster, people, how_long).await;
        cluster.heal();
    };
    let peace = async {
        let (done, ()) = tokio::join!(delivered, end);
        for done in done {
            if let Err(error) = done {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        while !verdict::is_quiet(cluster, people).await {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let ended = tokio::time::timeout(how_long + PATIENCE, peace).await;
    let mut verdict = verdict::judge(cluster, people).await;
    if ended.is_err() {
        verdict.violations.push(format!("L: not at rest {} s after the last fault", PATIENCE.as_secs()));
    }
    verdict
}
