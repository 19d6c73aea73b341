//! Which run may be tried again.

use forgeplane_core::Code;
use forgeplane_core::model::*;
use futures_util::future::join_all;

use crate::support::*;

const DESTROY: Operation = Operation::Destroy { mode: DestroyMode::Perform };

#[tokio::test]
async fn a_failed_apply_that_moved_the_state_needs_a_new_plan() {
    let world = World::new().await;
    world.network().await;
    let mut worker = world.worker("w1").await;
    let apply = world.approved_apply(&mut worker, "network").await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.save_state(&work, "l1").await;
    worker.end(&work, OutcomeKind::Failed).await;
    assert_eq!(code(world.coordinator.requeue(&world.alice, apply.id).await), Code::ReplanRequired);
}

#[tokio::test]
async fn a_failed_apply_that_changed_nothing_is_tried_again_under_the_same_id_and_approval() {
    let world = World::new().await;
    world.network().await;
    let mut worker = world.worker("w1").await;
    let apply = world.approved_apply(&mut worker, "network").await;
    world.step().await;
    let first = worker.claim_next().await;
    worker.log(&first, 0, "no quota").await.unwrap();
    worker.end(&first, OutcomeKind::Failed).await;
    let snapshot = world.view(apply.id).await.snapshot;

    let requeued = world.coordinator.requeue(&world.alice, apply.id).await.unwrap();
    assert_eq!((requeued.id, requeued.status), (apply.id, RunStatus::Queued));
    assert_eq!((requeued.error, requeued.summary, requeued.stop), (None, None, None));
    assert_eq!((requeued.started_at, requeued.finished_at, requeued.current_attempt), (None, None, None));
    world.step().await;
    let second = worker.claim_next().await;
    assert_eq!((first.manifest.number, second.manifest.number), (1, 2));
    assert!(second.job.fence > first.job.fence);
    assert_ne!(first.bundle.manifest.digest(), second.bundle.manifest.digest());
    worker.save_state(&second, "l1").await;
    worker.succeed(&second).await;

    let view = world.view(apply.id).await;
    assert_eq!((view.run.status, view.attempts.len()), (RunStatus::Succeeded, 2));
    assert_eq!(view.snapshot, snapshot, "a requeue keeps the snapshot");
    // T-106: the log of an attempt stays its own.
    let log = |number| world.coordinator.log(&world.alice, apply.id, number, 0, usize::MAX);
    assert_eq!(log(Some(1)).await.unwrap().next, 8);
    assert_eq!(log(Some(2)).await.unwrap().next, 0);
    let evidence = world.coordinator.evidence(&world.alice, apply.id, Some(1)).await.unwrap();
    assert_eq!(evidence.verify().unwrap().outcome.outcome, OutcomeKind::Failed);
}

#[tokio::test]
async fn a_retried_writer_goes_on_from_what_its_own_attempts_wrote() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", DESTROY).await;
    world.step().await;
    let first = worker.claim_next().await;
    worker.save_state(&first, "l1").await;
    worker.end(&first, OutcomeKind::Failed).await;

    world.coordinator.requeue(&world.alice, run.id).await.unwrap();
    world.step().await;
    let second = worker.claim_next().await;
    let state = second.manifest.state.clone().unwrap();
    assert_eq!(state.generation, 2);
    assert_eq!(second.bundle.state, Some(state_document("l1", 2)));
    worker.save_state(&second, "l1").await;
    worker.succeed(&second).await;
    assert_eq!(world.state("sandbox").await.head, 4);
}

#[tokio::test]
async fn a_writer_is_not_tried_again_after_somebody_else_wrote() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let one = world.create("sandbox", DESTROY).await;
    let plan = world.create("sandbox", Operation::Plan { destroy: false }).await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.save_state(&work, "l1").await;
    worker.end(&work, OutcomeKind::Failed).await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.end(&work, OutcomeKind::Failed).await;
    let two = world.create("sandbox", DESTROY).await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.save_state(&work, "l1").await;
    worker.end(&work, OutcomeKind::Failed).await;

    assert_eq!(code(world.coordinator.requeue(&world.alice, one.id).await), Code::StaleState);
    assert_eq!(code(world.coordinator.requeue(&world.alice, plan.id).await), Code::StaleState);
    world.coordinator.requeue(&world.alice, two.id).await.unwrap();
}

#[tokio::test]
async fn a_requeued_writer_that_waits_while_another_writes_is_stopped_at_the_fence() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let one = world.create("sandbox", DESTROY).await;
    let two = world.create("sandbox", DESTROY).await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.save_state(&work, "l1").await;
    worker.end(&work, OutcomeKind::Failed).await;
    world.step().await;
    // `two` was admitted at generation 0 as well, so it never starts.
    let mut work = worker.prepare_next().await;
    assert_eq!(work.job.run, two.id);
    assert_eq!(code(worker.claim(&mut work).await), Code::StaleState);
    let view = world.view(two.id).await;
    assert_eq!((view.run.status, view.run.error.unwrap().code.as_str()), (RunStatus::Failed, "stale_state"));
    assert_eq!(view.attempts[0].claim, None);
    world.coordinator.requeue(&world.alice, one.id).await.unwrap();
}

#[tokio::test]
async fn a_run_without_a_valid_approval_is_not_tried_again() {
    let world = World::new().await;
    world.network().await;
    let rejected = world.create("network", DESTROY).await;
    let approval = rejected.approval.unwrap();
    world.coordinator.review(&world.bob, approval, Verdict::Reject, None).await.unwrap();
    assert_eq!(code(world.coordinator.requeue(&world.alice, rejected.id).await), Code::ApprovalInvalid);
    let withdrawn = world.create("network", DESTROY).await;
    world.coordinator.cancel(&world.alice, withdrawn.id, None).await.unwrap();
    assert_eq!(code(world.coordinator.requeue(&world.alice, withdrawn.id).await), Code::ApprovalInvalid);
}

#[tokio::test]
async fn a_plan_bound_run_is_not_tried_again_without_its_plan_file() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let apply = world.approved_apply(&mut worker, "sandbox").await;
    world.coordinator.cancel(&world.alice, apply.id, None).await.unwrap();
    world.blobs.lose("artifact/").await;
    assert_eq!(code(world.coordinator.requeue(&world.alice, apply.id).await), Code::ArtifactMissing);
}

#[tokio::test]
async fn d6_only_a_run_that_ended_without_success_is_tried_again() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::PlanOnly).await;
    let requeue = || world.coordinator.requeue(&world.alice, run.id);
    assert_eq!(code(requeue().await), Code::InvalidTransition);
    world.step().await;
    let work = worker.claim_next().await;
    assert_eq!(code(requeue().await), Code::InvalidTransition);
    world.pass(121);
    world.coordinator.sweep_step().await.unwrap();
    assert!(world.view(run.id).await.is_unresolved());
    assert_eq!(code(requeue().await), Code::UnresolvedExecution);
    world.coordinator.cancel(&world.alice, run.id, None).await.unwrap();
    assert_eq!(code(requeue().await), Code::UnresolvedExecution);
    worker.succeed(&work).await;
    assert_eq!(code(requeue().await), Code::InvalidTransition);
}

#[tokio::test]
async fn d5_a_hundred_requeues_at_once_make_one_new_attempt() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::PlanOnly).await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.end(&work, OutcomeKind::Failed).await;
    world.store.jitter.store(true, std::sync::atomic::Ordering::Relaxed);
    let results = join_all((0..100).map(|_| world.coordinator.requeue(&world.alice, run.id))).await;
    let (done, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(done.len(), 1);
    for result in refused {
        assert_eq!(code(result), Code::InvalidTransition);
    }
    world.step().await;
    world.step().await;
    assert_eq!(world.view(run.id).await.attempts.len(), 2);
}

/// T-054: after each way to end, the next run of the instance starts.
#[tokio::test]
async fn t054_the_next_run_of_an_instance_starts_after_every_way_to_end() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let kinds = [OutcomeKind::Succeeded, OutcomeKind::Failed, OutcomeKind::Canceled, OutcomeKind::TimedOut];
    for _ in kinds {
        world.create("sandbox", DESTROY).await;
    }
    for kind in kinds {
        world.step().await;
        let work = worker.claim_next().await;
        assert!(worker.job().await.is_none(), "two writers of one instance were offered");
        worker.end(&work, kind).await;
    }
}
