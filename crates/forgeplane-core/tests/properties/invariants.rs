//! The invariants of `protocol.md` 1.12 that are visible in the store.

use std::collections::{BTreeMap, BTreeSet};

use forgeplane_core::digest::Digest;
use forgeplane_core::id::{AttemptId, RunId, StateObjectId};
use forgeplane_core::model::*;
use forgeplane_core::ports::{EventFilter, Page, Select, Store as _, StoreExt as _};

use crate::world::{Command, World};

/// What the last check saw; some invariants are about changes.
#[derive(Debug, Default)]
pub struct Seen {
    statuses: BTreeMap<RunId, RunStatus>,
    attempts: BTreeMap<AttemptId, Attempt>,
    receipts: BTreeMap<AttemptId, Digest>,
    heads: BTreeMap<StateObjectId, u64>,
}

pub async fn check(world: &mut World, command: &Command) {
    let runs = world.runs().await;
    let mut open_slots = BTreeSet::new();
    let mut exclusive = BTreeSet::new();
    let mut fences = BTreeSet::new();
    let mut now = Seen::default();
    for run in &runs {
        let attempts = world.attempts(run.id).await;
        attempts_in_order(run, &attempts);
        for attempt in &attempts {
            assert!(fences.insert(attempt.fence), "fence {} is used twice", attempt.fence);
            if attempt.is_open() {
                assert!(
                    open_slots.insert((attempt.worker, attempt.slot)),
                    "I2: two open attempts in one slot"
                );
                if let Some(instance) = attempt.exclusive {
                    assert!(exclusive.insert(instance), "I2: two open attempts change one instance");
                }
            }
            if let Some(before) = world.before.attempts.get(&attempt.id) {
                attempt_step(before, attempt);
            }
            if let Some(receipt) = receipt(world, attempt.id).await {
                if let Some(before) = world.before.receipts.get(&attempt.id) {
                    assert_eq!(*before, receipt.envelope_digest, "I5: a receipt changed");
                }
                assert_eq!(attempt.state, AttemptState::Closed, "I5: a receipted attempt is open");
                now.receipts.insert(attempt.id, receipt.envelope_digest);
            }
            now.attempts.insert(attempt.id, attempt.clone());
        }
        if let Some(before) = world.before.statuses.get(&run.id)
            && before.is_terminal()
            && *before != run.status
        {
            assert!(
                matches!(command, Command::Requeue(_)),
                "I13: {before} became {} by {command:?}",
                run.status
            );
            assert_eq!(run.status, RunStatus::Queued);
        }
        status_fits_attempts(world, run, &attempts).await;
        approved_before_claimed(world, run, &attempts).await;
        history(world, run).await;
        now.statuses.insert(run.id, run.status);
    }
    for (fence, nonces) in &world.granted {
        assert!(nonces.len() <= 1, "I1: fence {fence} was granted to {nonces:?}");
    }
    states(world, &mut now).await;
    live_promotions(&runs);
    outbox(world, &now).await;
    world.before = now;
}

async fn receipt(world: &World, attempt: AttemptId) -> Option<Receipt> {
    world.store.get_as::<Receipt>(attempt).await.unwrap().map(|r| r.value)
}

fn attempts_in_order(run: &Run, attempts: &[Attempt]) {
    assert_eq!(run.attempts as usize, attempts.len(), "the run counts its attempts");
    for (index, attempt) in attempts.iter().enumerate() {
        assert_eq!(attempt.number as usize, index + 1, "attempts are numbered 1, 2, …");
        if index > 0 {
            assert!(attempts[index - 1].fence < attempt.fence, "I8: fences grow with the attempts of a run");
        }
        assert!(!attempt.is_open() || index + 1 == attempts.len(), "I8: an older attempt is open");
    }
}

fn attempt_step(before: &Attempt, after: &Attempt) {
    use AttemptState as S;
    let allowed = match before.state {
        S::Offered => true,
        S::Claimed | S::Unresolved => after.state != S::Offered,
        S::Closed => after.state == S::Closed,
    };
    assert!(allowed, "I9: {:?} became {:?}", before.state, after.state);
    if before.claim.is_some() {
        assert_eq!(before.claim, after.claim, "a claim changed");
    }
    if before.state == S::Closed {
        assert_eq!(before, after, "a closed attempt changed");
    }
    if matches!(after.closing, Some(Closing::Revoked { .. })) {
        assert!(after.claim.is_none(), "I9: a claimed attempt was revoked");
    }
}

async fn status_fits_attempts(world: &World, run: &Run, attempts: &[Attempt]) {
    let last = attempts.last();
    match run.status {
        RunStatus::Running | RunStatus::Canceling => {
            let last = last.expect("a running run has an attempt");
            assert!(
                matches!(last.state, AttemptState::Claimed | AttemptState::Unresolved),
                "{} with an attempt that is {:?}",
                run.status,
                last.state
            );
        }
        RunStatus::Queued => {
            assert!(last.is_none_or(|a| matches!(a.state, AttemptState::Offered | AttemptState::Closed)));
        }
        RunStatus::Succeeded => {
            let last = last.expect("a succeeded run has an attempt");
            assert_eq!(run.current_attempt, Some(last.id));
            let receipt = receipt(world, last.id).await;
            let decision = world.store.get_as::<OperatorDecision>(last.id).await.unwrap();
            assert!(
                receipt.is_some_and(|r| r.outcome == OutcomeKind::Succeeded)
                    || decision.is_some_and(|d| d.confirmed_by.is_some()),
                "I7: succeeded without a receipt"
            );
        }
        _ => assert!(last.is_none_or(|a| !a.is_open()), "{} with an open attempt", run.status),
    }
}

/// I12: what a gated run was claimed for had been approved before, and nothing else.
async fn approved_before_claimed(world: &World, run: &Run, attempts: &[Attempt]) {
    let Some(id) = run.approval else { return };
    let approval = world.store.get_as::<Approval>(id).await.unwrap().unwrap();
    for (attempt, claim) in attempts.iter().filter_map(|a| Some((a, a.claim.as_ref()?))) {
        assert_eq!(approval.status, ApprovalStatus::Approved, "I12: claimed without an approval");
        assert!(approval.closed_at.unwrap() <= claim.at, "I12: claimed before it was approved");
        assert_eq!(approval.plan_digest, attempt.plan, "I12: another plan was approved");
        assert_eq!(approval.snapshot, attempt.snapshot, "I12: another snapshot was approved");
    }
}

/// The outbox announces attempts that exist, to the worker they are leased to.
async fn outbox(world: &World, now: &Seen) {
    for message in world.store.outbox(usize::MAX).await.unwrap() {
        let job = &message.job;
        let attempt = &now.attempts[&job.attempt];
        assert_eq!((job.run, job.fence, job.worker), (attempt.run, attempt.fence, attempt.worker));
        assert!((1..=attempt.publications).contains(&job.publication), "a publication nobody recorded");
    }
}

/// I18: the history has no gap, and the status is what the history says.
async fn history(world: &World, run: &Run) {
    let filter = EventFilter { project: None, run: Some(run.id) };
    let events = world.store.events(&filter, 0, usize::MAX).await.unwrap();
    let mut told = None;
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event.run_seq, index as u64 + 1, "a gap in the history");
        told = match event.kind {
            EventKind::ApprovalPending => Some(RunStatus::PendingApproval),
            EventKind::RunQueued => Some(RunStatus::Queued),
            EventKind::RunRunning => Some(RunStatus::Running),
            EventKind::RunCanceling => Some(RunStatus::Canceling),
            EventKind::RunSucceeded => Some(RunStatus::Succeeded),
            EventKind::RunFailed => Some(RunStatus::Failed),
            EventKind::RunCanceled => Some(RunStatus::Canceled),
            EventKind::RunTimedOut => Some(RunStatus::TimedOut),
            _ => told,
        };
    }
    assert_eq!(events.len() as u64, run.last_event);
    assert_eq!(told, Some(run.status), "the history tells another status");
}

/// I11: the head grows by one per accepted write, and generations have no gaps.
async fn states(world: &World, now: &mut Seen) {
    let instances = Select::Instances(world.alice.project);
    for instance in world.store.list_as::<Instance>(&instances, &Page::all()).await.unwrap() {
        let Some(id) = instance.state_object else { continue };
        let state = world.store.get_as::<StateObject>(id).await.unwrap().unwrap();
        let before = world.before.heads.get(&id).copied().unwrap_or(0);
        assert!(
            state.head == before || state.head == before + 1,
            "I11: the head jumped from {before} to {}",
            state.head
        );
        let generations =
            world.store.list_as::<StateGeneration>(&Select::Generations(id), &Page::all()).await.unwrap();
        let numbers: Vec<u64> = generations.iter().rev().map(|g| g.generation).collect();
        assert_eq!(numbers, (1..=state.head).collect::<Vec<_>>(), "I11: generations have gaps");
        let fences: Vec<_> = generations.iter().rev().filter_map(|g| g.writer.fence).collect();
        assert!(fences.is_sorted(), "I11: an older fence wrote after a newer one");
        now.heads.insert(id, state.head);
    }
}

fn live_promotions(runs: &[Run]) {
    let mut plans = BTreeSet::new();
    for run in runs.iter().filter(|r| !r.status.is_terminal()) {
        if let Some(plan) = &run.plan {
            assert!(plans.insert(plan.run), "two live promotions of one plan");
        }
    }
}
