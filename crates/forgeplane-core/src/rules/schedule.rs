//! Which run goes to which worker, and why the others wait (`spec.md` §6).
//!
//! One function decides and explains, so an explanation is never another opinion than the decision.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::lifecycle::{Command, after};
use super::{RunDraft, Settings, capacity, object, regression};
use crate::id::{AttemptId, InstanceId, OutboxId, ProjectId, RunId, WorkerId};
use crate::model::*;
use crate::refusal::{Code, Refusal};

/// A worker with its last contact.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The worker.
    pub worker: Versioned<Worker>,
    /// When it was last heard of.
    pub contact: Option<WorkerContact>,
}

/// What the scheduler looks at.
#[derive(Debug)]
pub struct View<'a> {
    /// Queued runs in queue order ([`crate::ports::Select::QueuedRuns`]).
    pub queued: &'a [Versioned<Run>],
    /// Every worker.
    pub workers: &'a [Candidate],
    /// Every open attempt.
    pub open: &'a [Versioned<Attempt>],
    /// System settings.
    pub settings: &'a Settings,
    /// Now.
    pub now: Timestamp,
}

/// A run, its worker and the place it takes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Position of the run in [`View::queued`].
    pub run: usize,
    /// Position of the worker in [`View::workers`].
    pub worker: usize,
    /// The worker's place.
    pub slot: u32,
}

/// Why a run waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum WaitReason {
    /// It waits for an approval decision.
    PendingApproval,
    /// It is offered to a worker that has not claimed it yet.
    Offered {
        /// The worker.
        worker: WorkerId,
        /// When the offer ends.
        until: Timestamp,
    },
    /// Another run that changes the instance comes first.
    InstanceBusy {
        /// That run.
        run: RunId,
        /// Its worker is missing and its outcome unknown.
        unresolved: bool,
    },
    /// The pool has no workers at all.
    NoWorkerInPool {
        /// The pool.
        pool: Name,
    },
    /// No worker of the pool advertises the tool.
    NoWorkerWithCapability {
        /// The pool.
        pool: Name,
        /// The tool.
        capability: Tool,
    },
    /// Every fitting worker is offline.
    AllOffline {
        /// How many there are.
        workers: usize,
    },
    /// Every connected fitting worker drains.
    AllDraining {
        /// How many there are.
        workers: usize,
    },
    /// Every fitting worker is at capacity.
    AllAtCapacity {
        /// How many there are.
        workers: usize,
    },
    /// `worker_max_concurrent_jobs` is 0.
    Paused,
    /// The store has lost commits: a worker holds an attempt that is not in it ([`super::regression`]).
    CommitsLost {
        /// The worker.
        worker: WorkerId,
        /// The attempt's fence.
        fence: Fence,
    },
    /// It will be placed in the next scheduler pass.
    Next,
}

impl WaitReason {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::PendingApproval => "pending_approval",
            Self::Offered { .. } => "offered",
            Self::InstanceBusy { .. } => "instance_busy",
            Self::NoWorkerInPool { .. } => "no_worker_in_pool",
            Self::NoWorkerWithCapability { .. } => "no_worker_with_capability",
            Self::AllOffline { .. } => "all_offline",
            Self::AllDraining { .. } => "all_draining",
            Self::AllAtCapacity { .. } => "all_at_capacity",
            Self::Paused => "paused",
            Self::CommitsLost { .. } => "commits_lost",
            Self::Next => "next",
        }
    }
}

impl std::fmt::Display for WaitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PendingApproval => f.write_str("it waits for an approval decision"),
            Self::Offered { worker, .. } => {
                write!(f, "it is offered to worker {worker}, which has not claimed it yet")
            }
            Self::InstanceBusy { run, unresolved: false } => write!(f, "instance busy with run {run}"),
            Self::InstanceBusy { run, unresolved: true } => {
                write!(
                    f,
                    "instance busy with run {run}, whose worker is missing: its execution is unresolved"
                )
            }
            Self::NoWorkerInPool { pool } => write!(f, "no worker in pool `{pool}`"),
            Self::NoWorkerWithCapability { pool, capability } => {
                write!(f, "no worker with capability `{capability}` in pool `{pool}`")
            }
            Self::AllOffline { workers } => write!(f, "all {workers} fitting workers are offline"),
            Self::AllDraining { workers } => write!(f, "all {workers} fitting workers are draining"),
            Self::AllAtCapacity { workers } => write!(f, "all {workers} fitting workers are at capacity"),
            Self::Paused => {
                f.write_str("nothing is started: the system setting `worker_max_concurrent_jobs` is 0")
            }
            Self::CommitsLost { worker, fence } => write!(
                f,
                "nothing is started: worker {worker} holds an attempt (fence {fence}) that the store does not know, so the store has lost commits; an administrator has to look and accept the loss"
            ),
            Self::Next => f.write_str("it is next: the scheduler will place it in its next pass"),
        }
    }
}

/// Decides every placement that is possible now: highest priority first; within a priority, the project
/// with the fewest open attempts first, then the oldest run.
#[must_use]
pub fn place(view: &View<'_>) -> (Vec<Placement>, BTreeMap<RunId, WaitReason>) {
    let mut pass = Pass::new(view);
    let mut waiting = BTreeMap::new();
    let mut placements = Vec::new();
    // A run whose queue timeout passed is left to the sweeper: offered again and again to a worker that never
    // claims, it would otherwise never leave the queue.
    let in_time = |run: &Run| run.queue_expires_at.is_none_or(|at| at > view.now);
    let mut rest: Vec<usize> = (0..view.queued.len()).filter(|index| in_time(&view.queued[*index])).collect();
    while let Some(position) = pass.pick(&rest) {
        let index = rest.remove(position);
        let run = &view.queued[index];
        match pass.try_place(run) {
            Ok((worker, slot)) => placements.push(Placement { run: index, worker, slot }),
            Err(reason) => {
                waiting.insert(run.id, reason);
            }
        }
    }
    (placements, waiting)
}

/// Why a run that is not placed waits; `None` if it does not wait for a worker.
#[must_use]
pub fn explain(view: &View<'_>, run: &Run) -> Option<WaitReason> {
    match run.status {
        RunStatus::PendingApproval => Some(WaitReason::PendingApproval),
        RunStatus::Queued => {
            if let Some(offer) = view.open.iter().find(|a| a.run == run.id) {
                return Some(WaitReason::Offered { worker: offer.worker, until: offer.offer_expires_at });
            }
            let (_, mut waiting) = place(view);
            Some(waiting.remove(&run.id).unwrap_or(WaitReason::Next))
        }
        _ => None,
    }
}

struct Pass<'a> {
    view: &'a View<'a>,
    taken: BTreeMap<WorkerId, BTreeSet<u32>>,
    load: BTreeMap<ProjectId, usize>,
    busy: BTreeMap<InstanceId, (RunId, bool)>,
    offered: BTreeSet<RunId>,
    lost: Option<(WorkerId, Fence)>,
}

impl<'a> Pass<'a> {
    fn new(view: &'a View<'a>) -> Self {
        let mut pass = Self {
            view,
            taken: BTreeMap::new(),
            load: BTreeMap::new(),
            busy: BTreeMap::new(),
            offered: BTreeSet::new(),
            lost: regression::found(view.workers.iter().map(|c| &c.worker.value)),
        };
        for attempt in view.open {
            pass.taken.entry(attempt.worker).or_default().insert(attempt.slot);
            *pass.load.entry(attempt.project).or_default() += 1;
            pass.offered.insert(attempt.run);
            if let Some(instance) = attempt.exclusive {
                pass.busy.insert(instance, (attempt.run, attempt.state == AttemptState::Unresolved));
            }
        }
        pass
    }

    /// The next run to look at: fair between projects within a priority.
    fn pick(&self, rest: &[usize]) -> Option<usize> {
        let top = self.view.queued[*rest.first()?].priority;
        let mut heads: BTreeMap<ProjectId, usize> = BTreeMap::new();
        for (position, index) in rest.iter().enumerate() {
            let run = &self.view.queued[*index];
            if run.priority != top {
                break;
            }
            heads.entry(run.project).or_insert(position);
        }
        // Ties go to the run that is first in queue order.
        heads
            .into_iter()
            .min_by_key(|(project, position)| (self.load.get(project).copied().unwrap_or(0), *position))
            .map(|(_, p)| p)
    }

    fn try_place(&mut self, run: &Run) -> Result<(usize, u32), WaitReason> {
        if let Some(offer) = self.view.open.iter().find(|a| a.run == run.id) {
            return Err(WaitReason::Offered { worker: offer.worker, until: offer.offer_expires_at });
        }
        if let Some((worker, fence)) = self.lost {
            return Err(WaitReason::CommitsLost { worker, fence });
        }
        let exclusive = run.operation.changes_infrastructure();
        if exclusive && let Some((by, unresolved)) = self.busy.get(&run.instance) {
            return Err(WaitReason::InstanceBusy { run: *by, unresolved: *unresolved });
        }
        let placed = self.find_worker(run);
        if exclusive {
            // Placed or not, it comes before later runs that change the same instance.
            self.busy.entry(run.instance).or_insert((run.id, false));
        }
        let (worker, slot) = placed?;
        self.taken.entry(self.view.workers[worker].worker.id).or_default().insert(slot);
        *self.load.entry(run.project).or_default() += 1;
        Ok((worker, slot))
    }

    /// The least loaded fitting worker, or why there is none.
    fn find_worker(&self, run: &Run) -> Result<(usize, u32), WaitReason> {
        let View { workers, settings, now, .. } = self.view;
        let in_pool: Vec<usize> = (0..workers.len())
            .filter(|w| workers[*w].worker.pool == run.pool && !workers[*w].worker.disconnected)
            .collect();
        if in_pool.is_empty() {
            return Err(WaitReason::NoWorkerInPool { pool: run.pool.clone() });
        }
        let capable: Vec<usize> =
            in_pool.into_iter().filter(|w| workers[*w].worker.capabilities.contains_key(&run.tool)).collect();
        if capable.is_empty() {
            return Err(WaitReason::NoWorkerWithCapability { pool: run.pool.clone(), capability: run.tool });
        }
        if settings.worker_max_concurrent_jobs == 0 {
            return Err(WaitReason::Paused);
        }
        let status = |w: &usize| {
            let candidate = &workers[*w];
            let open = self.taken.get(&candidate.worker.id).map_or(0, BTreeSet::len);
            (capacity::status(&candidate.worker, candidate.contact.as_ref(), open, settings, *now), open)
        };
        let count = capable.len();
        let best = capable.iter().filter(|w| status(w).0 == WorkerStatus::Idle).min_by_key(|w| status(w).1);
        if let Some(worker) = best {
            let taken = self.taken.get(&workers[*worker].worker.id);
            let slot = (0..).find(|slot| !taken.is_some_and(|t| t.contains(slot))).unwrap_or(0);
            return Ok((*worker, slot));
        }
        let connected: Vec<_> =
            capable.iter().map(|w| status(w).0).filter(|s| *s != WorkerStatus::Offline).collect();
        Err(if connected.is_empty() {
            WaitReason::AllOffline { workers: count }
        } else if connected.iter().all(|s| *s == WorkerStatus::Draining) {
            WaitReason::AllDraining { workers: connected.len() }
        } else {
            WaitReason::AllAtCapacity { workers: connected.len() }
        })
    }
}

/// Fresh ids for an offer.
#[derive(Debug, Clone, Copy)]
pub struct FreshIds {
    /// The attempt's.
    pub attempt: AttemptId,
    /// Its fence, allocated after the run was read.
    pub fence: Fence,
    /// The job message's.
    pub outbox: OutboxId,
}

/// Leases a run to a worker: attempt, fence, lease and job message in one changeset (`protocol.md` S1).
///
/// # Errors
/// When the run is no longer queued or its history says that the fence is not fresh.
#[allow(clippy::too_many_arguments)]
pub fn offer(
    run: &Versioned<Run>,
    snapshot: &Snapshot,
    state: Option<&StateObject>,
    worker: &Versioned<Worker>,
    slot: u32,
    ids: FreshIds,
    settings: &Settings,
    now: Timestamp,
) -> Result<Changeset, Refusal> {
    let mut draft = RunDraft::of(run, Actor::system("scheduler"), now);
    draft.step(Command::Offer)?;
    if state.is_some_and(|s| s.high_water >= ids.fence) {
        // A store restored from an old copy hands out fences again; writing with one would be refused later.
        return Err(Refusal::new(
            Code::FenceMismatch,
            "the allocated fence is not newer than the state's high-water mark",
        ));
    }
    draft.run.attempts += 1;
    draft.run.current_attempt = Some(ids.attempt);
    let attempt = Attempt {
        id: ids.attempt,
        run: run.id,
        project: run.project,
        number: draft.run.attempts,
        fence: ids.fence,
        worker: worker.id,
        slot,
        key: worker.key,
        state: AttemptState::Offered,
        exclusive: run.operation.changes_infrastructure().then_some(run.instance),
        state_object: run.state_object,
        base_generation: effective_base(run, snapshot, state),
        snapshot: run.snapshot,
        plan: run.plan.as_ref().map(|p| p.digest),
        offered_at: now,
        offer_expires_at: after(now, settings.offer_ttl),
        publications: 1,
        published_at: now,
        claim: None,
        deadline: None,
        unresolved_since: None,
        proposal: None,
        deadline_exceeded: false,
        stop: None,
        closed_at: None,
        closing: None,
        last_generation: None,
    };
    draft.event(
        EventKind::AttemptOffered,
        object([
            ("attempt", json!(attempt.id)),
            ("number", json!(attempt.number)),
            ("fence", json!(attempt.fence)),
            ("worker", json!(attempt.worker)),
        ]),
    );
    let mut changes = draft.finish();
    changes.check(worker);
    changes.outbox.push(OutboxMessage { id: ids.outbox, job: job(&attempt) });
    changes.insert(attempt);
    Ok(changes)
}

/// The job message of an attempt's current publication.
pub(crate) fn job(attempt: &Attempt) -> Job {
    Job {
        project: attempt.project,
        run: attempt.run,
        attempt: attempt.id,
        fence: attempt.fence,
        worker: attempt.worker,
        publication: attempt.publications,
    }
}

/// The generation the tool starts from: what admission captured, or, for a retried state writer, the newest
/// generation its own earlier attempts wrote while that is still the head (`protocol.md`, decision on open
/// question A). A plan-bound apply never continues: the tool would refuse the plan.
fn effective_base(run: &Run, snapshot: &Snapshot, state: Option<&StateObject>) -> u64 {
    match state {
        Some(state)
            if run.operation.writes_state()
                && run.plan.is_none()
                && state.head > snapshot.base_generation
                && state.head_run == Some(run.id) =>
        {
            state.head
        }
        _ => snapshot.base_generation,
    }
}
