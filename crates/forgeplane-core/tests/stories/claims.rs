//! Who may cross the execution fence, and when (`protocol.md` S6).

use forgeplane_core::Code;
use forgeplane_core::model::*;
use forgeplane_core::ports::ControlPlane as _;

use crate::support::*;

const DESTROY: Operation = Operation::Destroy { mode: DestroyMode::Perform };

/// A preview that is offered to `w1` and prepared by it.
async fn prepared(world: &World) -> (TestWorker, Run, Work) {
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::Preview).await;
    world.step().await;
    let work = worker.prepare_next().await;
    (worker, run, work)
}

#[tokio::test]
async fn the_same_nonce_gets_the_same_grant_again_and_nothing_changes() {
    let world = World::new().await;
    let (worker, run, mut work) = prepared(&world).await;
    worker.claim(&mut work).await.unwrap();
    let (commits, attempt) = (world.store.commits(), world.last_attempt(run.id).await);
    for _ in 0..3 {
        let again = worker.control.claim(&worker.session, work.request()).await.unwrap();
        assert_eq!(again.nonce, work.nonce);
        assert_eq!(again.execution_timeout, work.grant.as_ref().unwrap().execution_timeout);
    }
    assert_eq!(world.store.commits(), commits);
    assert_eq!(world.last_attempt(run.id).await, attempt);

    // Also while the worker is missing: the grant is a fact, not a lease.
    world.pass(121);
    world.coordinator.sweep_step().await.unwrap();
    assert!(world.view(run.id).await.is_unresolved());
    worker.control.claim(&worker.session, work.request()).await.unwrap();
    assert_eq!(world.last_attempt(run.id).await.claim, attempt.claim);
}

#[tokio::test]
async fn nothing_of_a_run_is_accepted_before_its_claim() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", DESTROY).await;
    world.step().await;
    let work = worker.prepare_next().await;
    let bytes = bytes::Bytes::from_static(b"x");
    assert_eq!(code(worker.log(&work, 0, "x").await), Code::FenceMismatch);
    assert_eq!(code(worker.put_artifact(&work, ArtifactKind::Plan, bytes).await), Code::FenceMismatch);
    assert!(worker.put_state(&work, 0, state_document("l1", 1)).await.is_err());
    let outcome = worker.sign(&work.outcome(OutcomeKind::Succeeded));
    assert_eq!(code(worker.deliver(&outcome).await), Code::FenceMismatch);
    assert_eq!(world.state("sandbox").await.head, 0);
    assert_eq!(world.status(run.id).await, RunStatus::Queued);
}

#[tokio::test]
async fn duplicate_and_stale_deliveries_claim_nothing() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::Preview).await;
    let queued_at = world.view(run.id).await.run.queued_at;
    world.step().await;
    let mut stale = worker.prepare_next().await;
    world.live(60, &[&worker]).await;
    let view = world.view(run.id).await;
    assert_eq!((view.run.status, view.run.current_attempt), (RunStatus::Queued, None));
    assert_eq!(view.run.queued_at, queued_at, "an expired offer costs the run its place in the queue");
    world.step().await;
    let mut work = worker.prepare_next().await;
    assert_eq!(code(worker.claim(&mut stale).await), Code::AttemptClosed);
    assert_eq!(code(worker.prepare(stale.job.clone()).await), Code::AttemptClosed);
    worker.claim(&mut work).await.unwrap();
    let mut duplicate = worker.prepare(work.job.clone()).await.unwrap();
    assert_eq!(code(worker.claim(&mut duplicate).await), Code::AlreadyClaimed);
    assert_eq!(world.last_attempt(run.id).await.claim.unwrap().nonce, work.nonce);
}
