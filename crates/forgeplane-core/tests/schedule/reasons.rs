//! T-117: a run that waits says why, and it is the truth.

use std::time::Duration;

use forgeplane_core::model::*;
use forgeplane_core::rules::Settings;
use forgeplane_core::rules::schedule::{Candidate, View, WaitReason, explain};

use crate::placement::{attempt, run, worker};
use crate::support::{name, start_of_time};

/// Asks about the last queued run; the text must not be empty, and the code must be the reason's own.
fn why(queued: &[Versioned<Run>], workers: &[Candidate], open: &[Versioned<Attempt>]) -> Option<WaitReason> {
    let settings = Settings::default();
    let view = View { queued, workers, open, settings: &settings, now: start_of_time() };
    let reason = explain(&view, queued.last().unwrap());
    if let Some(reason) = &reason {
        assert!(reason.to_string().len() > 10);
        let json = serde_json::to_value(reason).unwrap();
        assert_eq!(json["code"], reason.code());
    }
    reason
}

#[test]
fn t117_a_run_that_waits_for_approval_says_so() {
    let mut waiting = run(0);
    waiting.value.status = RunStatus::PendingApproval;
    assert_eq!(why(&[waiting], &[worker(0, 1)], &[]), Some(WaitReason::PendingApproval));
}

#[test]
fn t117_an_offer_that_is_not_claimed_yet_is_named() {
    let (queued, on) = (run(0), worker(0, 1));
    let mut offer = attempt(&queued, &on, 0);
    offer.value.state = AttemptState::Offered;
    let until = start_of_time() + Duration::from_secs(60);
    let expected = WaitReason::Offered { worker: on.worker.id, until };
    assert_eq!(why(&[queued], &[on], &[offer]), Some(expected));
}

#[test]
fn b13_a_store_that_lost_commits_is_named_and_nothing_is_placed() {
    let (mut one, other) = (worker(0, 1), worker(1, 1));
    one.worker.value.lost = Some(Fence(12));
    let expected = WaitReason::CommitsLost { worker: one.worker.id, fence: Fence(12) };
    let reason = why(&[run(0)], &[one.clone(), other.clone()], &[]);
    assert_eq!(reason, Some(expected));
    assert!(reason.unwrap().to_string().contains("lost commits"));
    // One that is out of service has no say.
    one.worker.value.disconnected = true;
    assert_eq!(why(&[run(0)], &[one, other], &[]), Some(WaitReason::Next));
}

#[test]
fn t117_a_busy_instance_names_the_run_that_has_it() {
    let (on, mut holder, mut next) = (worker(0, 4), run(0), run(1));
    for run in [&mut holder, &mut next] {
        run.value.operation = Operation::Teardown;
    }
    next.value.instance = holder.instance;
    let mut held = attempt(&holder, &on, 0);
    let expected = |unresolved| Some(WaitReason::InstanceBusy { run: holder.id, unresolved });
    let workers = [on];
    assert_eq!(why(&[next.clone()], &workers, &[held.clone()]), expected(false));
    // T-003: a holder that is gone is told apart from one that works.
    held.value.state = AttemptState::Unresolved;
    let reason = why(&[next.clone()], &workers, &[held]);
    assert_eq!(reason, expected(true));
    assert!(reason.unwrap().to_string().contains("unresolved"));
    // One that is only before it in the queue counts as well.
    assert_eq!(why(&[holder.clone(), next], &workers, &[]), expected(false));
}

#[test]
fn t117_a_pool_without_workers_is_named() {
    let reason = Some(WaitReason::NoWorkerInPool { pool: name("default") });
    assert_eq!(why(&[run(0)], &[], &[]), reason);
    let (mut elsewhere, mut gone) = (worker(0, 1), worker(1, 1));
    elsewhere.worker.value.pool = name("other");
    gone.worker.value.disconnected = true;
    assert_eq!(why(&[run(0)], &[elsewhere, gone], &[]), reason);
}

#[test]
fn t117_a_missing_capability_is_named() {
    let mut queued = run(0);
    queued.value.tool = Tool::Tofu;
    let expected = WaitReason::NoWorkerWithCapability { pool: name("default"), capability: Tool::Tofu };
    let mut nothing = worker(1, 1);
    nothing.worker.value.capabilities.clear();
    assert_eq!(why(&[queued.clone()], &[worker(0, 1), nothing], &[]), Some(expected.clone()));
    assert_eq!(expected.to_string(), "no worker with capability `tofu` in pool `default`");
}

#[test]
fn t117_workers_that_are_offline_are_counted() {
    let (mut silent, mut new, mut ill) = (worker(0, 1), worker(1, 1), worker(2, 1));
    silent.contact.as_mut().unwrap().last_seen = start_of_time() - Duration::from_secs(31);
    new.contact = None;
    ill.worker.value.quarantined = Some("dirty_uid".to_owned());
    assert_eq!(why(&[run(0)], &[silent, new, ill], &[]), Some(WaitReason::AllOffline { workers: 3 }));
}

#[test]
fn t117_workers_that_drain_are_counted() {
    let (mut one, mut two, mut silent) = (worker(0, 1), worker(1, 1), worker(2, 1));
    one.worker.value.draining = true;
    two.worker.value.draining = true;
    silent.contact = None;
    assert_eq!(why(&[run(0)], &[one, two, silent], &[]), Some(WaitReason::AllDraining { workers: 2 }));
}

#[test]
fn t117_workers_at_capacity_are_counted() {
    let workers = [worker(0, 1), worker(1, 2)];
    let open = [
        attempt(&run(10), &workers[0], 0),
        attempt(&run(11), &workers[1], 0),
        attempt(&run(12), &workers[1], 1),
    ];
    assert_eq!(why(&[run(0)], &workers, &open), Some(WaitReason::AllAtCapacity { workers: 2 }));
    // One place is free, but somebody else is first.
    assert_eq!(why(&[run(0), run(1)], &workers, &open[..2]), Some(WaitReason::AllAtCapacity { workers: 2 }));
}

#[test]
fn t117_a_pause_is_named() {
    let settings = Settings { worker_max_concurrent_jobs: 0, ..Settings::default() };
    let (queued, workers) = ([run(0)], [worker(0, 1)]);
    let view =
        View { queued: &queued, workers: &workers, open: &[], settings: &settings, now: start_of_time() };
    assert_eq!(explain(&view, &queued[0]), Some(WaitReason::Paused));
    // What would keep it waiting all the same comes first.
    let nobody = View { workers: &[], ..view };
    assert!(matches!(explain(&nobody, &queued[0]), Some(WaitReason::NoWorkerInPool { .. })));
}

#[test]
fn t117_a_run_that_is_next_says_so_and_one_that_runs_waits_for_nothing() {
    assert_eq!(why(&[run(0)], &[worker(0, 1)], &[]), Some(WaitReason::Next));
    for status in RunStatus::ALL {
        if !matches!(status, RunStatus::Queued | RunStatus::PendingApproval) {
            let mut it = run(0);
            it.value.status = status;
            assert_eq!(why(&[it], &[worker(0, 1)], &[]), None, "{status}");
        }
    }
}
