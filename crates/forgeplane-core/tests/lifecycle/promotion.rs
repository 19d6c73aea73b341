//! Which plan becomes an apply.

use forgeplane_core::Code;
use forgeplane_core::coordinator::CoordinatorError;
use forgeplane_core::model::*;
use forgeplane_core::ports::Page;
use futures_util::future::join_all;

use crate::support::*;

async fn applies(world: &World) -> Vec<Run> {
    let runs = world.coordinator.runs(&world.alice, None, None, &Page::all()).await.unwrap();
    runs.into_iter().filter(|r| r.operation == Operation::Apply).collect()
}

#[tokio::test]
async fn d10_t036_a_second_plan_of_the_empty_state_is_stale_once_the_first_is_applied() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let first = world.planned(&mut worker, "sandbox").await;
    let second = world.planned(&mut worker, "sandbox").await;

    world.coordinator.promote(&world.alice, first.id).await.unwrap();
    world.step().await;
    let work = worker.claim_next().await;
    worker.save_state(&work, "l1").await;
    worker.succeed(&work).await;

    let before = world.store.commits();
    assert_eq!(code(world.coordinator.promote(&world.alice, second.id).await), Code::StalePlan);
    assert_eq!(code(world.coordinator.promote(&world.alice, first.id).await), Code::StalePlan);
    assert_eq!(world.store.commits(), before, "a refused promotion left something behind");
    assert_eq!(applies(&world).await.len(), 1);
}

#[tokio::test]
async fn t037_a_hundred_concurrent_promotions_make_one_apply() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let plan = world.planned(&mut worker, "sandbox").await;
    let other = world.another_coordinator().await;
    world.store.jitter.store(true, std::sync::atomic::Ordering::Relaxed);
    let results = join_all((0..100).map(|n| {
        let coordinator = if n % 2 == 0 { &world.coordinator } else { &other };
        coordinator.promote(&world.alice, plan.id)
    }))
    .await;
    let (made, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(made.len(), 1);
    for result in refused {
        assert_eq!(code(result), Code::AlreadyPromoted);
    }
    let applies = applies(&world).await;
    assert_eq!(applies.len(), 1);
    assert_eq!(world.view(plan.id).await.run.promoted_to, Some(applies[0].id));
}

#[tokio::test]
async fn a_canceled_promotion_may_be_followed_by_another() {
    let world = World::new().await;
    world.network().await;
    let mut worker = world.worker("w1").await;
    let plan = world.planned(&mut worker, "network").await;
    let first = world.coordinator.promote(&world.alice, plan.id).await.unwrap();
    assert_eq!(code(world.coordinator.promote(&world.alice, plan.id).await), Code::AlreadyPromoted);
    world.coordinator.cancel(&world.alice, first.id, None).await.unwrap();
    let second = world.coordinator.promote(&world.alice, plan.id).await.unwrap();
    assert_ne!(first.id, second.id);
    assert_ne!(first.approval, second.approval, "each promotion needs its own approval");
}

/// Of three runs that were promoted from one plan, whichever lives keeps the others from living.
#[tokio::test]
async fn requeue_and_promotion_of_one_plan_exclude_each_other() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let plan = world.planned(&mut worker, "sandbox").await;
    let first = world.coordinator.promote(&world.alice, plan.id).await.unwrap();
    world.coordinator.cancel(&world.alice, first.id, None).await.unwrap();
    let second = world.coordinator.promote(&world.alice, plan.id).await.unwrap();
    assert_eq!(code(world.coordinator.requeue(&world.alice, first.id).await), Code::AlreadyPromoted);
    world.coordinator.cancel(&world.alice, second.id, None).await.unwrap();

    world.coordinator.requeue(&world.alice, first.id).await.unwrap();
    assert_eq!(code(world.coordinator.promote(&world.alice, plan.id).await), Code::AlreadyPromoted);
    assert_eq!(code(world.coordinator.requeue(&world.alice, second.id).await), Code::AlreadyPromoted);
    assert_eq!(world.view(plan.id).await.run.promoted_to, Some(first.id));
}

#[tokio::test]
async fn only_a_succeeded_plan_is_promotable() {
    let world = World::new().await;
    world.sandbox().await;
    world.deploy(world.template("site", Tool::Ansible)).await;
    let mut worker = world.worker("w1").await;

    for operation in [Operation::PlanOnly, Operation::Preview] {
        let run = world.create("sandbox", operation.clone()).await;
        world.step().await;
        let work = worker.claim_next().await;
        // Even one that publishes files all the same.
        worker.publish_plan(&work).await;
        worker.succeed(&work).await;
        assert_eq!(
            code(world.coordinator.promote(&world.alice, run.id).await),
            Code::NotPromotable,
            "{operation}"
        );
        assert!(world.view(run.id).await.plan.is_none(), "{operation} published a plan");
        let explanation = world.coordinator.explain(&world.alice, run.id).await.unwrap();
        assert!(!explanation.allowed.contains(&"promote"), "{operation}");
    }
    let teardown = world.create("sandbox", Operation::Teardown).await;
    assert_eq!(code(world.coordinator.promote(&world.alice, teardown.id).await), Code::NotPromotable);
    world.coordinator.cancel(&world.alice, teardown.id, None).await.unwrap();
    let playbook = world.create("site", Operation::Execute).await;
    assert_eq!(code(world.coordinator.promote(&world.alice, playbook.id).await), Code::NotPromotable);

    let plan = world.create("sandbox", Operation::Plan { destroy: false }).await;
    assert_eq!(code(world.coordinator.promote(&world.alice, plan.id).await), Code::NotPromotable);
    world.step().await;
    let work = worker.claim_next().await;
    assert_eq!(code(world.coordinator.promote(&world.alice, plan.id).await), Code::NotPromotable);
    worker.publish_plan(&work).await;
    worker.end(&work, OutcomeKind::Failed).await;
    assert_eq!(code(world.coordinator.promote(&world.alice, plan.id).await), Code::NotPromotable);
    assert_eq!(applies(&world).await, []);
}

#[tokio::test]
async fn a_plan_whose_artifact_did_not_arrive_has_not_succeeded() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let plan = world.create("sandbox", Operation::Plan { destroy: false }).await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.succeed(&work).await;
    let run = world.view(plan.id).await.run;
    assert_eq!((run.status, run.error.unwrap().code.as_str()), (RunStatus::Failed, "artifact_missing"));
    assert_eq!(code(world.coordinator.promote(&world.alice, plan.id).await), Code::NotPromotable);
}

#[tokio::test]
async fn t042_a_plan_whose_file_is_gone_is_not_promoted() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let plan = world.planned(&mut worker, "sandbox").await;
    world.blobs.lose("artifact/").await;
    assert_eq!(code(world.coordinator.promote(&world.alice, plan.id).await), Code::ArtifactMissing);
    assert_eq!(applies(&world).await, []);
}

/// T-044: an error while the plan is read is an error, never "there is no plan".
#[tokio::test]
async fn t044_a_plan_file_that_was_changed_at_rest_is_not_promoted() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let plan = world.planned(&mut worker, "sandbox").await;
    let artifact = world.view(plan.id).await.plan.unwrap();
    let blobs = &world.blobs;
    use forgeplane_core::ports::BlobStore as _;
    let name = format!("artifact/{}", artifact.plan.hex());
    let mut sealed = blobs.get(&name).await.unwrap().unwrap().to_vec();
    *sealed.last_mut().unwrap() ^= 1;
    blobs.put(&name, sealed.into()).await.unwrap();
    let error = world.coordinator.promote(&world.alice, plan.id).await.unwrap_err();
    assert!(matches!(error, CoordinatorError::Vault(_)), "{error:?}");
    assert_eq!(applies(&world).await, []);
}

#[tokio::test]
async fn a_destroy_plan_is_promoted_like_any_plan() {
    let world = World::new().await;
    world.network().await;
    let mut worker = world.worker("w1").await;
    for operation in [Operation::Plan { destroy: true }, Operation::Destroy { mode: DestroyMode::Plan }] {
        let plan = world.create("network", operation).await;
        assert_eq!(plan.status, RunStatus::Queued, "planning needs no approval");
        world.step().await;
        let work = worker.claim_next().await;
        worker.publish_plan(&work).await;
        worker.succeed(&work).await;
        let apply = world.coordinator.promote(&world.alice, plan.id).await.unwrap();
        assert_eq!((apply.operation, apply.status), (Operation::Apply, RunStatus::PendingApproval));
    }
}

#[tokio::test]
async fn a_teardown_archives_the_state_and_ends_the_instance() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let plan = world.planned(&mut worker, "sandbox").await;
    let canceled = world.create("sandbox", Operation::PlanOnly).await;
    world.coordinator.cancel(&world.alice, canceled.id, None).await.unwrap();

    let teardown = world.create("sandbox", Operation::Teardown).await;
    let waiting = world.create("sandbox", Operation::Destroy { mode: DestroyMode::Perform }).await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.save_state(&work, "l1").await;
    worker.succeed(&work).await;
    let view = world.coordinator.instance(&world.alice, "sandbox").await.unwrap();
    assert_eq!(view.instance.torn_down_by, Some(teardown.id));
    assert!(view.state.unwrap().archived);
    assert!(world.history(teardown.id).await.contains(&"instance.torn_down"));

    assert_eq!(code(world.try_create("sandbox", Operation::PlanOnly).await), Code::InstanceTornDown);
    assert_eq!(code(world.coordinator.promote(&world.alice, plan.id).await), Code::InstanceTornDown);
    assert_eq!(code(world.coordinator.requeue(&world.alice, canceled.id).await), Code::InstanceTornDown);
    // What was admitted before is stopped at the fence.
    world.step().await;
    let mut work = worker.prepare_next().await;
    assert_eq!(work.job.run, waiting.id);
    assert_eq!(code(worker.claim(&mut work).await), Code::StaleState);
    assert_eq!(world.status(waiting.id).await, RunStatus::Failed);
}

#[tokio::test]
async fn a_failed_teardown_keeps_the_instance() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    world.create("sandbox", Operation::Teardown).await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.end(&work, OutcomeKind::Failed).await;
    let view = world.coordinator.instance(&world.alice, "sandbox").await.unwrap();
    assert_eq!(view.instance.torn_down_by, None);
    assert!(!view.state.unwrap().archived);
}
