//! The worker's end: a [`ControlPlane`] and a [`JobQueue`](forgeplane_core::ports::JobQueue) that call a coordinator.

mod connect;
mod jobs;
mod logs;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forgeplane_core::evidence::Envelope;
use forgeplane_core::ports::{
    ArtifactUpload, AttemptRef, Bundle, Challenge, ClaimGrant, ClaimRequest, ControlError, ControlPlane,
    Heartbeat, LogAppend, Orders, ReceiptAnswer, Registered, Registration, Session, StateWrite,
};
use tonic::transport::Channel;
use tonic::{Request, Status};

pub use connect::{ConnectError, ConnectOptions};
pub use jobs::GrpcQueue;

use crate::v1::worker_api_client::WorkerApiClient;
use crate::{
    BundleAssembly, CHUNK_BYTES, InvalidMessage, artifact_header, from_status, registration_into,
    state_header, v1, write_session,
};
use logs::LogStreams;

/// How long an ordinary call may take.
const CALL: Duration = Duration::from_secs(30);
/// How long waiting for orders may take: longer than the coordinator lets it.
const ORDERS: Duration = Duration::from_secs(60);
/// How long a transfer may stand still.
const IDLE: Duration = Duration::from_secs(60);
/// How long a large upload may take as a whole.
const UPLOAD: Duration = Duration::from_secs(30 * 60);
/// The most bytes of a bundle, all parts together.
const BUNDLE_BYTES: usize = 1 << 30;
/// The largest message: large bytes travel in chunks.
const MESSAGE_BYTES: usize = 16 << 20;

/// A coordinator that is reached by gRPC. Cheap to clone; connects when it is first used, and again when the
/// connection was lost.
///
/// Of several addresses one is used for as long as it answers; then the next one is.
#[derive(Clone)]
pub struct GrpcControlPlane {
    inner: Arc<Inner>,
}

struct Inner {
    /// One per address; replaced as a whole.
    clients: RwLock<Vec<WorkerApiClient<Channel>>>,
    current: AtomicUsize,
    /// The session of the latest registration, which the queue uses too.
    session: Mutex<Option<Session>>,
    logs: LogStreams,
}

impl std::fmt::Debug for GrpcControlPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrpcControlPlane").finish_non_exhaustive()
    }
}

/// A client and its place in the list.
struct Chosen {
    index: usize,
    client: WorkerApiClient<Channel>,
}

/// One per address.
fn clients(options: &ConnectOptions) -> Result<Vec<WorkerApiClient<Channel>>, ConnectError> {
    let channels = connect::channels(options)?.into_iter();
    Ok(channels
        .map(|channel| WorkerApiClient::new(channel).max_decoding_message_size(MESSAGE_BYTES))
        .collect())
}

fn broken(error: InvalidMessage) -> ControlError {
    ControlError::Unavailable(Box::new(error))
}

fn request<T>(session: &Session, message: T) -> Result<Request<T>, ControlError> {
    let mut request = Request::new(message);
    write_session(request.metadata_mut(), session)?;
    Ok(request)
}

/// Bytes in chunks; bytes that are empty have one empty chunk.
fn chunks(mut bytes: Bytes) -> impl Iterator<Item = Bytes> + Send {
    let mut first = true;
    std::iter::from_fn(move || {
        if bytes.is_empty() && !first {
            return None;
        }
        first = false;
        Some(bytes.split_to(bytes.len().min(CHUNK_BYTES)))
    })
}

impl GrpcControlPlane {
    /// Prepares connections to a coordinator's addresses. Nothing is connected yet.
    ///
    /// # Errors
    /// [`ConnectError`]: an address or a certificate that cannot be used, or one that would not be encrypted.
    pub fn new(options: &ConnectOptions) -> Result<Self, ConnectError> {
        Ok(Self {
            inner: Arc::new(Inner {
                clients: RwLock::new(clients(options)?),
                current: AtomicUsize::new(0),
                session: Mutex::default(),
                logs: LogStreams::default(),
            }),
        })
    }

    /// Reaches the coordinator another way from now on, such as with certificates that replace those that expire. The
    /// session stays, and calls under way end as they began.
    ///
    /// # Errors
    /// As [`GrpcControlPlane::new`]; everything stays as it was.
    pub fn replace(&self, options: &ConnectOptions) -> Result<(), ConnectError> {
        let new = clients(options)?;
        let mut clients = self.inner.clients.write().unwrap_or_else(PoisonError::into_inner);
        *clients = new;
        self.inner.current.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// The job queue through the same coordinator, for workers without a broker.
    #[must_use]
    pub fn queue(&self) -> GrpcQueue {
        GrpcQueue::new(self.clone())
    }

    fn chosen(&self) -> Chosen {
        let clients = self.inner.clients.read().unwrap_or_else(PoisonError::into_inner);
        let index = self.inner.current.load(Ordering::Relaxed) % clients.len();
        Chosen { index, client: clients[index].clone() }
    }

    fn session(&self) -> Option<Session> {
        self.inner.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The error of a call; the next call tries another address if this one cannot answer.
    fn failed(&self, index: usize, error: ControlError) -> ControlError {
        if matches!(error, ControlError::Unavailable(_)) {
            let addresses = self.inner.clients.read().unwrap_or_else(PoisonError::into_inner).len();
            let next = (index + 1) % addresses;
            // Somebody else may have moved on already.
            let _ = self.inner.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        error
    }

    /// Waits for an answer, but not for ever.
    async fn answer<T>(
        &self,
        index: usize,
        patience: Duration,
        call: impl Future<Output = Result<T, Status>> + Send,
    ) -> Result<T, ControlError> {
        let error = match tokio::time::timeout(patience, call).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(status)) => from_status(status),
            Err(elapsed) => ControlError::Unavailable(Box::new(elapsed)),
        };
        Err(self.failed(index, error))
    }
}

#[async_trait]
impl ControlPlane for GrpcControlPlane {
    async fn challenge(&self) -> Result<Challenge, ControlError> {
        let Chosen { index, mut client } = self.chosen();
        let call = client.get_challenge(v1::GetChallengeRequest {});
        Ok(Challenge(self.answer(index, CALL, call).await?.into_inner().challenge))
    }

    async fn register(&self, registration: Registration) -> Result<Registered, ControlError> {
        let Chosen { index, mut client } = self.chosen();
        let call = client.register(registration_into(registration));
        let registered: Registered =
            self.answer(index, CALL, call).await?.into_inner().try_into().map_err(broken)?;
        *self.inner.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(registered.session.clone());
        Ok(registered)
    }

    async fn heartbeat(&self, session: &Session, heartbeat: Heartbeat) -> Result<Orders, ControlError> {
        let Chosen { index, mut client } = self.chosen();
        let call = client.heartbeat(request(session, heartbeat.into())?);
        self.answer(index, CALL, call).await?.into_inner().try_into().map_err(broken)
    }

    async fn orders(&self, session: &Session, known: &Orders) -> Result<Orders, ControlError> {
        let Chosen { index, mut client } = self.chosen();
        let call = client.wait_for_orders(request(session, known.clone().into())?);
        self.answer(index, ORDERS, call).await?.into_inner().try_into().map_err(broken)
    }

    async fn bundle(&self, session: &Session, attempt: AttemptRef) -> Result<Bundle, ControlError> {
        let Chosen { index, mut client } = self.chosen();
        let call = client.fetch_bundle(request(session, attempt.into())?);
        let mut arriving = self.answer(index, CALL, call).await?.into_inner();
        let mut bundle = BundleAssembly::new(BUNDLE_BYTES);
        while let Some(chunk) = self.answer(index, IDLE, arriving.message()).await? {
            bundle.take(&chunk).map_err(broken)?;
        }
        bundle.finish().map_err(broken)
    }

    async fn claim(&self, session: &Session, claim: ClaimRequest) -> Result<ClaimGrant, ControlError> {
        let Chosen { index, mut client } = self.chosen();
        let call = client.claim(request(session, claim.into())?);
        self.answer(index, CALL, call).await?.into_inner().try_into().map_err(broken)
    }

    async fn append_log(&self, session: &Session, append: LogAppend) -> Result<u64, ControlError> {
        let Chosen { index, client } = self.chosen();
        let appending = self.inner.logs.append(index, client, session, append);
        match tokio::time::timeout(CALL, appending).await {
            Ok(Ok(end)) => Ok(end),
            Ok(Err(error)) => Err(self.failed(index, error)),
            Err(elapsed) => Err(self.failed(index, ControlError::Unavailable(Box::new(elapsed)))),
        }
    }

    async fn put_state(&self, session: &Session, write: StateWrite) -> Result<u64, ControlError> {
        let Chosen { index, mut client } = self.chosen();
        let mut header = Some(state_header(&write));
        let messages =
            chunks(write.document).map(move |bytes| v1::StateChunk { header: header.take(), bytes });
        let call = client.put_state(request(session, tokio_stream::iter(messages))?);
        Ok(self.answer(index, UPLOAD, call).await?.into_inner().generation)
    }

    async fn put_artifact(&self, session: &Session, upload: ArtifactUpload) -> Result<(), ControlError> {
        let Chosen { index, mut client } = self.chosen();
        let mut header = Some(artifact_header(&upload));
        let messages =
            chunks(upload.bytes).map(move |bytes| v1::ArtifactChunk { header: header.take(), bytes });
        let call = client.put_artifact(request(session, tokio_stream::iter(messages))?);
        self.answer(index, UPLOAD, call).await.map(|_| ())
    }

    async fn rotate_key(&self, session: &Session, rotation: Envelope) -> Result<(), ControlError> {
        let Chosen { index, mut client } = self.chosen();
        let message = v1::RotateKeyRequest { envelope: rotation.to_json() };
        let call = client.rotate_key(request(session, message)?);
        self.answer(index, CALL, call).await.map(|_| ())
    }

    async fn conclude(&self, session: &Session, envelope: Envelope) -> Result<ReceiptAnswer, ControlError> {
        let Chosen { index, mut client } = self.chosen();
        let message = v1::ConcludeRequest { envelope: envelope.to_json() };
        let call = client.conclude(request(session, message)?);
        let answer: ReceiptAnswer =
            self.answer(index, CALL, call).await?.into_inner().try_into().map_err(broken)?;
        self.inner.logs.forget(answer.attempt).await;
        Ok(answer)
    }
}
