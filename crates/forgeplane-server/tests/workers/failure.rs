//! Servers that stop, messages that are not what they should be.

use std::sync::Arc;

use forgeplane_core::ports::*;
use forgeplane_core::{Code, Refusal};
use forgeplane_proto::v1::worker_api_client::WorkerApiClient;
use forgeplane_proto::{from_status, v1, write_session};
use forgeplane_server::workers::WorkerService;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::served::{PLAINTEXT, Served, client};
use crate::support::House;
use crate::worker::FakeWorker;

/// Calls until the answer is not that nobody is there.
async fn persist<T>(call: impl AsyncFn() -> Result<T, ControlError>) -> T {
    for _ in 0..200 {
        match call().await {
            Ok(answer) => return answer,
            Err(ControlError::Unavailable(_)) => tokio::task::yield_now().await,
            Err(ControlError::Refused(refusal)) => panic!("{refusal}"),
        }
    }
    panic!("nobody answers");
}

#[tokio::test]
async fn a_worker_goes_to_the_other_coordinator_when_one_stops() {
    let house = House::new().await;
    let (one, other) = (Served::of(&house).await, Served::of(&house).await);
    let control = client(&[&one, &other]);
    let worker = FakeWorker::enroll_over(&house, Arc::new(control.clone())).await;
    one.stop().await;
    let beat = async || worker.plane.heartbeat(&worker.session, Heartbeat::default()).await;
    persist(beat).await;
    control.queue().subscribe(worker.session.worker).await.unwrap();
    other.stop().await;
    assert!(matches!(beat().await, Err(ControlError::Unavailable(_))));
}

#[tokio::test]
async fn a_worker_comes_back_after_a_restart() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let address = served.address.to_string();
    let worker = FakeWorker::enroll_over(&house, Arc::new(served.client())).await;
    served.stop().await;
    let shutdown = CancellationToken::new();
    let service = WorkerService::new(&house.coordinator, shutdown.child_token());
    let served = Served::start(&address, service, PLAINTEXT, shutdown).await;
    persist(async || worker.plane.heartbeat(&worker.session, Heartbeat::default()).await).await;
    served.stop().await;
}

/// Streams and long waits do not hold up a shutdown.
#[tokio::test]
async fn a_shutdown_ends_streams_and_long_waits() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let control = served.client();
    let worker = FakeWorker::enroll_over(&house, Arc::new(control.clone())).await;
    let mut jobs = control.queue().subscribe(worker.session.worker).await.unwrap();
    let known = Orders::default();
    let waiting = worker.plane.orders(&worker.session, &known);
    let began = std::time::Instant::now();
    let (orders, job, ()) = tokio::join!(waiting, jobs.next(), served.stop());
    assert!(matches!(orders, Err(ControlError::Unavailable(_))));
    assert!(job.is_err());
    assert!(began.elapsed().as_secs() < 9, "nothing was left behind");
}

async fn raw(served: &Served) -> tonic::transport::Channel {
    Endpoint::from_shared(served.url()).unwrap().connect().await.unwrap()
}

fn refusal(status: Status) -> Refusal {
    match from_status(status) {
        ControlError::Refused(refusal) => refusal,
        ControlError::Unavailable(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn health_and_reflection_answer() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let channel = raw(&served).await;
    for service in ["", "forgeplane.worker.v1.WorkerApi"] {
        let request = HealthCheckRequest { service: service.into() };
        let answer = HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service:?}");
    }
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let request = tonic_reflection::pb::v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::iter([request]))
        .await
        .unwrap()
        .into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("a list of services");
    };
    assert!(list.service.iter().any(|it| it.name == "forgeplane.worker.v1.WorkerApi"), "{list:?}");
    served.stop().await;
}

#[tokio::test]
async fn calls_without_a_session_are_refused() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let mut api = WorkerApiClient::new(raw(&served).await);
    let refused = refusal(api.heartbeat(v1::HeartbeatRequest::default()).await.unwrap_err());
    assert_eq!(refused.code, Code::Unauthenticated);
    let refused = refusal(api.pull_jobs(tokio_stream::empty::<v1::PullRequest>()).await.unwrap_err());
    assert_eq!(refused.code, Code::Unauthenticated);
    let refused = refusal(api.append_log(tokio_stream::empty::<v1::LogAppend>()).await.unwrap_err());
    assert_eq!(refused.code, Code::Unauthenticated);
    served.stop().await;
}

#[tokio::test]
async fn g2_messages_that_are_not_what_they_should_be_are_refused_by_field() {
    let house = House::new().await;
    let served = Served::of(&house).await;
    let worker = FakeWorker::enroll_over(&house, Arc::new(served.client())).await;
    let mut api = WorkerApiClient::new(raw(&served).await);
    fn with<T>(worker: &FakeWorker, message: T) -> Request<T> {
        let mut request = Request::new(message);
        write_session(request.metadata_mut(), &worker.session).unwrap();
        request
    }
    let claim = v1::ClaimRequest { attempt: "not an id".into(), fence: 1, nonce: vec![1; 16].into() };
    let refused = refusal(api.claim(with(&worker, claim)).await.unwrap_err());
    assert_eq!((refused.code, refused.field.as_deref()), (Code::InvalidField, Some("attempt")));

    let refused =
        refusal(api.conclude(with(&worker, v1::ConcludeRequest { envelope: "{".into() })).await.unwrap_err());
    assert_eq!(refused.code, Code::InvalidEvidence);

    // Chunks without a header, with two, with nothing at all.
    let header = || Some(v1::StateHeader::default());
    let chunk = |header, bytes: &'static [u8]| v1::StateChunk { header, bytes: bytes.into() };
    for chunks in [vec![], vec![chunk(None, b"x")], vec![chunk(header(), b"x"), chunk(header(), b"y")]] {
        let refused = refusal(api.put_state(with(&worker, tokio_stream::iter(chunks))).await.unwrap_err());
        assert_eq!((refused.code, refused.field.as_deref()), (Code::InvalidField, Some("header")));
    }
    // More than one message may have.
    let large = v1::StateChunk { header: header(), bytes: vec![0; 17 << 20].into() };
    let status = api.put_state(with(&worker, tokio_stream::iter([large]))).await.unwrap_err();
    assert!(
        matches!(
            status.code(),
            tonic::Code::OutOfRange | tonic::Code::ResourceExhausted | tonic::Code::Internal
        ),
        "{status:?}"
    );
    // A request that says nothing.
    let mut answers = api
        .pull_jobs(with(&worker, tokio_stream::iter([v1::PullRequest { request: None }])))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(refusal(answers.message().await.unwrap_err()).field.as_deref(), Some("request"));
    worker.beat().await;
    served.stop().await;
}
