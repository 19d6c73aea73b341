//! The execution fence.

use std::sync::atomic::Ordering;

use forgeplane_core::Code;
use forgeplane_core::model::*;
use forgeplane_core::ports::{AttemptRef, ControlPlane as _};

use crate::support::*;

const DESTROY: Operation = Operation::Destroy { mode: DestroyMode::Perform };

#[tokio::test]
async fn the_same_nonce_gets_the_same_grant_and_another_none() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::PlanOnly).await;
    world.step().await;
    let mut work = worker.claim_next().await;
    let before = world.store.commits();
    worker.claim(&mut work).await.unwrap();
    assert_eq!(world.store.commits(), before, "a repeated claim changed something");

    let other = Work { nonce: worker.fresh_nonce(), ..work.clone() };
    assert_eq!(code(worker.claim(&mut other.clone()).await), Code::AlreadyClaimed);
    // H3 holds for a restarted worker too: its new intent has another nonce.
    worker.restart(true).await;
    assert_eq!(code(worker.claim(&mut other.clone()).await), Code::AlreadyClaimed);
    worker.claim(&mut work).await.unwrap();

    worker.succeed(&work).await;
    assert_eq!(code(worker.claim(&mut work).await), Code::AttemptClosed);
    assert_eq!(world.history(run.id).await.iter().filter(|k| **k == "run.running").count(), 1);
}

#[tokio::test]
async fn a_claim_whose_commit_result_is_lost_is_granted_once() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::PlanOnly).await;
    world.step().await;
    let mut work = worker.prepare_next().await;
    world.store.lose_next_result.store(true, Ordering::Relaxed);
    worker.claim(&mut work).await.unwrap();
    assert_eq!(world.history(run.id).await.iter().filter(|k| **k == "run.running").count(), 1);
}

#[tokio::test]
async fn g14_another_workers_attempt_does_not_exist() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let thief = world.worker("w2").await;
    world.create("sandbox", DESTROY).await;
    world.step().await;
    let mut work = worker.prepare_next().await;
    assert_eq!(code(thief.prepare(work.job.clone()).await), Code::NotFound);
    assert_eq!(code(thief.claim(&mut work.clone()).await), Code::NotFound);
    worker.claim(&mut work).await.unwrap();
    // Even with the right fence and nonce.
    let before = world.store.commits();
    assert_eq!(code(thief.claim(&mut work.clone()).await), Code::NotFound);
    assert_eq!(code(thief.log(&work, 0, "x").await), Code::NotFound);
    assert_eq!(code(thief.put_state(&work, 0, state_document("l1", 1)).await), Code::NotFound);
    let artifact = thief.put_artifact(&work, ArtifactKind::Plan, "plan".into()).await;
    assert_eq!(code(artifact), Code::NotFound);
    assert_eq!(world.store.commits(), before);
    assert_eq!(world.blobs.names("state/").len() + world.blobs.names("artifact/").len(), 0);
}

#[tokio::test]
async fn a_wrong_fence_or_nonce_opens_nothing() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    world.create("sandbox", DESTROY).await;
    world.step().await;
    let mut work = worker.prepare_next().await;
    // Before the claim there is no nonce that could be right.
    assert_eq!(code(worker.log(&work, 0, "x").await), Code::FenceMismatch);
    assert_eq!(code(worker.put_state(&work, 0, state_document("l1", 1)).await), Code::FenceMismatch);
    let offered = work.clone();
    let wrong_fence = |fence| {
        let mut wrong = offered.clone();
        wrong.job.fence = Fence(fence);
        wrong
    };
    for fence in [0, work.job.fence.0 - 1, work.job.fence.0 + 1, u64::MAX] {
        let mut wrong = wrong_fence(fence);
        assert_eq!(code(worker.claim(&mut wrong).await), Code::FenceMismatch);
        let of = AttemptRef { attempt: work.job.attempt, fence: Fence(fence) };
        assert_eq!(code(worker.control.bundle(&worker.session, of).await), Code::FenceMismatch);
    }
    worker.claim(&mut work).await.unwrap();
    let before = world.store.commits();
    let other_nonce = Work { nonce: Nonce([0; 16]), ..work.clone() };
    for wrong in [wrong_fence(work.job.fence.0 + 1), other_nonce] {
        assert_eq!(code(worker.log(&wrong, 0, "x").await), Code::FenceMismatch);
        assert_eq!(code(worker.put_state(&wrong, 0, state_document("l1", 1)).await), Code::FenceMismatch);
        let artifact = worker.put_artifact(&wrong, ArtifactKind::Plan, "plan".into()).await;
        assert_eq!(code(artifact), Code::FenceMismatch);
    }
    assert_eq!(world.store.commits(), before);
}

#[tokio::test]
async fn an_expired_offer_cannot_be_claimed_and_the_run_gets_a_newer_fence() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::PlanOnly).await;
    world.step().await;
    let mut old = worker.prepare_next().await;
    for _ in 0..6 {
        world.pass(10);
        worker.heartbeat().await.unwrap();
    }
    // Refused for good, since the worker forgets its intent: no earlier claim of it can be granted any more.
    assert_eq!(code(worker.claim(&mut old).await), Code::OfferExpired);
    assert_eq!(world.status(run.id).await, RunStatus::Queued);
    let closing = Closing::Revoked { reason: "offer_expired".to_owned() };
    assert_eq!(world.last_attempt(run.id).await.closing, Some(closing));
    assert_eq!(code(worker.claim(&mut old).await), Code::AttemptClosed);
    world.step().await;
    let new = worker.claim_next().await;
    assert_eq!(new.manifest.number, 2);
    assert!(new.job.fence > old.job.fence);
    assert_eq!(code(worker.claim(&mut old).await), Code::AttemptClosed);
}

#[tokio::test]
async fn an_unclaimed_offer_is_published_again_under_another_number() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    world.create("sandbox", Operation::PlanOnly).await;
    world.step().await;
    let first = worker.job().await.unwrap();
    world.pass(9);
    assert_eq!(world.coordinator.reconcile_step().await.unwrap(), 0);
    world.pass(1);
    assert_eq!(world.coordinator.reconcile_step().await.unwrap(), 1);
    assert_eq!(world.coordinator.reconcile_step().await.unwrap(), 0);
    world.coordinator.dispatch_step().await.unwrap();
    let second = worker.job().await.unwrap();
    assert_eq!((first.publication, second.publication), (1, 2));
    assert_eq!(Job { publication: 1, ..second.clone() }, first);
    assert_ne!(first.message_id(), second.message_id());
    // Two deliveries, one claim.
    let mut work = worker.prepare(second).await.unwrap();
    worker.claim(&mut work).await.unwrap();
    let mut twice = worker.prepare(first).await.unwrap();
    assert_eq!(code(worker.claim(&mut twice).await), Code::AlreadyClaimed);
    world.pass(60);
    assert_eq!(world.coordinator.reconcile_step().await.unwrap(), 0, "a claimed attempt is not published");
}

#[tokio::test]
async fn a_stale_writer_is_stopped_before_its_tool_starts() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", DESTROY).await;
    world.step().await;
    let mut work = worker.prepare_next().await;
    // The state moves after the offer, for example by a restore.
    let state = world.state("sandbox").await;
    world.store.force(StateObject { head: 1, ..state.clone() }).await;
    assert_eq!(code(worker.claim(&mut work).await), Code::StaleState);
    let view = world.view(run.id).await;
    assert_eq!((view.run.status, view.run.error.unwrap().code.as_str()), (RunStatus::Failed, "stale_state"));
    assert_eq!((&view.attempts[0].claim, view.attempts[0].state), (&None, AttemptState::Closed));
    assert_eq!(
        world.history(run.id).await,
        ["run.created", "run.queued", "attempt.offered", "attempt.revoked", "run.failed"]
    );
    // A reader runs against the snapshot it captured.
    world.store.force(state.clone()).await;
    world.create("sandbox", Operation::PlanOnly).await;
    world.step().await;
    let mut work = worker.prepare_next().await;
    world.store.force(StateObject { head: 1, ..state }).await;
    worker.claim(&mut work).await.unwrap();
}

/// I12 and T-107: an approval covers one plan of one run, and nothing else starts under it.
#[tokio::test]
async fn t107_an_approval_that_does_not_cover_the_plan_starts_nothing() {
    type Change = fn(&mut Approval);
    let changes: [(&str, Change); 5] = [
        ("another plan", |a| a.plan_digest = Some(digest("another plan"))),
        ("no plan", |a| a.plan_digest = None),
        ("another snapshot", |a| a.snapshot = digest("another snapshot")),
        ("another run", |a| a.run = forgeplane_core::id::RunId::new(start_of_time(), [9; 10])),
        ("no decision", |a| a.status = ApprovalStatus::Pending),
    ];
    for (what, change) in changes {
        let world = World::new().await;
        world.network().await;
        let mut worker = world.worker("w1").await;
        let apply = world.approved_apply(&mut worker, "network").await;
        world.step().await;
        let mut work = worker.prepare_next().await;
        let mut approval = world.view(apply.id).await.approval.unwrap();
        change(&mut approval);
        world.store.force(approval).await;
        assert_eq!(code(worker.claim(&mut work).await), Code::ApprovalInvalid, "{what}");
        let view = world.view(apply.id).await;
        assert_eq!((view.run.status, &view.attempts[0].claim), (RunStatus::Failed, &None), "{what}");
    }
}

#[tokio::test]
async fn t071_a_cancel_while_offered_revokes_the_offer() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", DESTROY).await;
    world.step().await;
    let mut work = worker.prepare_next().await;
    let canceled = world.coordinator.cancel(&world.alice, run.id, None).await.unwrap();
    assert_eq!(canceled.status, RunStatus::Canceled);
    assert_eq!(code(worker.claim(&mut work).await), Code::AttemptClosed);
    assert_eq!(
        world.history(run.id).await,
        ["run.created", "run.queued", "attempt.offered", "attempt.revoked", "run.canceled"]
    );
    // The place is free again at once.
    world.create("sandbox", DESTROY).await;
    world.step().await;
    worker.claim_next().await;
}

#[tokio::test]
async fn d4_a_cancel_after_the_claim_asks_the_worker_and_says_so_until_it_ends() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", DESTROY).await;
    world.step().await;
    let work = worker.claim_next().await;
    for _ in 0..20 {
        let asked = world.coordinator.cancel(&world.alice, run.id, None).await.unwrap();
        assert_eq!(asked.status, RunStatus::Canceling);
    }
    assert_eq!(world.history(run.id).await.iter().filter(|k| **k == "run.canceling").count(), 1);
    for _ in 0..3 {
        let orders = worker.heartbeat().await.unwrap();
        assert_eq!(orders.stops.len(), 1);
        assert_eq!((orders.stops[0].fence, orders.stops[0].cause), (work.job.fence, StopCause::Cancel));
    }
    // D2: what the attempt really did counts.
    worker.succeed(&work).await;
    assert_eq!(world.status(run.id).await, RunStatus::Succeeded);
    assert_eq!(worker.heartbeat().await.unwrap().stops, []);
}

/// D1 and T-073: whichever comes first decides; in between there is nothing.
#[tokio::test]
async fn d1_cancel_and_claim_at_once_end_in_one_of_two_ways() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    world.store.jitter.store(true, Ordering::Relaxed);
    let (mut claimed, mut refused) = (0, 0);
    for round in 0..400 {
        let run = world.create("sandbox", Operation::PlanOnly).await;
        world.step().await;
        let mut work = worker.prepare_next().await;
        let cancel = async {
            for _ in 0..round % 50 {
                tokio::task::yield_now().await;
            }
            world.coordinator.cancel(&world.alice, run.id, None).await
        };
        let (cancel, claim) = tokio::join!(cancel, worker.claim(&mut work));
        cancel.unwrap();
        let attempt = world.last_attempt(run.id).await;
        match claim {
            Ok(()) => {
                claimed += 1;
                assert_eq!(world.status(run.id).await, RunStatus::Canceling);
                assert_eq!(attempt.stop, Some(StopCause::Cancel));
                worker.end(&work, OutcomeKind::Canceled).await;
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.refusal().code, Code::AttemptClosed);
                assert_eq!((world.status(run.id).await, attempt.claim), (RunStatus::Canceled, None));
            }
        }
        assert_eq!(world.status(run.id).await, RunStatus::Canceled);
    }
    assert!(claimed > 20 && refused > 20, "both orders happen: {claimed} claims, {refused} refusals");
}
