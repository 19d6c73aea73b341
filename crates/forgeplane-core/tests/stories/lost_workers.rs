//! Workers that go missing after they claimed (`protocol.md` 1.5, 1.6): nobody else ever gets the attempt.

use forgeplane_core::Code;
use forgeplane_core::model::*;

use crate::support::*;

const DESTROY: Operation = Operation::Destroy { mode: DestroyMode::Perform };

/// A run that `w1` claimed.
async fn claimed(world: &World, operation: Operation) -> (TestWorker, Run, Work) {
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", operation).await;
    world.step().await;
    let work = worker.claim_next().await;
    (worker, run, work)
}

async fn sweep(world: &World) -> usize {
    world.coordinator.sweep_step().await.unwrap()
}

#[tokio::test]
async fn i9_a_missing_workers_attempt_is_never_given_to_another_however_long_it_takes() {
    let world = World::new().await;
    let (worker, run, work) = claimed(&world, DESTROY).await;
    let mut other = world.worker("w2").await;
    world.live(119, &[&other]).await;
    assert_eq!(
        world.last_attempt(run.id).await.state,
        AttemptState::Claimed,
        "120 s are still in time {:?} {:?}",
        world.last_attempt(run.id).await,
        world.now()
    );
    world.live(2, &[&other]).await;
    let since = world.now();
    assert_eq!(world.last_attempt(run.id).await.unresolved_since, Some(since));
    for _ in 0..100 {
        world.pass(24 * 3_600);
        other.restart(true).await;
        other.heartbeat().await.unwrap();
        world.coordinator.settle().await.unwrap();
        world.coordinator.reconcile_step().await.unwrap();
    }
    assert!(other.job().await.is_none());
    let view = world.view(run.id).await;
    assert_eq!((view.run.status, view.attempts.len()), (RunStatus::Running, 1));
    assert_eq!(view.attempts[0].unresolved_since, Some(since));
    // D6.
    assert_eq!(code(world.coordinator.requeue(&world.alice, run.id).await), Code::UnresolvedExecution);
    let explained = world.coordinator.explain(&world.alice, run.id).await.unwrap();
    assert_eq!((explained.unresolved_since, explained.waiting), (Some(since), None));
    assert!(explained.allowed.contains(&"resolve") && !explained.allowed.contains(&"requeue"));

    // The worker comes back after a hundred days; what it signed still holds.
    let mut worker = worker;
    worker.restart(true).await;
    worker.end(&work, OutcomeKind::Failed).await;
    assert_eq!(world.status(run.id).await, RunStatus::Failed);
}

#[tokio::test]
async fn another_workers_heartbeat_never_stands_for_the_claimants() {
    let world = World::new().await;
    let (_worker, run, work) = claimed(&world, Operation::Preview).await;
    let liar = world.worker("w2").await;
    liar.hold(&work);
    world.live(121, &[&liar]).await;
    assert!(world.view(run.id).await.is_unresolved());
    world.live(10, &[&liar]).await;
    assert!(world.view(run.id).await.is_unresolved());
}

#[tokio::test]
async fn a_missing_worker_goes_on_writing_state_and_log_as_its_nonce_allows() {
    let world = World::new().await;
    let (worker, run, work) = claimed(&world, DESTROY).await;
    world.pass(121);
    sweep(&world).await;
    assert!(world.view(run.id).await.is_unresolved());
    worker.log(&work, 0, "still here").await.unwrap();
    worker.save_state(&work, "l1").await;
    assert_eq!(world.state("sandbox").await.head, 2);
    worker.succeed(&work).await;
    assert_eq!(world.status(run.id).await, RunStatus::Succeeded);
}
