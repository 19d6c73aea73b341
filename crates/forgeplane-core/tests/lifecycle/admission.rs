//! What may become a run, and how long it may wait.

use forgeplane_core::Code;
use forgeplane_core::model::*;
use forgeplane_core::rules::Settings;
use forgeplane_core::rules::admission::check_operation;

use crate::support::*;

fn every_operation() -> Vec<Operation> {
    vec![
        Operation::Plan { destroy: false },
        Operation::Plan { destroy: true },
        Operation::Apply,
        Operation::Destroy { mode: DestroyMode::Plan },
        Operation::Destroy { mode: DestroyMode::Perform },
        Operation::PlanOnly,
        Operation::Preview,
        Operation::Teardown,
        Operation::Execute,
    ]
}

#[test]
fn every_tool_supports_exactly_the_operations_of_the_specification() {
    let settings = Settings::default();
    for tool in Tool::ALL {
        for operation in every_operation() {
            let result = check_operation(tool, &operation, &settings);
            let expected = match tool {
                Tool::Terraform | Tool::Tofu if operation != Operation::Execute => None,
                Tool::Ansible if operation == Operation::Execute => None,
                Tool::Terraform | Tool::Tofu | Tool::Ansible => Some(Code::UnsupportedOperation),
                Tool::Helm | Tool::Pulumi | Tool::Bash => Some(Code::NoExecutor),
            };
            assert_eq!(result.as_ref().err().map(|r| r.code), expected, "{tool} {operation}");
            if let Err(refusal) = result {
                let told = format!("{} {}", refusal.detail, refusal.way_out.unwrap());
                assert!(told.contains(tool.label()), "{told}");
                if expected == Some(Code::UnsupportedOperation) {
                    assert!(told.contains(operation.label()) && told.contains("supports"), "{told}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_unsupported_operation_creates_nothing() {
    let world = World::new().await;
    for tool in [Tool::Terraform, Tool::Tofu, Tool::Ansible] {
        let instance = world.deploy(world.template(tool.label(), tool)).await;
        assert_eq!(instance.state_object.is_some(), tool.has_managed_state());
        for operation in every_operation() {
            let before = world.store.commits();
            let result = world.try_create(tool.label(), operation.clone()).await;
            if tool.supports(&operation) && operation != Operation::Apply {
                assert_eq!(result.unwrap().operation, operation);
            } else {
                // An apply exists only as a promotion.
                assert_eq!(code(result), Code::UnsupportedOperation, "{tool} {operation}");
                assert_eq!(world.store.commits(), before, "{tool} {operation} left something behind");
            }
        }
    }
    for tool in [Tool::Helm, Tool::Pulumi, Tool::Bash] {
        let pushed = world.coordinator.push_template(&world.alice, world.template(tool.label(), tool)).await;
        assert_eq!(code(pushed), Code::NoExecutor);
    }
}

#[tokio::test]
async fn t030_a_run_that_nobody_claims_in_time_leaves_the_queue() {
    let world = World::new().await;
    let mut push = world.template("network", Tool::Terraform);
    push.queue_timeout_s = Some(300);
    world.deploy(push).await;
    let run = world.create("network", Operation::PlanOnly).await;
    world.pass(299);
    assert_eq!(world.coordinator.sweep_step().await.unwrap(), 0);
    world.pass(1);
    assert_eq!(world.coordinator.sweep_step().await.unwrap(), 1);
    let view = world.view(run.id).await;
    assert_eq!(
        (view.run.status, view.run.error.unwrap().code.as_str()),
        (RunStatus::Canceled, "queue_expired")
    );
    assert_eq!(world.history(run.id).await, ["run.created", "run.queued", "run.canceled"]);

    // A requeue starts the wait anew.
    world.coordinator.requeue(&world.alice, run.id).await.unwrap();
    world.pass(299);
    assert_eq!(world.coordinator.sweep_step().await.unwrap(), 0);
    world.pass(1);
    assert_eq!(world.coordinator.sweep_step().await.unwrap(), 1);
}

#[tokio::test]
async fn t030_offers_that_nobody_claims_do_not_keep_a_run_in_the_queue() {
    let world = World::new().await;
    let mut push = world.template("network", Tool::Terraform);
    push.queue_timeout_s = Some(90);
    world.deploy(push).await;
    let worker = world.worker("w1").await;
    let run = world.create("network", Operation::PlanOnly).await;
    // The worker lives, but it never claims what it is offered; the scheduler is faster than any sweep.
    for _ in 0..20 {
        world.step().await;
        world.pass(10);
        worker.heartbeat().await.unwrap();
        world.coordinator.sweep_step().await.unwrap();
        world.step().await;
    }
    assert_eq!(world.status(run.id).await, RunStatus::Canceled);
    assert_eq!(world.view(run.id).await.run.error.unwrap().code, "queue_expired");
}

#[tokio::test]
async fn the_same_idempotency_key_gives_the_same_run() {
    let world = World::new().await;
    world.network().await;
    let mut new = new_run("network", Operation::PlanOnly);
    new.idempotency_key = Some("ci-4711".to_owned());
    let first = world.coordinator.create_run(&world.alice, new.clone()).await.unwrap();
    let before = world.store.commits();
    let again = world.coordinator.create_run(&world.alice, new.clone()).await.unwrap();
    assert_eq!((again.id, world.store.commits()), (first.id, before));

    let mut other = new.clone();
    other.request.operation = Operation::Preview;
    let mismatch = world.coordinator.create_run(&world.alice, other).await;
    assert_eq!(code(mismatch), Code::IdempotencyMismatch);

    new.idempotency_key = Some("ci-4712".to_owned());
    let many = futures_util::future::join_all(
        (0..50).map(|_| world.coordinator.create_run(&world.alice, new.clone())),
    )
    .await;
    let ids: std::collections::BTreeSet<_> = many.into_iter().map(|r| r.unwrap().id).collect();
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn a_commit_whose_result_is_lost_creates_one_run() {
    let world = World::new().await;
    world.network().await;
    world.store.lose_next_result.store(true, std::sync::atomic::Ordering::Relaxed);
    let run = world.create("network", Operation::PlanOnly).await;
    let runs =
        world.coordinator.runs(&world.alice, None, None, &forgeplane_core::ports::Page::all()).await.unwrap();
    assert_eq!(runs.iter().map(|r| r.id).collect::<Vec<_>>(), [run.id]);
}

#[tokio::test]
async fn an_execution_timeout_stays_within_the_templates_limit() {
    let world = World::new().await;
    world.network().await;
    for (asked, allowed) in [(0, false), (1, true), (1_200, true), (1_201, false)] {
        let mut new = new_run("network", Operation::PlanOnly);
        new.request.execution_timeout_s = Some(asked);
        let result = world.coordinator.create_run(&world.alice, new).await;
        if allowed {
            let run = result.unwrap();
            assert_eq!(world.view(run.id).await.snapshot.execution_timeout_s, asked);
        } else {
            assert_eq!(code(result), Code::InvalidField, "{asked} seconds");
        }
    }
}

#[tokio::test]
async fn runs_of_another_project_do_not_exist() {
    let world = World::new().await;
    world.network().await;
    let run = world.create("network", Operation::Teardown).await;
    let other = world.coordinator.ensure_project(&name("other")).await.unwrap();
    let stranger = Caller { project: other.id, role: Role::Admin, ..world.root.clone() };
    assert_eq!(code(world.coordinator.run(&stranger, run.id).await.map(|v| v.run)), Code::NotFound);
    assert_eq!(code(world.coordinator.cancel(&stranger, run.id, None).await), Code::NotFound);
    assert_eq!(code(world.coordinator.requeue(&stranger, run.id).await), Code::NotFound);
    assert_eq!(code(world.coordinator.promote(&stranger, run.id).await), Code::NotFound);
    assert_eq!(code(world.coordinator.explain(&stranger, run.id).await), Code::NotFound);
    assert_eq!(code(world.coordinator.events(&stranger, Some(run.id), 0, 9).await), Code::NotFound);
    let review = world.coordinator.review(&stranger, run.approval.unwrap(), Verdict::Approve, None).await;
    assert_eq!(code(review), Code::NotFound);
    let create = world.coordinator.create_run(&stranger, new_run("network", Operation::PlanOnly)).await;
    assert_eq!(code(create), Code::NotFound);
}
