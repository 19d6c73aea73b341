//! Every call of the worker API.

use std::pin::Pin;
use std::time::Duration;

use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::Envelope;
use forgeplane_core::ports::{ControlError, LogAppend, Orders, Registration, Session};
use forgeplane_core::{Code, Refusal};
use forgeplane_proto::v1::worker_api_server::WorkerApi;
use forgeplane_proto::{
    artifact_from, bundle_chunks, into_status, invalid, read_session, registration_from, state_from, v1,
};
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::pull::Relay;
use super::upload::receive;
use super::{Limits, WorkerService};

/// How long a log stream may be silent before its session is checked.
const CHECK: Duration = Duration::from_secs(2);

type Answer<T> = Result<Response<T>, Status>;

fn session_of<T>(request: &Request<T>) -> Result<Session, Status> {
    let session = read_session(request.metadata()).map_err(|refusal| into_status(&refusal.into()))?;
    Ok(Session { certificate: certificate_of(request), ..session })
}

/// The client certificate that this connection was opened with.
fn certificate_of<T>(request: &Request<T>) -> Option<Digest> {
    request.peer_certs()?.first().map(|certificate| Digest::of(certificate))
}

fn refused(error: &ControlError) -> Status {
    if let ControlError::Unavailable(source) = error {
        tracing::warn!(error = %source, "a worker's call could not be answered");
    }
    into_status(error)
}

fn answer<T, M: From<T>>(result: Result<T, ControlError>) -> Answer<M> {
    result.map(|it| Response::new(it.into())).map_err(|error| refused(&error))
}

#[tonic::async_trait]
impl WorkerApi for WorkerService {
    async fn get_challenge(&self, _: Request<v1::GetChallengeRequest>) -> Answer<v1::GetChallengeResponse> {
        let challenge = self.control.challenge().await.map_err(|error| refused(&error))?;
        Ok(Response::new(v1::GetChallengeResponse { challenge: challenge.0 }))
    }

    async fn register(&self, request: Request<v1::RegisterRequest>) -> Answer<v1::RegisterResponse> {
        let (certificate, peer) = (certificate_of(&request), request.remote_addr());
        let registration = registration_from(request.into_inner()).map_err(|error| invalid(&error))?;
        let registration = Registration { certificate, ..registration };
        let (name, pool) = (registration.name.clone(), registration.pool.clone());
        let key = forgeplane_core::evidence::key_id(&registration.public_key);
        let registered = self.control.register(registration).await;
        if let Err(ControlError::Refused(refusal)) = &registered {
            // Somebody tries a token that is not theirs, or a key that is not trusted any more.
            tracing::warn!(?peer, %name, %pool, %key, code = %refusal.code, "a worker's registration was refused");
            metrics::counter!("forgeplane_registrations_refused_total", "code" => refusal.code.as_str())
                .increment(1);
        }
        answer(registered)
    }

    async fn heartbeat(&self, request: Request<v1::HeartbeatRequest>) -> Answer<v1::Orders> {
        let session = session_of(&request)?;
        let heartbeat = request.into_inner().try_into().map_err(|error| invalid(&error))?;
        answer(self.control.heartbeat(&session, heartbeat).await)
    }

    async fn wait_for_orders(&self, request: Request<v1::Orders>) -> Answer<v1::Orders> {
        let session = session_of(&request)?;
        let known: Orders = request.into_inner().try_into().map_err(|error| invalid(&error))?;
        tokio::select! {
            orders = self.control.orders(&session, &known) => answer(orders),
            // Nothing new is known here; the worker asks again, and finds another coordinator.
            () = self.shutdown.cancelled() => Err(Status::unavailable("the coordinator is shutting down")),
        }
    }

    type PullJobsStream = ReceiverStream<Result<v1::PullResponse, Status>>;

    async fn pull_jobs(&self, request: Request<Streaming<v1::PullRequest>>) -> Answer<Self::PullJobsStream> {
        let session = session_of(&request)?;
        self.sessions.authenticate(&session).await.map_err(|error| refused(&error))?;
        let jobs = self.queue.subscribe(session.worker).await.map_err(|error| {
            tracing::warn!(%error, worker = %session.worker, "a worker's jobs cannot be pulled");
            Status::unavailable("the job queue is not available")
        })?;
        let (answers, responses) = mpsc::channel(16);
        tokio::spawn(Relay::new(self.clone(), session, jobs, request.into_inner(), answers).run());
        Ok(Response::new(ReceiverStream::new(responses)))
    }

    type FetchBundleStream = Pin<Box<dyn Stream<Item = Result<v1::BundleChunk, Status>> + Send>>;

    async fn fetch_bundle(
        &self,
        request: Request<v1::FetchBundleRequest>,
    ) -> Answer<Self::FetchBundleStream> {
        let session = session_of(&request)?;
        let attempt = request.into_inner().try_into().map_err(|error| invalid(&error))?;
        let bundle = self.control.bundle(&session, attempt).await.map_err(|error| refused(&error))?;
        Ok(Response::new(Box::pin(tokio_stream::iter(bundle_chunks(bundle).map(Ok)))))
    }

    async fn claim(&self, request: Request<v1::ClaimRequest>) -> Answer<v1::ClaimGrant> {
        let session = session_of(&request)?;
        let claim = request.into_inner().try_into().map_err(|error| invalid(&error))?;
        answer(self.control.claim(&session, claim).await)
    }

    type AppendLogStream = Pin<Box<dyn Stream<Item = Result<v1::LogAck, Status>> + Send>>;

    /// Each append is authorized by itself, and an append is asked for when the one before it is stored.
    async fn append_log(&self, request: Request<Streaming<v1::LogAppend>>) -> Answer<Self::AppendLogStream> {
        let session = session_of(&request)?;
        self.sessions.authenticate(&session).await.map_err(|error| refused(&error))?;
        let appending = Appending { service: self.clone(), session, appends: request.into_inner() };
        let acks = unfold(Some(appending), |state| async {
            let mut appending = state?;
            match appending.next().await {
                Ok(Some(ack)) => Some((Ok(ack), Some(appending))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(acks)))
    }

    async fn put_state(&self, request: Request<Streaming<v1::StateChunk>>) -> Answer<v1::PutStateResponse> {
        let session = session_of(&request)?;
        self.sessions.authenticate(&session).await.map_err(|error| refused(&error))?;
        let Limits { state, .. } = self.limits;
        let (header, document) = receive("state document", &mut request.into_inner(), state).await?;
        let write = state_from(header, document).map_err(|error| invalid(&error))?;
        let generation = self.control.put_state(&session, write).await.map_err(|error| refused(&error))?;
        Ok(Response::new(v1::PutStateResponse { generation }))
    }

    async fn put_artifact(
        &self,
        request: Request<Streaming<v1::ArtifactChunk>>,
    ) -> Answer<v1::PutArtifactResponse> {
        let session = session_of(&request)?;
        self.sessions.authenticate(&session).await.map_err(|error| refused(&error))?;
        let Limits { artifact, .. } = self.limits;
        let (header, bytes) = receive("file", &mut request.into_inner(), artifact).await?;
        let upload = artifact_from(header, bytes).map_err(|error| invalid(&error))?;
        self.control.put_artifact(&session, upload).await.map_err(|error| refused(&error))?;
        Ok(Response::new(v1::PutArtifactResponse {}))
    }

    async fn rotate_key(&self, request: Request<v1::RotateKeyRequest>) -> Answer<v1::RotateKeyResponse> {
        let session = session_of(&request)?;
        let rotation = read_envelope(&request.into_inner().envelope)?;
        self.control.rotate_key(&session, rotation).await.map_err(|error| refused(&error))?;
        Ok(Response::new(v1::RotateKeyResponse {}))
    }

    async fn conclude(&self, request: Request<v1::ConcludeRequest>) -> Answer<v1::ConcludeResponse> {
        let session = session_of(&request)?;
        let envelope = read_envelope(&request.into_inner().envelope)?;
        answer(self.control.conclude(&session, envelope).await)
    }
}

fn read_envelope(text: &str) -> Result<Envelope, Status> {
    Envelope::from_json(text).map_err(|error| {
        into_status(&Refusal::new(Code::InvalidEvidence, error.to_string()).field("envelope").into())
    })
}

/// An open log stream.
struct Appending {
    service: WorkerService,
    session: Session,
    appends: Streaming<v1::LogAppend>,
}

impl Appending {
    /// Stores the next append; `None` when the worker has no more.
    async fn next(&mut self) -> Result<Option<v1::LogAck>, Status> {
        let message = loop {
            tokio::select! {
                message = self.appends.message() => break message?,
                () = tokio::time::sleep(CHECK) => {
                    self.service.sessions.authenticate(&self.session).await.map_err(|error| refused(&error))?;
                }
                () = self.service.shutdown.cancelled() => {
                    return Err(Status::unavailable("the coordinator is shutting down"));
                }
            }
        };
        let Some(message) = message else { return Ok(None) };
        let append: LogAppend = message.try_into().map_err(|error| invalid(&error))?;
        let end =
            self.service.control.append_log(&self.session, append).await.map_err(|error| refused(&error))?;
        Ok(Some(v1::LogAck { end }))
    }
}
