//! A worker does its whole work over the network.

use std::sync::Arc;

use forgeplane_core::Code;
use forgeplane_core::digest::Digest;
use forgeplane_core::model::*;
use forgeplane_core::ports::*;
use serde_json::json;

use crate::served::Served;
use crate::support::{House, state_document};
use crate::worker::FakeWorker;

#[tokio::test]
async fn a_run_is_executed_over_the_network() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let worker = FakeWorker::enroll_over(&house, Arc::new(served.client())).await;
    let instance = house.instance(0).await;
    let plan = house.run(&instance, json!({"operation": "plan"})).await;
    worker.plan(plan.id).await;
    assert_eq!(house.run_now(plan.id).await.run.status, forgeplane_server::api::RunStatus::Succeeded);

    let promoted: forgeplane_server::api::Run =
        house.ask(&house.operator, &format!("/api/v1/runs/{}/promote", plan.id)).await.expect(201);
    let mut job = worker.claim(promoted.id).await;
    for line in ["one\n", "two\n", "three\n"] {
        worker.log(&mut job, LogStream::Stdout, line.as_bytes()).await;
    }
    assert_eq!(worker.save(&mut job, 0, &state_document(1)).await.unwrap(), 1);
    assert_eq!(worker.save(&mut job, 1, &state_document(2)).await.unwrap(), 2);
    worker.conclude(job, OutcomeKind::Succeeded).await;
    let detail = house.run_now(promoted.id).await;
    assert_eq!(detail.run.status, forgeplane_server::api::RunStatus::Succeeded);
    let log = house.get(&house.viewer, &format!("/api/v1/runs/{}/log", promoted.id)).await;
    assert!(log.text().contains("one") && log.text().contains("three"), "{}", log.text());
    served.stop().await;
}

#[tokio::test]
async fn large_documents_travel_in_chunks() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let worker = FakeWorker::enroll_over(&house, Arc::new(served.client())).await;
    let instance = house.instance(0).await;
    let run = house.run(&instance, json!({"operation": "destroy", "mode": "perform"})).await;
    let mut job = worker.claim(run.id).await;
    let mut document = state_document(1);
    document["padding"] = json!("x".repeat(20 << 20));
    assert_eq!(worker.save(&mut job, 0, &document).await.unwrap(), 1);
    worker.conclude(job, OutcomeKind::Succeeded).await;

    // The next attempt's bundle carries it back.
    let run = house.run(&instance, json!({"operation": "destroy", "mode": "perform"})).await;
    house.coordinator.settle().await.unwrap();
    let attempt = house.run_now(run.id).await.attempts.pop().unwrap();
    let of = AttemptRef { attempt: attempt.id, fence: Fence(attempt.fence) };
    let bundle = worker.plane.bundle(&worker.session, of).await.unwrap();
    assert_eq!(bundle.state.unwrap().len(), document.to_string().len());
    served.stop().await;
}

#[tokio::test]
async fn refusals_arrive_as_they_were_said() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let (remote, local) = (served.client(), house.coordinator.in_process());
    let worker = FakeWorker::enroll_over(&house, Arc::new(remote.clone())).await;
    let instance = house.instance(0).await;
    let run = house.run(&instance, json!({"operation": "plan"})).await;
    let job = worker.claim(run.id).await;
    worker.conclude(job, OutcomeKind::Succeeded).await;
    let attempt = house.run_now(run.id).await.attempts.pop().unwrap();
    let claim = ClaimRef { attempt: attempt.id, fence: Fence(attempt.fence), nonce: Nonce([1; 16]) };
    let of = AttemptRef { attempt: attempt.id, fence: claim.fence };

    for plane in [&remote as &dyn ControlPlane, &local] {
        let session = &worker.session;
        let refusal = |error: ControlError| match error {
            ControlError::Refused(refusal) => refusal,
            ControlError::Unavailable(error) => panic!("{error}"),
        };
        let claiming = plane.claim(session, ClaimRequest { attempt: of, nonce: Nonce([2; 16]) }).await;
        assert_eq!(refusal(claiming.unwrap_err()).code, Code::AttemptClosed);
        let bundle = plane.bundle(session, AttemptRef { fence: Fence(99_999), ..of }).await.map(|_| ());
        assert_eq!(refusal(bundle.unwrap_err()).code, Code::FenceMismatch);
        let frame = LogFrame {
            stream: LogStream::Stdout,
            at: forgeplane_core::Timestamp::UNIX_EPOCH,
            bytes: "x".into(),
        };
        let append = LogAppend { claim, offset: 0, frames: vec![frame] };
        assert_eq!(refusal(plane.append_log(session, append).await.unwrap_err()).code, Code::FenceMismatch);
        let upload = ArtifactUpload {
            claim,
            kind: ArtifactKind::Plan,
            digest: Digest::of(b"other"),
            bytes: "x".into(),
        };
        let error = refusal(plane.put_artifact(session, upload).await.unwrap_err());
        assert!(matches!(error.code, Code::DigestMismatch | Code::FenceMismatch), "{error}");
    }
    served.stop().await;
}

/// An order reaches a worker that waits for it, not only with its next heartbeat.
#[tokio::test]
async fn a_cancel_reaches_a_waiting_worker() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let worker = FakeWorker::enroll_over(&house, Arc::new(served.client())).await;
    let instance = house.instance(0).await;
    let run = house.run(&instance, json!({"operation": "plan"})).await;
    let job = worker.claim(run.id).await;
    let known = Orders::default();
    let waiting = worker.plane.orders(&worker.session, &known);
    let canceling = async {
        house.ask(&house.operator, &format!("/api/v1/runs/{}/cancel", run.id)).await;
    };
    let (orders, ()) = tokio::join!(waiting, canceling);
    assert_eq!(orders.unwrap().stops.len(), 1);
    worker.conclude(job, OutcomeKind::Failed).await;
    served.stop().await;
}
