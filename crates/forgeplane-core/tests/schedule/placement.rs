//! The rule by itself: order, fairness, capacity, exclusivity.

use std::collections::BTreeMap;
use std::time::Duration;

use forgeplane_core::digest::Digest;
use forgeplane_core::id::{AttemptId, InstanceId, ProjectId, RunId, WorkerId};
use forgeplane_core::model::*;
use forgeplane_core::rules::Settings;
use forgeplane_core::rules::schedule::{Candidate, Placement, View, WaitReason, place};
use proptest::prelude::*;

use crate::support::{name, start_of_time};

/// An id that sorts by its number.
macro_rules! id {
    ($kind:ident, $n:expr) => {{
        let n = u64::try_from($n).unwrap();
        $kind::new(start_of_time() + Duration::from_millis(n), [0; 10])
    }};
}

pub fn run(n: usize) -> Versioned<Run> {
    let value = Run {
        id: id!(RunId, n),
        project: id!(ProjectId, 0),
        instance: id!(InstanceId, n),
        operation: Operation::PlanOnly,
        tool: Tool::Terraform,
        pool: name("default"),
        status: RunStatus::Queued,
        snapshot: Digest::of(b"snapshot"),
        state_object: None,
        requested_by: Actor::system("test"),
        created_at: start_of_time(),
        priority: 0,
        queued_at: Some(start_of_time()),
        queue_expires_at: None,
        started_at: None,
        finished_at: None,
        plan: None,
        promoted_to: None,
        approval: None,
        current_attempt: None,
        attempts: 0,
        not_started: 0,
        stop: None,
        error: None,
        summary: None,
        last_event: 2,
    };
    Versioned { value, version: 1 }
}

pub fn worker(n: usize, max_jobs: u32) -> Candidate {
    let id = id!(WorkerId, n);
    let value = Worker {
        id,
        name: name(&format!("w{n}")),
        pool: name("default"),
        capabilities: BTreeMap::from([(Tool::Terraform, "1.11.4".to_owned())]),
        max_jobs,
        unsafe_no_isolation: false,
        draining: false,
        rotate_key: false,
        disconnected: false,
        quarantined: None,
        lost: None,
        incarnation: 1,
        session: Digest::of(b"session"),
        session_certificate: None,
        session_expires_at: start_of_time(),
        key: Digest::of(b"key"),
        registered_at: start_of_time(),
    };
    let contact = WorkerContact {
        newest: Fence::default(),
        worker: id,
        incarnation: 1,
        last_seen: start_of_time(),
        held: vec![],
        draining: false,
        short_of: None,
    };
    Candidate { worker: Versioned { value, version: 1 }, contact: Some(contact) }
}

pub fn attempt(of: &Run, on: &Candidate, slot: u32) -> Versioned<Attempt> {
    let value = Attempt {
        id: AttemptId::new(of.id_time(), [0; 10]),
        run: of.id,
        project: of.project,
        number: 1,
        fence: Fence(1),
        worker: on.worker.id,
        slot,
        key: on.worker.key,
        state: AttemptState::Claimed,
        exclusive: of.operation.changes_infrastructure().then_some(of.instance),
        state_object: None,
        base_generation: 0,
        snapshot: of.snapshot,
        plan: None,
        offered_at: start_of_time(),
        offer_expires_at: start_of_time() + Duration::from_secs(60),
        publications: 1,
        published_at: start_of_time(),
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
    Versioned { value, version: 1 }
}

trait IdTime {
    fn id_time(&self) -> forgeplane_core::Timestamp;
}

impl IdTime for Run {
    fn id_time(&self) -> forgeplane_core::Timestamp {
        self.created_at
    }
}

/// Runs are given in queue order: the store's part.
fn decide(
    queued: &[Versioned<Run>],
    workers: &[Candidate],
    open: &[Versioned<Attempt>],
    settings: &Settings,
) -> (Vec<Placement>, BTreeMap<RunId, WaitReason>) {
    place(&View { queued, workers, open, settings, now: start_of_time() })
}

fn placed(queued: &[Versioned<Run>], workers: &[Candidate], open: &[Versioned<Attempt>]) -> Vec<usize> {
    decide(queued, workers, open, &Settings::default()).0.iter().map(|p| p.run).collect()
}

#[test]
fn a_higher_priority_comes_first_and_then_the_older_run() {
    let mut queued = vec![run(0), run(1), run(2)];
    queued[0].value.priority = 5;
    assert_eq!(placed(&queued, &[worker(0, 2)], &[]), [0, 1]);
    // The queue order is the store's; within one priority the first one is the oldest.
    assert_eq!(placed(&queued[1..], &[worker(0, 1)], &[]), [0]);
}

#[test]
fn projects_take_turns_within_a_priority() {
    let mut queued: Vec<_> = (0..8).map(run).collect();
    for (index, run) in queued.iter_mut().enumerate() {
        run.value.project = id!(ProjectId, usize::from(index >= 6));
    }
    // Six runs of one project do not keep the two of the other one waiting.
    assert_eq!(placed(&queued, &[worker(0, 4)], &[]), [0, 6, 1, 7]);
    // What already runs counts.
    let busy: Vec<_> = (0..2).map(|n| attempt(&run(20 + n), &worker(9, 8), n as u32)).collect();
    assert_eq!(placed(&queued, &[worker(0, 3)], &busy), [6, 7, 0]);
    // Fairness does not outweigh priority.
    for run in &mut queued[..6] {
        run.value.priority = 1;
    }
    assert_eq!(placed(&queued, &[worker(0, 4)], &[]), [0, 1, 2, 3]);
}

#[test]
fn work_is_spread_over_the_least_loaded_workers() {
    let queued: Vec<_> = (0..4).map(run).collect();
    let workers = [worker(0, 3), worker(1, 3)];
    let (placements, _) = decide(&queued, &workers, &[], &Settings::default());
    let on: Vec<_> = placements.iter().map(|p| (p.worker, p.slot)).collect();
    assert_eq!(on, [(0, 0), (1, 0), (0, 1), (1, 1)]);
}

#[test]
fn a_slot_that_is_taken_is_not_given_again() {
    let workers = [worker(0, 3)];
    let open = [attempt(&run(10), &workers[0], 0), attempt(&run(11), &workers[0], 2)];
    let (placements, _) = decide(&[run(0), run(1)], &workers, &open, &Settings::default());
    assert_eq!(placements, [Placement { run: 0, worker: 0, slot: 1 }]);
}

#[test]
fn d13_capacity_is_the_lower_of_report_and_setting() {
    let queued: Vec<_> = (0..60).map(run).collect();
    for (reported, setting, expected) in [(50, 8, 8), (50, 1, 1), (2, 8, 2), (u32::MAX, 3, 3), (5, 0, 0)] {
        let settings = Settings { worker_max_concurrent_jobs: setting, ..Settings::default() };
        let (placements, _) = decide(&queued, &[worker(0, reported)], &[], &settings);
        assert_eq!(placements.len(), expected, "reported {reported}, setting {setting}");
    }
}

#[test]
fn writers_of_an_instance_go_one_after_the_other_in_queue_order() {
    let mut queued: Vec<_> = (0..4).map(run).collect();
    for run in &mut queued {
        run.value.instance = id!(InstanceId, 0);
        run.value.operation = Operation::Teardown;
    }
    queued[1].value.operation = Operation::Plan { destroy: false };
    queued[3].value.instance = id!(InstanceId, 1);
    let workers = [worker(0, 8)];
    let (placements, waiting) = decide(&queued, &workers, &[], &Settings::default());
    // The first writer, the reader beside it, the other instance's writer.
    assert_eq!(placements.iter().map(|p| p.run).collect::<Vec<_>>(), [0, 1, 3]);
    assert_eq!(waiting[&queued[2].id], WaitReason::InstanceBusy { run: queued[0].id, unresolved: false });

    // An earlier writer that finds no worker still comes first.
    queued[0].value.pool = name("elsewhere");
    let (placements, waiting) = decide(&queued, &workers, &[], &Settings::default());
    assert_eq!(placements.iter().map(|p| p.run).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(waiting[&queued[0].id], WaitReason::NoWorkerInPool { pool: name("elsewhere") });
    assert_eq!(waiting[&queued[2].id], WaitReason::InstanceBusy { run: queued[0].id, unresolved: false });

    // Readers run beside an open writer, and beside each other.
    let writer = attempt(&queued[2], &workers[0], 0);
    let mut readers: Vec<_> = (20..23).map(run).collect();
    for run in &mut readers {
        run.value.instance = id!(InstanceId, 0);
    }
    assert_eq!(placed(&readers, &workers, &[writer]), [0, 1, 2]);
}

#[test]
fn a_run_whose_queue_timeout_passed_takes_nobodys_place() {
    let mut queued = vec![run(0), run(1)];
    for run in &mut queued {
        run.value.instance = id!(InstanceId, 0);
        run.value.operation = Operation::Teardown;
    }
    queued[0].value.queue_expires_at = Some(start_of_time());
    assert_eq!(placed(&queued, &[worker(0, 1)], &[]), [1]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// T-120: whatever is queued and open, no pass gives a worker more than it can take, a place twice, or an
    /// instance to two writers; and every run is placed or told why not.
    #[test]
    fn t120_no_pass_exceeds_a_capacity_or_an_instance(
        runs in prop::collection::vec((0_usize..3, 0_usize..4, any::<bool>(), -1_i32..2, any::<bool>()), 0..30),
        workers in prop::collection::vec((0_u32..6, 0_u8..5), 0..5),
        setting in 0_u32..5,
        open in prop::collection::vec((0_usize..5, 0_u32..6, 0_usize..4), 0..8),
    ) {
        let mut queued: Vec<_> = runs.iter().enumerate().map(|(n, (project, instance, writes, priority, elsewhere))| {
            let mut it = run(n);
            it.value.project = id!(ProjectId, *project);
            it.value.instance = id!(InstanceId, *instance);
            it.value.operation = if *writes { Operation::Teardown } else { Operation::Preview };
            it.value.priority = *priority;
            it.value.pool = name(if *elsewhere { "elsewhere" } else { "default" });
            it
        }).collect();
        queued.sort_by_key(|r| (std::cmp::Reverse(r.priority), r.id));
        let candidates: Vec<_> = workers.iter().enumerate().map(|(n, (max_jobs, kind))| {
            let mut it = worker(n, *max_jobs);
            it.worker.value.draining = *kind == 1;
            it.worker.value.disconnected = *kind == 2;
            it.contact = it.contact.filter(|_| *kind != 3);
            it
        }).collect();
        let mut taken = std::collections::BTreeSet::new();
        let mut busy = std::collections::BTreeSet::new();
        let mut running = Vec::new();
        for (n, (on, slot, instance)) in open.iter().enumerate() {
            if let Some(candidate) = candidates.get(*on)
                && !taken.contains(&(*on, *slot))
                && busy.insert(*instance)
            {
                taken.insert((*on, *slot));
                let mut of = run(100 + n);
                of.value.instance = id!(InstanceId, *instance);
                of.value.operation = Operation::Teardown;
                running.push(attempt(&of, candidate, *slot));
            }
        }
        let settings = Settings { worker_max_concurrent_jobs: setting, ..Settings::default() };
        let (placements, waiting) = decide(&queued, &candidates, &running, &settings);
        prop_assert_eq!(placements.len() + waiting.len(), queued.len());
        let mut instances: std::collections::BTreeSet<_> =
            running.iter().filter_map(|a| a.exclusive).collect();
        for Placement { run, worker, slot } in &placements {
            let (run, candidate) = (&queued[*run], &candidates[*worker]);
            prop_assert!(taken.insert((*worker, *slot)), "a place was given twice");
            prop_assert!(!candidate.worker.draining && !candidate.worker.disconnected && candidate.contact.is_some());
            prop_assert_eq!(&candidate.worker.pool, &run.pool);
            if run.operation.changes_infrastructure() {
                prop_assert!(instances.insert(run.instance), "an instance has two writers");
            }
            let load = taken.iter().filter(|(on, _)| on == worker).count();
            prop_assert!(load <= candidate.worker.max_jobs.min(setting) as usize, "over capacity");
            let before = running.iter().filter(|a| a.worker == candidate.worker.id).count();
            if before == 0 {
                prop_assert!(*slot < candidate.worker.max_jobs.min(setting));
            }
        }
    }
}
