//! A session is checked with every call and on open streams.

use std::sync::Arc;
use std::time::Duration;

use forgeplane_core::Code;
use forgeplane_core::evidence::Envelope;
use forgeplane_core::id::AttemptId;
use forgeplane_core::model::*;
use forgeplane_core::ports::*;
use forgeplane_core::{Refusal, Timestamp};
use serde_json::json;

use crate::served::Served;
use crate::support::House;
use crate::worker::FakeWorker;

fn refusal(error: ControlError) -> Refusal {
    match error {
        ControlError::Refused(refusal) => refusal,
        ControlError::Unavailable(error) => panic!("unavailable instead of refused: {error}"),
    }
}

/// What each call says to a session.
async fn every_call(plane: &dyn ControlPlane, session: &Session) -> Vec<(&'static str, Refusal)> {
    let attempt = AttemptRef { attempt: AttemptId::new(Timestamp::UNIX_EPOCH, [1; 10]), fence: Fence(1) };
    let claim = ClaimRef { attempt: attempt.attempt, fence: attempt.fence, nonce: Nonce([1; 16]) };
    let digest = forgeplane_core::digest::Digest::of(b"x");
    let frame = LogFrame { stream: LogStream::Stdout, at: Timestamp::UNIX_EPOCH, bytes: "x".into() };
    let key = ed25519_dalek::SigningKey::from_bytes(&[1; 32]);
    let statement = forgeplane_core::evidence::NotStarted {
        project: forgeplane_core::id::ProjectId::new(Timestamp::UNIX_EPOCH, [1; 10]),
        run: forgeplane_core::id::RunId::new(Timestamp::UNIX_EPOCH, [1; 10]),
        attempt: attempt.attempt,
        fence: attempt.fence,
        nonce: None,
        worker: session.worker,
        reason: RunError { code: "x".into(), message: "x".into() },
        retryable: true,
    };
    let envelope = Envelope::sign(&statement, &key).unwrap();
    let write = StateWrite { claim, expected_generation: 0, digest, document: "x".into() };
    let upload = ArtifactUpload { claim, kind: ArtifactKind::Plan, digest, bytes: "x".into() };
    let append = LogAppend { claim, offset: 0, frames: vec![frame] };
    let request = ClaimRequest { attempt, nonce: Nonce([1; 16]) };
    vec![
        ("heartbeat", refusal(plane.heartbeat(session, Heartbeat::default()).await.unwrap_err())),
        ("orders", refusal(plane.orders(session, &Orders::default()).await.unwrap_err())),
        ("bundle", refusal(plane.bundle(session, attempt).await.map(|_| ()).unwrap_err())),
        ("claim", refusal(plane.claim(session, request).await.map(|_| ()).unwrap_err())),
        ("append_log", refusal(plane.append_log(session, append).await.unwrap_err())),
        ("put_state", refusal(plane.put_state(session, write).await.unwrap_err())),
        ("put_artifact", refusal(plane.put_artifact(session, upload).await.unwrap_err())),
        ("rotate_key", refusal(plane.rotate_key(session, envelope.clone()).await.unwrap_err())),
        ("conclude", refusal(plane.conclude(session, envelope).await.unwrap_err())),
    ]
}

#[tokio::test]
async fn every_call_refuses_a_session_that_is_not_the_workers() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let worker = FakeWorker::enroll_over(&house, Arc::new(served.client())).await;
    let stolen = Session { token: "fps_guessed".into(), ..worker.session.clone() };
    let older = Session { incarnation: worker.session.incarnation + 1, ..worker.session.clone() };
    let unsendable = Session { token: "line\nbreak".into(), ..worker.session.clone() };
    for session in [&stolen, &older, &unsendable] {
        for (call, refusal) in every_call(&*worker.plane, session).await {
            assert_eq!(refusal.code, Code::Unauthenticated, "{call}: {refusal}");
        }
    }
    served.stop().await;
}

#[tokio::test]
async fn every_call_refuses_a_disconnected_worker() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let worker = FakeWorker::enroll_over(&house, Arc::new(served.client())).await;
    house.ask(&house.admin, &format!("/api/v1/workers/{}/disconnect", worker.name)).await;
    for (call, refusal) in every_call(&*worker.plane, &worker.session).await {
        assert!(matches!(refusal.code, Code::WorkerDisabled | Code::Unauthenticated), "{call}: {refusal}");
    }
    served.stop().await;
}

/// A worker that only waits for jobs learns at once that it was disconnected, and gets none any more.
#[tokio::test]
async fn disconnecting_a_worker_cuts_its_open_streams() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let control = served.client();
    let worker = FakeWorker::enroll_over(&house, Arc::new(control.clone())).await;
    let mut jobs = control.queue().subscribe(worker.session.worker).await.unwrap();
    let instance = house.instance(0).await;
    let run = house.run(&instance, json!({"operation": "plan"})).await;
    let mut job = worker.claim(run.id).await;
    worker.log(&mut job, LogStream::Stdout, b"before\n").await;

    let waiting = tokio::spawn(async move {
        loop {
            match jobs.next().await {
                Ok(delivery) => delivery.ack().await.unwrap(),
                Err(error) => break error,
            }
        }
    });
    house.ask(&house.admin, &format!("/api/v1/workers/{}/disconnect", worker.name)).await;
    let error =
        tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("within seconds").unwrap();
    assert!(error.to_string().contains("disconnected") || error.to_string().contains("session"), "{error}");
    let frame = LogFrame { stream: LogStream::Stdout, at: Timestamp::UNIX_EPOCH, bytes: "after".into() };
    let claim = ClaimRef {
        attempt: AttemptId::new(Timestamp::UNIX_EPOCH, [1; 10]),
        fence: Fence(1),
        nonce: Nonce([1; 16]),
    };
    let append = LogAppend { claim, offset: 7, frames: vec![frame] };
    refusal(worker.plane.append_log(&worker.session, append).await.unwrap_err());
    served.stop().await;
}

/// A worker that registers again ends what its former incarnation had open.
#[tokio::test]
async fn a_new_incarnation_ends_the_streams_of_the_older_one() {
    use ed25519_dalek::Signer as _;
    let house = House::new().await;
    let served = Served::of(&house).await;
    let control = served.client();
    let worker = FakeWorker::enroll_over(&house, Arc::new(control.clone())).await;
    let mut jobs = control.queue().subscribe(worker.session.worker).await.unwrap();
    let key = ed25519_dalek::SigningKey::from_bytes(
        forgeplane_core::digest::Digest::of(worker.name.as_bytes()).as_bytes(),
    );
    let challenge = control.challenge().await.unwrap();
    let message = forgeplane_core::evidence::registration_message(&challenge.0, &worker.name, "default");
    let registered = control
        .register(Registration {
            name: worker.name.parse().unwrap(),
            pool: "default".parse().unwrap(),
            capabilities: [("terraform".to_owned(), "1.9.0".to_owned())].into(),
            max_jobs: 1,
            unsafe_no_isolation: false,
            public_key: key.verifying_key().to_bytes(),
            enrollment_token: None,
            proof: key.sign(&message).to_bytes(),
            challenge,
            certificate: None,
        })
        .await
        .unwrap();
    assert!(registered.session.incarnation > worker.session.incarnation);
    let ended = tokio::time::timeout(Duration::from_secs(10), jobs.next()).await.expect("within seconds");
    assert!(ended.is_err());
    control.queue().subscribe(worker.session.worker).await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_worker_pulls_its_own_jobs_only_and_publishes_none() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let control = served.client();
    let queue = control.queue();
    let make = forgeplane_testkit::fixtures::Fixtures::new();
    assert!(queue.subscribe(make.id()).await.is_err(), "nobody has registered yet");
    let worker = FakeWorker::enroll_over(&house, Arc::new(control)).await;
    assert!(queue.subscribe(make.id()).await.is_err(), "another worker's jobs");
    assert!(queue.publish(&make.job_for(worker.session.worker)).await.is_err());
    served.stop().await;
}
