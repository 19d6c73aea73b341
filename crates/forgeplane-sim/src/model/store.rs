//! The coordinators' store: real records, with the guards that every store has.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use forgeplane_core::digest::Digest;
use forgeplane_core::model::*;
use forgeplane_testkit::fixtures::Fixtures;
use jiff::Timestamp;

use super::{Limits, Statement};

/// Everything that is stored. Records are shared between states: most steps change few of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The one instance.
    pub instance: Arc<Versioned<Instance>>,
    /// Its state object.
    pub state: Arc<Versioned<StateObject>>,
    /// Runs.
    pub runs: Vec<Arc<Versioned<Run>>>,
    /// Their snapshots.
    pub snapshots: Vec<Arc<Snapshot>>,
    /// Attempts, in the order in which they were offered.
    pub attempts: Vec<Arc<Versioned<Attempt>>>,
    /// Workers.
    pub workers: Vec<Arc<Versioned<Worker>>>,
    /// Keys: first each worker's first, then those that took their place.
    pub keys: Vec<Arc<Versioned<WorkerKey>>>,
    /// State generations, oldest first.
    pub generations: Vec<Arc<StateGeneration>>,
    /// Receipts, by attempt.
    pub receipts: BTreeMap<u8, Arc<Receipt>>,
    /// Decisions, by attempt.
    pub decisions: BTreeMap<u8, Arc<OperatorDecision>>,
    /// Digests of late evidence, by attempt.
    pub late: BTreeMap<u8, Vec<Digest>>,
    /// Digests of documents that were kept aside.
    pub aside: Vec<Digest>,
    /// The newest fence.
    pub fence: u64,
}

impl Stored {
    pub(super) fn start(limits: Limits) -> Self {
        let make = Fixtures::new();
        let template = make.template(&make.project());
        let mut instance = make.instance(&template);
        let mut object = make.state_object(&instance);
        (object.head, object.high_water, object.digest, object.head_run) = (0, Fence(0), None, None);
        (object.lineage, object.serial, object.archived) = (None, 0, false);
        instance.state_object = Some(object.id);
        let runs: Vec<Run> = (0..limits.runs)
            .map(|_| Run {
                // It changes the instance and writes state, and needs no plan.
                operation: Operation::Destroy { mode: DestroyMode::Perform },
                ..make.run(&instance)
            })
            .collect();
        let snapshots = runs.iter().map(|run| Arc::new(make.snapshot(run, &instance))).collect();
        let (mut workers, mut keys) = (Vec::new(), Vec::new());
        for _ in 0..limits.workers {
            let mut worker = make.worker();
            let key = make.worker_key(&worker);
            worker.key = key.id;
            workers.push(first(worker));
            keys.push(first(key));
        }
        Self {
            instance: first(instance),
            state: first(object),
            runs: runs.into_iter().map(first).collect(),
            snapshots,
            attempts: Vec::new(),
            workers,
            keys,
            generations: Vec::new(),
            receipts: BTreeMap::new(),
            decisions: BTreeMap::new(),
            late: BTreeMap::new(),
            aside: Vec::new(),
            fence: 0,
        }
    }

    /// The place of an attempt's run.
    #[must_use]
    pub fn run_of(&self, attempt: u8) -> usize {
        let run = self.attempts[usize::from(attempt)].run;
        self.runs.iter().position(|it| it.id == run).unwrap_or(0)
    }

    /// The place of the run's current attempt.
    #[must_use]
    pub fn current_of(&self, run: usize) -> Option<u8> {
        let current = self.runs[run].current_attempt?;
        place(&self.attempts, |attempt| attempt.id == current)
    }

    /// Commits a changeset as a store would: every version and every guard holds, or nothing happens.
    pub(super) fn commit(&mut self, changes: Changeset, without_writer_slot: bool) -> bool {
        let mut next = self.clone();
        for put in changes.puts {
            if !next.put(put) {
                return false;
            }
        }
        if !next.is_guarded(without_writer_slot) {
            return false;
        }
        *self = next;
        true
    }

    fn put(&mut self, put: Put) -> bool {
        let expect = put.expect;
        macro_rules! replace {
            ($list:expr, $value:expr) => {{
                let value = $value;
                $list.iter_mut().find(|it| it.id == value.id).is_some_and(|slot| renew(slot, value, expect))
            }};
        }
        match (put.record, put.expect) {
            (Record::Run(mut run), _) => {
                // How long a run's history is decides nothing; states that differ only by it are one.
                run.last_event = 0;
                replace!(self.runs, run)
            }
            (Record::Attempt(attempt), Expect::Absent) => {
                self.attempts.push(first(attempt));
                true
            }
            (Record::Attempt(attempt), _) => replace!(self.attempts, attempt),
            (Record::Worker(worker), _) => replace!(self.workers, worker),
            (Record::WorkerKey(key), Expect::Absent) => {
                self.keys.push(first(key));
                true
            }
            (Record::WorkerKey(key), _) => replace!(self.keys, key),
            (Record::StateObject(object), _) => renew(&mut self.state, object, expect),
            (Record::Instance(instance), _) => renew(&mut self.instance, instance, expect),
            (Record::StateGeneration(generation), _) => {
                self.generations.push(Arc::new(generation));
                true
            }
            (Record::Receipt(receipt), _) => {
                let attempt = self.place_of(receipt.attempt);
                self.receipts.insert(attempt, Arc::new(receipt)).is_none()
            }
            (Record::OperatorDecision(decision), _) => {
                let attempt = self.place_of(decision.attempt);
                self.decisions.insert(attempt, Arc::new(decision)).is_none()
            }
            (Record::LateEvidence(late), _) => {
                let attempt = self.place_of(late.attempt);
                self.late.entry(attempt).or_default().push(late.envelope_digest);
                true
            }
            (Record::OrphanState(orphan), _) => {
                self.aside.push(orphan.digest);
                true
            }
            (other, _) => unreachable!("no rule of the model writes a {:?}", other.key().kind),
        }
    }

    fn place_of(&self, attempt: forgeplane_core::id::AttemptId) -> u8 {
        place(&self.attempts, |it| it.id == attempt).unwrap_or(u8::MAX)
    }

    /// The constraints of every store, as far as the model has their records.
    fn is_guarded(&self, without_writer_slot: bool) -> bool {
        let open: Vec<_> = self.attempts.iter().filter(|a| a.is_open()).collect();
        let apart = |same: &dyn Fn(&Attempt, &Attempt) -> bool| {
            open.iter().enumerate().all(|(index, one)| open[..index].iter().all(|other| !same(one, other)))
        };
        let fences = self.attempts.iter().enumerate();
        let unique = |(index, one): (usize, &Arc<Versioned<Attempt>>)| {
            self.attempts[..index].iter().all(|other| other.fence != one.fence)
        };
        apart(&|one: &Attempt, other: &Attempt| one.run == other.run)
            && apart(&|one: &Attempt, other: &Attempt| (one.worker, one.slot) == (other.worker, other.slot))
            && (without_writer_slot
                || apart(&|one: &Attempt, other: &Attempt| {
                    one.exclusive.is_some() && one.exclusive == other.exclusive
                }))
            && { fences }.all(unique)
    }
}

/// Replaces a record if it is at the expected version.
fn renew<T>(slot: &mut Arc<Versioned<T>>, value: T, expect: Expect) -> bool {
    let expected = expect == Expect::Version(slot.version);
    if expected {
        *slot = Arc::new(Versioned { value, version: slot.version + 1 });
    }
    expected
}

/// The place of the first that fits.
pub(super) fn place<T>(list: &[Arc<Versioned<T>>], fits: impl Fn(&T) -> bool) -> Option<u8> {
    list.iter().position(|it| fits(&it.value)).and_then(|index| u8::try_from(index).ok())
}

fn first<T>(value: T) -> Arc<Versioned<T>> {
    Arc::new(Versioned { value, version: 1 })
}

/// A statement's digest.
pub(super) fn digest(statement: &Statement) -> Digest {
    let Statement { attempt, nonce, kind, key } = statement;
    Digest::of(&[*attempt, *nonce, *kind as u8, *key])
}

/// Only what rules and properties look at; times say nothing that the order of steps does not.
impl Hash for Stored {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for run in &self.runs {
            (run.status, run.current_attempt, run.attempts, run.not_started).hash(hasher);
            run.stop.as_ref().map(|stop| stop.cause).hash(hasher);
            run.error.as_ref().map(|error| &error.code).hash(hasher);
        }
        for attempt in &self.attempts {
            (attempt.run, attempt.worker, attempt.slot, attempt.fence, attempt.key).hash(hasher);
            (attempt.state, attempt.base_generation, attempt.last_generation, attempt.stop).hash(hasher);
            attempt.claim.as_ref().map(|claim| (claim.nonce, claim.incarnation)).hash(hasher);
            attempt.proposal.is_some().hash(hasher);
            match &attempt.closing {
                None => 0_u8.hash(hasher),
                Some(Closing::Receipted { envelope, outcome }) => (1_u8, envelope, outcome).hash(hasher),
                Some(Closing::Revoked { reason }) => (2_u8, reason).hash(hasher),
                Some(Closing::Decided { outcome }) => (3_u8, outcome).hash(hasher),
            }
        }
        for worker in &self.workers {
            (worker.incarnation, worker.key, worker.disconnected).hash(hasher);
            worker.quarantined.hash(hasher);
        }
        for key in &self.keys {
            (key.worker, key.status).hash(hasher);
        }
        (self.state.head, self.state.high_water, self.state.digest, self.state.head_run).hash(hasher);
        for generation in &self.generations {
            (generation.generation, generation.digest, generation.writer.attempt).hash(hasher);
        }
        for (attempt, receipt) in &self.receipts {
            (attempt, receipt.envelope_digest, receipt.outcome).hash(hasher);
        }
        for (attempt, decision) in &self.decisions {
            (attempt, decision.outcome).hash(hasher);
        }
        self.late.hash(hasher);
        self.aside.hash(hasher);
        self.fence.hash(hasher);
    }
}

/// When everything happens, but for what waits for time to pass.
pub(super) const NOW: Timestamp = Timestamp::UNIX_EPOCH;
