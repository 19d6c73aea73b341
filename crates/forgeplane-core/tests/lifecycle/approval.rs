//! From a plan through review to a verified apply.

use std::sync::Arc;

use forgeplane_core::Code;
use forgeplane_core::model::*;
use forgeplane_core::ports::Conflict;

use crate::support::*;

#[tokio::test]
async fn a_reviewed_plan_is_applied_and_its_history_has_no_gap() {
    let world = World::new().await;
    world.network().await;
    let mut worker = world.worker("w1").await;

    let plan = world.planned(&mut worker, "network").await;
    assert_eq!(plan.status, RunStatus::Succeeded);
    assert_eq!(plan.approval, None, "reading needs no approval");
    let artifact = world.view(plan.id).await.plan.unwrap();

    let apply = world.coordinator.promote(&world.alice, plan.id).await.unwrap();
    assert_eq!((apply.operation, apply.status), (Operation::Apply, RunStatus::PendingApproval));
    assert_eq!(apply.plan, Some(PlanBinding { run: plan.id, digest: artifact.plan }));
    assert_eq!(world.view(plan.id).await.run.promoted_to, Some(apply.id));
    world.step().await;
    assert!(worker.job().await.is_none(), "nothing runs before it is approved");

    let approval = apply.approval.unwrap();
    let mut alice = world.alice.clone();
    alice.role = Role::Admin;
    let own = world.coordinator.review(&alice, approval, Verdict::Approve, None).await;
    assert_eq!(code(own), Code::SelfApproval);
    let operator = world.coordinator.review(&world.alice, approval, Verdict::Approve, None).await;
    assert_eq!(code(operator), Code::Forbidden);

    let decided = world.coordinator.review(&world.bob, approval, Verdict::Approve, None).await.unwrap();
    assert_eq!(decided.status, ApprovalStatus::Approved);
    assert_eq!((decided.plan_digest, decided.source_plan), (Some(artifact.plan), Some(plan.id)));

    world.step().await;
    let work = worker.claim_next().await;
    assert_eq!(work.manifest.plan, Some(artifact.plan));
    assert_eq!(work.manifest.lock_file, artifact.lock_file);
    assert_eq!(world.status(apply.id).await, RunStatus::Running);
    assert_eq!(worker.log(&work, 0, "creating").await.unwrap(), 8);
    worker.save_state(&work, "l1").await;
    let signed = worker.succeed(&work).await;

    let view = world.view(apply.id).await;
    assert_eq!(view.run.status, RunStatus::Succeeded);
    assert_eq!(view.run.summary, Some(PlanSummary { add: 1, ..PlanSummary::default() }));
    let closing = Closing::Receipted { envelope: signed.digest(), outcome: OutcomeKind::Succeeded };
    assert_eq!(view.attempts[0].closing, Some(closing));
    assert_eq!(view.attempts[0].last_generation, Some(2));
    assert_eq!(world.history(apply.id).await, APPLIED);
    assert_eq!(
        world.history(plan.id).await,
        ["run.created", "run.queued", "attempt.offered", "run.running", "run.succeeded", "run.promoted"]
    );
    let state = world.state("network").await;
    assert_eq!((state.head, state.serial, state.head_run), (2, 2, Some(apply.id)));
    let log = world.coordinator.log(&world.alice, apply.id, None, 0, usize::MAX).await.unwrap();
    assert!(log.complete && log.next == 8);
}

#[tokio::test]
async fn d9_the_first_decision_stays() {
    let world = World::new().await;
    world.network().await;
    let run = world.create("network", Operation::Destroy { mode: DestroyMode::Perform }).await;
    let approval = run.approval.unwrap();

    let reason = Some("not on a Friday".to_owned());
    world.coordinator.review(&world.bob, approval, Verdict::Reject, reason.clone()).await.unwrap();
    let view = world.view(run.id).await;
    assert_eq!(view.run.status, RunStatus::Canceled);
    let record = view.approval.unwrap();
    assert_eq!((record.status, &record.reviews[0].reason), (ApprovalStatus::Rejected, &reason));
    assert_eq!(
        world.history(run.id).await,
        ["run.created", "approval.pending", "approval.rejected", "run.canceled"]
    );
    for (who, verdict) in [(&world.bob, Verdict::Reject), (&world.carol, Verdict::Approve)] {
        let again = world.coordinator.review(who, approval, verdict, None).await;
        assert_eq!(code(again), Code::AlreadyDecided);
    }
}

#[tokio::test]
async fn an_approval_that_nobody_decides_expires_with_its_run() {
    let world = World::new().await;
    let mut push = world.template("network", Tool::Terraform);
    push.approval.expires_after_s = Some(3_600);
    world.deploy(push).await;
    let run = world.create("network", Operation::Teardown).await;

    world.pass(3_599);
    assert_eq!(world.coordinator.sweep_step().await.unwrap(), 0);
    world.pass(1);
    // Too late already, even if no sweep has noticed.
    let late = world.coordinator.review(&world.bob, run.approval.unwrap(), Verdict::Approve, None).await;
    assert_eq!(code(late), Code::ApprovalInvalid);
    assert_eq!(world.coordinator.sweep_step().await.unwrap(), 1);
    let view = world.view(run.id).await;
    assert_eq!(view.run.status, RunStatus::Canceled);
    assert_eq!(view.run.error.unwrap().code, "approval_expired");
    assert_eq!(view.approval.unwrap().status, ApprovalStatus::Expired);
    let requeued = world.coordinator.requeue(&world.alice, run.id).await;
    assert_eq!(code(requeued), Code::ApprovalInvalid);
}

#[tokio::test]
async fn two_reviewers_are_two_people() {
    let world = World::new().await;
    let mut push = world.template("network", Tool::Terraform);
    push.approval.required = 2;
    world.deploy(push).await;
    let run = world.create("network", Operation::Teardown).await;
    let approval = run.approval.unwrap();

    let first = world.coordinator.review(&world.bob, approval, Verdict::Approve, None).await.unwrap();
    assert_eq!(first.status, ApprovalStatus::Pending);
    assert_eq!(world.status(run.id).await, RunStatus::PendingApproval);
    // The same person under another name and role is still the same person.
    let bob_again = Caller { name: "robert".to_owned(), role: Role::Admin, ..world.bob.clone() };
    let twice = world.coordinator.review(&bob_again, approval, Verdict::Approve, None).await;
    assert_eq!(code(twice), Code::AlreadyDecided);
    let second = world.coordinator.review(&world.carol, approval, Verdict::Approve, None).await.unwrap();
    assert_eq!((second.status, second.reviews.len()), (ApprovalStatus::Approved, 2));
    assert_eq!(
        world.history(run.id).await,
        ["run.created", "approval.pending", "approval.reviewed", "approval.approved", "run.queued"]
    );
}

#[tokio::test]
async fn two_reviewers_at_once_are_both_counted() {
    let world = World::new().await;
    let mut push = world.template("network", Tool::Terraform);
    push.approval.required = 2;
    world.deploy(push).await;
    let run = world.create("network", Operation::Teardown).await;
    let approval = run.approval.unwrap();
    let (one, two) = tokio::join!(
        world.coordinator.review(&world.bob, approval, Verdict::Approve, None),
        world.coordinator.review(&world.carol, approval, Verdict::Approve, None),
    );
    one.unwrap();
    two.unwrap();
    assert_eq!(world.status(run.id).await, RunStatus::Queued);
}

#[tokio::test]
async fn a_policy_may_let_the_requester_approve() {
    let world = World::new().await;
    let mut push = world.template("network", Tool::Terraform);
    push.approval.allow_self = true;
    world.deploy(push).await;
    let run =
        world.coordinator.create_run(&world.root, new_run("network", Operation::Teardown)).await.unwrap();
    let approval = run.approval.unwrap();
    world.coordinator.review(&world.root, approval, Verdict::Approve, None).await.unwrap();
    assert_eq!(world.status(run.id).await, RunStatus::Queued);
}

#[tokio::test]
async fn a_canceled_run_withdraws_its_approval() {
    let world = World::new().await;
    world.network().await;
    let run = world.create("network", Operation::Teardown).await;
    world.coordinator.cancel(&world.alice, run.id, Some("wrong instance".to_owned())).await.unwrap();
    let view = world.view(run.id).await;
    assert_eq!(view.approval.unwrap().status, ApprovalStatus::Withdrawn);
    assert_eq!(
        world.history(run.id).await,
        ["run.created", "approval.pending", "approval.withdrawn", "run.canceled"]
    );
    let late = world.coordinator.review(&world.bob, run.approval.unwrap(), Verdict::Approve, None).await;
    assert_eq!(code(late), Code::AlreadyDecided);
    let again = world.coordinator.cancel(&world.alice, run.id, None).await;
    assert_eq!(code(again), Code::AlreadyTerminal);
}

/// A commit whose connection was lost may still arrive. Whoever was refused meanwhile relies on nothing having been done.
#[tokio::test]
async fn a_refusal_after_a_commit_in_doubt_is_given_when_that_commit_cannot_happen_any_more() {
    let world = World::new().await;
    let mut push = world.template("network", Tool::Terraform);
    push.approval.expires_after_s = Some(3_600);
    world.deploy(push).await;
    let approval = world.create("network", Operation::Teardown).await.approval.unwrap();
    let record = world.coordinator.approval(&world.bob, approval).await.unwrap();
    let expires = record.expires_at.expect("approvals of this template expire");
    let clock = Arc::clone(&world.clock);
    // The approval is on its way to the database when the connection breaks, and the time is over.
    *world.store.hold_next.lock().unwrap() = Some(Box::new(move || clock.set(expires)));
    let refused = world.coordinator.review(&world.bob, approval, Verdict::Approve, None).await;
    assert_eq!(code(refused), Code::ApprovalInvalid);
    let late = world.store.release().await;
    assert!(matches!(late[..], [Err(Conflict::Version { .. })]), "{late:?}");
    let record = world.coordinator.approval(&world.bob, approval).await.unwrap();
    assert_eq!((record.status, record.reviews.len()), (ApprovalStatus::Pending, 0));
}
