//! What is really so, whatever the records say.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Mutex;
use std::time::Duration;

use forgeplane_core::Timestamp;
use forgeplane_core::digest::Digest;
use forgeplane_core::id::AttemptId;
use forgeplane_core::ports::{Clock, Entropy};
use tokio::time::Instant;

use super::fate::Fate;
use super::lock;

/// The world of one schedule.
pub(super) struct World {
    pub(super) fate: Fate,
    pub(super) planted: Option<Planted>,
    began: Instant,
    /// How far the database's clock is off, milliseconds.
    skew: Mutex<i64>,
    ledger: Mutex<BTreeMap<AttemptId, Deeds>>,
    counts: Mutex<Counts>,
    store_down_until: Mutex<Option<Instant>>,
}

/// A promise that the world breaks, to see that the verdict notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The disk says that a name lasts when it does not.
    ForgetfulDisk,
    /// The database commits a change although somebody else was there first.
    UncheckedStore,
    /// A tool outlives its worker, and sweeping does not find it.
    UndeadTool,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ForgetfulDisk, Self::UncheckedStore, Self::UndeadTool];
}

/// What tools did for one attempt.
#[derive(Debug, Clone, Default)]
pub(super) struct Deeds {
    /// How often an execution was begun: every one begins with `init`.
    pub(super) starts: u32,
    /// When something that changes infrastructure ran, how it ended (`None`: killed).
    pub(super) applies: Vec<Apply>,
    /// Documents whose save was answered.
    pub(super) saved: Vec<Digest>,
}

/// One `apply`.
#[derive(Debug, Clone)]
pub(super) struct Apply {
    pub(super) from: Duration,
    pub(super) until: Option<Duration>,
    pub(super) exit: Option<i32>,
}

/// What happened, for the report.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Lives that ended before their time.
    pub crashes: u64,
    /// Power losses among them.
    pub power_losses: u64,
    /// Messages of every kind that were lost or whose answer was.
    pub losses: u64,
    /// Requests and jobs that were delivered twice.
    pub duplicates: u64,
    /// Commits whose result was not told.
    pub unknown_commits: u64,
    /// Executions that were begun.
    pub starts: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        let Self { crashes, power_losses, losses, duplicates, unknown_commits, starts } = other;
        self.crashes += crashes;
        self.power_losses += power_losses;
        self.losses += losses;
        self.duplicates += duplicates;
        self.unknown_commits += unknown_commits;
        self.starts += starts;
    }
}

impl World {
    pub(super) fn new(seed: u64, planted: Option<Planted>) -> Self {
        Self {
            fate: Fate::new(seed),
            planted,
            began: Instant::now(),
            skew: Mutex::default(),
            ledger: Mutex::default(),
            counts: Mutex::default(),
            store_down_until: Mutex::default(),
        }
    }

    /// How long the world is old.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// The database's clock jumps.
    pub(super) fn skew_by(&self, millis: i64) {
        *lock(&self.skew) += millis;
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut lock(&self.counts));
    }

    pub(super) fn counts(&self) -> Counts {
        *lock(&self.counts)
    }

    /// Writes down what a tool does.
    pub(super) fn record(&self, attempt: AttemptId, change: impl FnOnce(&mut Deeds)) {
        change(lock(&self.ledger).entry(attempt).or_default());
    }

    pub(super) fn deeds(&self) -> BTreeMap<AttemptId, Deeds> {
        lock(&self.ledger).clone()
    }

    /// Whether a tool of this attempt runs that changes infrastructure.
    pub(super) fn is_at_work(&self, attempt: AttemptId) -> bool {
        lock(&self.ledger)
            .get(&attempt)
            .is_some_and(|deeds| deeds.applies.iter().any(|apply| apply.until.is_none()))
    }

    pub(super) fn take_store_down(&self, how_long: Duration) {
        *lock(&self.store_down_until) = Some(Instant::now() + how_long);
    }

    pub(super) fn heal_store(&self) {
        *lock(&self.store_down_until) = None;
    }

    pub(super) fn is_store_down(&self) -> bool {
        lock(&self.store_down_until).is_some_and(|until| Instant::now() < until)
    }
}

/// 2026-01-01; any day will do, as long as it is always the same.
const START: i64 = 1_767_225_600_000;

impl Clock for World {
    fn now(&self) -> Timestamp {
        let age = i64::try_from(self.age().as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(START + age + *lock(&self.skew)).unwrap_or(Timestamp::MAX)
    }
}

impl Entropy for World {
    fn fill(&self, bytes: &mut [u8]) {
        self.fate.fill(bytes);
    }
}
