//! Every status a run can have, and every command people can give in it.

use forgeplane_core::model::OutcomeKind;
use forgeplane_server::api;
use serde_json::json;

use crate::support::House;
use crate::worker::FakeWorker;

const COMMANDS: [&str; 5] = ["approve", "reject", "cancel", "requeue", "promote"];

/// Brings a fresh run that an approval gates to `status`.
async fn bring_to(house: &House, worker: &FakeWorker, status: api::RunStatus) -> api::Run {
    use api::RunStatus as S;
    let instance = house.instance(1).await;
    let run = house.run(&instance, json!({"operation": "destroy", "mode": "perform"})).await;
    if status != S::PendingApproval {
        let approve = format!("/api/v1/approvals/{}/approve", run.approval.unwrap());
        house.ask(&house.approver, &approve).await.expect::<api::Approval>(200);
    }
    let cancel = format!("/api/v1/runs/{}/cancel", run.id);
    match status {
        S::PendingApproval | S::Queued => {}
        S::Running => drop(worker.claim(run.id).await),
        S::Canceling => {
            let _job = worker.claim(run.id).await;
            house.ask(&house.operator, &cancel).await.expect::<api::Run>(200);
        }
        S::Canceled => drop(house.ask(&house.operator, &cancel).await.expect::<api::Run>(200)),
        S::Succeeded => worker.execute(run.id, OutcomeKind::Succeeded).await,
        S::Failed => worker.execute(run.id, OutcomeKind::Failed).await,
        S::TimedOut => worker.execute(run.id, OutcomeKind::TimedOut).await,
    }
    let run = house.run_now(run.id).await.run;
    assert_eq!(run.status, status);
    run
}

/// What `spec.md` §3 says: the status after the command, or the refusal's code.
fn expected(status: api::RunStatus, command: &str) -> Result<api::RunStatus, &'static str> {
    use api::RunStatus as S;
    match (command, status) {
        ("approve", S::PendingApproval) => Ok(S::Queued),
        ("reject", S::PendingApproval) => Ok(S::Canceled),
        ("approve" | "reject", _) => Err("already_decided"),
        ("cancel", S::PendingApproval | S::Queued) => Ok(S::Canceled),
        ("cancel", S::Running | S::Canceling) => Ok(S::Canceling),
        ("cancel", _) => Err("already_terminal"),
        ("requeue", S::Failed | S::Canceled | S::TimedOut) => Ok(S::Queued),
        ("requeue", _) => Err("invalid_transition"),
        ("promote", _) => Err("not_promotable"),
        _ => unreachable!("{command}"),
    }
}

#[tokio::test]
async fn t_077_every_command_in_every_status_gets_its_answer_and_never_a_500() {
    let house = House::new().await;
    let worker = house.worker().await;
    for status in api::RunStatus::ALL.iter().copied() {
        for command in COMMANDS {
            let run = bring_to(&house, &worker, status).await;
            let (token, path) = match command {
                "approve" | "reject" => {
                    (&house.approver, format!("/api/v1/approvals/{}/{command}", run.approval.unwrap()))
                }
                _ => (&house.operator, format!("/api/v1/runs/{}/{command}", run.id)),
            };
            let answer = house.ask(token, &path).await;
            let after = house.run_now(run.id).await.run;
            match expected(status, command) {
                Ok(next) => {
                    assert_eq!(answer.status, 200, "{command} in {status}: {}", answer.text());
                    assert_eq!(after.status, next, "{command} in {status}");
                }
                Err(code) => {
                    answer.problem(409, code);
                    assert_eq!(after, run, "{command} in {status} was refused and still changed something");
                }
            }
        }
    }
}

#[tokio::test]
async fn t_077_a_plan_is_promotable_exactly_when_it_succeeded() {
    let house = House::new().await;
    let worker = house.worker().await;
    for status in api::RunStatus::ALL.iter().copied().filter(|s| *s != api::RunStatus::PendingApproval) {
        use api::RunStatus as S;
        let instance = house.instance(0).await;
        let run = house.run(&instance, json!({"operation": "plan"})).await;
        let cancel = format!("/api/v1/runs/{}/cancel", run.id);
        match status {
            S::Running => drop(worker.claim(run.id).await),
            S::Canceling => {
                let _job = worker.claim(run.id).await;
                house.ask(&house.operator, &cancel).await.expect::<api::Run>(200);
            }
            S::Canceled => drop(house.ask(&house.operator, &cancel).await.expect::<api::Run>(200)),
            S::Succeeded => worker.plan(run.id).await,
            S::Failed => worker.execute(run.id, OutcomeKind::Failed).await,
            S::TimedOut => worker.execute(run.id, OutcomeKind::TimedOut).await,
            _ => {}
        }
        assert_eq!(house.run_now(run.id).await.run.status, status);
        let answer = house.ask(&house.operator, &format!("/api/v1/runs/{}/promote", run.id)).await;
        if status == S::Succeeded {
            let apply: api::Run = answer.expect(201);
            assert_eq!(apply.status, S::Queued, "nobody has to approve it");
        } else {
            answer.problem(409, "not_promotable");
        }
    }
}
