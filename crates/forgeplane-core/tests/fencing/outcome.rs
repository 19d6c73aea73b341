//! What a signed statement does, and how often.

use std::sync::atomic::Ordering;

use forgeplane_core::Code;
use forgeplane_core::evidence::Cleanup;
use forgeplane_core::model::*;
use forgeplane_core::ports::StoreExt as _;

use crate::support::*;

const DESTROY: Operation = Operation::Destroy { mode: DestroyMode::Perform };

async fn claimed(world: &World) -> (Run, TestWorker, Work) {
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", DESTROY).await;
    world.step().await;
    let work = worker.claim_next().await;
    (run, worker, work)
}

async fn receipt(world: &World, work: &Work) -> Option<Receipt> {
    world.store.get_as::<Receipt>(work.job.attempt).await.unwrap().map(|r| r.value)
}

#[tokio::test]
async fn g6_a_replayed_outcome_is_answered_alike_and_changes_nothing() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    let envelope = worker.end(&work, OutcomeKind::Failed).await;
    let before = world.store.commits();
    for _ in 0..5 {
        let answer = worker.deliver(&envelope).await.unwrap();
        assert!(answer.applied);
        assert_eq!((answer.attempt, answer.envelope_digest), (work.job.attempt, envelope.digest()));
    }
    // Also after a requeue: the receipt is of that attempt, not of the run.
    world.coordinator.requeue(&world.alice, run.id).await.unwrap();
    assert!(worker.deliver(&envelope).await.unwrap().applied);
    assert_eq!(world.status(run.id).await, RunStatus::Queued);
    assert_eq!(world.store.commits(), before + 1);
}

/// T-024: the answer was lost on its way.
#[tokio::test]
async fn t024_an_outcome_whose_commit_result_is_lost_is_receipted_once() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    let envelope = worker.sign(&work.outcome(OutcomeKind::Succeeded));
    world.store.lose_next_result.store(true, Ordering::Relaxed);
    assert!(worker.deliver(&envelope).await.unwrap().applied);
    assert_eq!(world.history(run.id).await.iter().filter(|k| **k == "run.succeeded").count(), 1);
    assert_eq!(receipt(&world, &work).await.unwrap().envelope_digest, envelope.digest());
}

#[tokio::test]
async fn a_second_outcome_that_says_otherwise_is_kept_and_changes_nothing() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    let first = worker.end(&work, OutcomeKind::Failed).await;
    let second = worker.sign(&work.outcome(OutcomeKind::Succeeded));
    for _ in 0..3 {
        let answer = worker.deliver(&second).await.unwrap();
        assert!(!answer.applied);
        assert_eq!(answer.envelope_digest, second.digest(), "H2: the answer is about what was received");
    }
    assert_eq!(world.status(run.id).await, RunStatus::Failed);
    assert_eq!(receipt(&world, &work).await.unwrap().envelope_digest, first.digest());
    let kept = world.late_evidence(run.id).await;
    assert_eq!(kept.len(), 1, "what is sent again is kept once");
    assert_eq!((kept[0].why.as_str(), kept[0].outcome), ("outcome_conflict", OutcomeKind::Succeeded));
    assert_eq!(kept[0].envelope, second.to_json());
    assert_eq!(world.history(run.id).await.last(), Some(&"attempt.evidence_kept"));
    // A statement that the tool never started contradicts the receipt too.
    let third = worker.sign(&work.not_started(Some(work.nonce), true));
    assert!(!worker.deliver(&third).await.unwrap().applied);
    assert_eq!(world.late_evidence(run.id).await.len(), 2);
    assert_eq!(world.status(run.id).await, RunStatus::Failed);
}

#[tokio::test]
async fn evidence_whose_commit_result_is_lost_is_kept_once() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    worker.end(&work, OutcomeKind::Failed).await;
    let second = worker.sign(&work.outcome(OutcomeKind::Succeeded));
    world.store.lose_next_result.store(true, Ordering::Relaxed);
    assert!(!worker.deliver(&second).await.unwrap().applied);
    assert_eq!(world.late_evidence(run.id).await.len(), 1);
}

#[tokio::test]
async fn a_tool_that_never_started_is_tried_again_a_bounded_number_of_times() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", DESTROY).await;
    for number in 1..=3 {
        world.step().await;
        let work = worker.claim_next().await;
        assert_eq!(work.manifest.number, number);
        let envelope = worker.sign(&work.not_started(Some(work.nonce), true));
        assert!(worker.deliver(&envelope).await.unwrap().applied);
        worker.release(&work);
        assert_eq!(receipt(&world, &work).await.unwrap().outcome, OutcomeKind::NotStarted);
        let view = world.view(run.id).await;
        let expected = if number < 3 { RunStatus::Queued } else { RunStatus::Failed };
        assert_eq!((view.run.status, view.run.not_started), (expected, number));
        assert_eq!(view.run.started_at, None);
    }
    assert_eq!(world.view(run.id).await.run.error.unwrap().code, "worker_restarted");
    // A requeue by a person starts the count anew.
    assert_eq!(world.coordinator.requeue(&world.alice, run.id).await.unwrap().not_started, 0);
}

#[tokio::test]
async fn what_cannot_do_better_elsewhere_fails_at_once() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    worker.deliver(&worker.sign(&work.not_started(Some(work.nonce), false))).await.unwrap();
    assert_eq!(world.status(run.id).await, RunStatus::Failed);
}

#[tokio::test]
async fn a_canceled_run_whose_tool_never_started_is_canceled() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    world.coordinator.cancel(&world.alice, run.id, None).await.unwrap();
    worker.deliver(&worker.sign(&work.not_started(Some(work.nonce), true))).await.unwrap();
    assert_eq!(world.status(run.id).await, RunStatus::Canceled);
}

#[tokio::test]
async fn an_unclaimed_offer_is_given_back_by_a_signed_not_started() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", DESTROY).await;
    world.step().await;
    let mut work = worker.prepare_next().await;
    assert!(worker.deliver(&worker.sign(&work.not_started(None, true))).await.unwrap().applied);
    assert_eq!(world.status(run.id).await, RunStatus::Queued);
    assert_eq!(code(worker.claim(&mut work).await), Code::AttemptClosed);
}

/// H1: the model run broke without this. An old process says that it never started, while a newer claim runs.
#[tokio::test]
async fn h1_an_old_nonce_does_not_close_a_newer_claim() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    let before = world.store.commits();
    for nonce in [None, Some(Nonce([0; 16]))] {
        let old = worker.sign(&work.not_started(nonce, true));
        assert_eq!(code(worker.deliver(&old).await), Code::FenceMismatch);
    }
    let old = worker.sign(&Work { nonce: Nonce([0; 16]), ..work.clone() }.outcome(OutcomeKind::Failed));
    assert_eq!(code(worker.deliver(&old).await), Code::FenceMismatch);
    assert_eq!(world.store.commits(), before);
    assert_eq!(world.status(run.id).await, RunStatus::Running);
    worker.succeed(&work).await;
}

#[tokio::test]
async fn an_outcome_of_an_attempt_that_was_never_claimed_is_refused() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", DESTROY).await;
    world.step().await;
    let work = worker.prepare_next().await;
    let envelope = worker.sign(&work.outcome(OutcomeKind::Succeeded));
    assert_eq!(code(worker.deliver(&envelope).await), Code::FenceMismatch);
    world.coordinator.cancel(&world.alice, run.id, None).await.unwrap();
    assert_eq!(code(worker.deliver(&envelope).await), Code::FenceMismatch);
    assert_eq!(world.status(run.id).await, RunStatus::Canceled);
}

#[tokio::test]
async fn an_outcome_of_an_unresolved_attempt_ends_it_normally() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    world.pass(130);
    world.coordinator.sweep_step().await.unwrap();
    assert!(world.view(run.id).await.is_unresolved());
    worker.end(&work, OutcomeKind::Failed).await;
    let view = world.view(run.id).await;
    assert!(view.run.status == RunStatus::Failed && !view.is_unresolved());
}

#[tokio::test]
async fn processes_that_cannot_be_killed_take_the_worker_out_of_service() {
    let world = World::new().await;
    let (run, mut worker, work) = claimed(&world).await;
    let dirty = forgeplane_core::evidence::Outcome {
        cleanup: Cleanup::Dirty,
        ..work.outcome(OutcomeKind::Succeeded)
    };
    assert!(worker.conclude(&work, &dirty).await.applied);
    assert_eq!(world.status(run.id).await, RunStatus::Succeeded);
    let workers = world.coordinator.workers(&world.root).await.unwrap();
    assert_eq!(workers[0].worker.quarantined.as_deref(), Some("dirty_uid"));
    assert_eq!(workers[0].status, WorkerStatus::Offline);
    world.create("sandbox", DESTROY).await;
    assert_eq!(world.coordinator.schedule_step().await.unwrap(), 0);
    // Registering again does not help; only an administrator does.
    worker.restart(false).await;
    worker.heartbeat().await.unwrap();
    assert_eq!(world.coordinator.schedule_step().await.unwrap(), 0);
    world.coordinator.reactivate_worker(&world.root, "w1").await.unwrap();
    world.step().await;

    // The same when the rest of an earlier run is found before the claim.
    let work = worker.prepare_next().await;
    let mut statement = work.not_started(None, true);
    statement.reason.code = "dirty_uid".to_owned();
    worker.deliver(&worker.sign(&statement)).await.unwrap();
    let workers = world.coordinator.workers(&world.root).await.unwrap();
    assert_eq!(workers[0].worker.quarantined.as_deref(), Some("dirty_uid"));
}

/// A quarantined worker cannot cross the fence with an offer it got before.
#[tokio::test]
async fn a_worker_out_of_service_claims_nothing() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", DESTROY).await;
    world.step().await;
    let mut work = worker.prepare_next().await;
    let record = world.store.get_as::<Worker>(worker.id()).await.unwrap().unwrap().value;
    world.store.force(Worker { quarantined: Some("suspicious".to_owned()), ..record }).await;
    assert_eq!(code(worker.claim(&mut work).await), Code::WorkerDisabled);
    assert_eq!(world.coordinator.sweep_step().await.unwrap(), 1);
    assert_eq!(world.status(run.id).await, RunStatus::Queued);
}
