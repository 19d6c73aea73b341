//! What a worker may ask of its coordinator. `forgeplane dev`, embedders, gRPC workers and simulations all
//! run the same worker against an implementation of [`ControlPlane`].

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use secrecy::SecretString;

use crate::digest::Digest;
use crate::evidence::Envelope;
use crate::id::{AttemptId, WorkerId};
use crate::model::{ArtifactKind, Fence, LogFrame, Name, Nonce, StopCause};
use crate::refusal::Refusal;

/// Why the coordinator did not do what a worker asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The rules say no; asking again will not help.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No answer, or an answer that may change: ask again, with the same content.
    #[error("the coordinator is not available: {0}")]
    Unavailable(#[source] super::BoxError),
}

/// A random challenge that proves a registration is fresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge(pub String);

/// A worker introduces itself.
#[derive(Debug, Clone)]
pub struct Registration {
    /// Its name.
    pub name: Name,
    /// The pool it joins.
    pub pool: Name,
    /// Capability labels as configured or detected, with the tool versions found.
    pub capabilities: BTreeMap<String, String>,
    /// The most jobs it can run at once.
    pub max_jobs: u32,
    /// It runs tools without isolation.
    pub unsafe_no_isolation: bool,
    /// Its Ed25519 public key.
    pub public_key: [u8; 32],
    /// Needed the first time a key is seen.
    pub enrollment_token: Option<SecretString>,
    /// The challenge that was answered.
    pub challenge: Challenge,
    /// Signature over [`crate::evidence::registration_message`] by `public_key`.
    pub proof: [u8; 64],
    /// SHA-256 of the client certificate the connection was opened with, as the coordinator's end of it saw. The
    /// session is bound to it.
    pub certificate: Option<Digest>,
}

/// An authenticated worker session.
#[derive(Debug, Clone)]
pub struct Session {
    /// The worker.
    pub worker: WorkerId,
    /// Which registration this is.
    pub incarnation: u64,
    /// The session credential.
    pub token: SecretString,
    /// SHA-256 of the client certificate of the connection, as the coordinator's end of it saw; never sent.
    pub certificate: Option<Digest>,
}

/// The answer to a registration.
#[derive(Debug, Clone)]
pub struct Registered {
    /// The new session; every older one of this worker is dead.
    pub session: Session,
    /// The coordinator's bundle-signing public key, to be pinned.
    pub coordinator_key: [u8; 32],
    /// How often to send heartbeats.
    pub heartbeat: Duration,
}

/// A claimed attempt that the worker holds (running, or with an outcome not yet receipted).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The attempt's fence.
    pub fence: Fence,
    /// The claim's nonce.
    pub nonce: Nonce,
}

/// A worker says that it lives and what it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Claimed attempts it holds.
    pub holding: Vec<Holding>,
    /// It is about to end and takes nothing new.
    pub draining: bool,
    /// What it is short of, such as room on its disk; it takes nothing new until it has it.
    pub short_of: Option<String>,
    /// The newest fence it has journaled an intent for; 0 for none. A store that does not know it has lost commits.
    pub newest: Fence,
}

/// A request to stop an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOrder {
    /// The attempt's fence.
    pub fence: Fence,
    /// Why.
    pub cause: StopCause,
}

/// What the coordinator wants of a worker; repeated until it no longer applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orders {
    /// Attempts to stop.
    pub stops: Vec<StopOrder>,
    /// Take nothing new.
    pub drain: bool,
    /// Replace the signing key with this id, once nothing depends on it.
    pub rotate_key: Option<Digest>,
}

/// Names an attempt the way only its assigned worker can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptRef {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its fence.
    pub fence: Fence,
}

/// What a worker needs to prepare an attempt; contains no secret payloads.
#[derive(Debug, Clone)]
pub struct Bundle {
    /// [`crate::evidence::BundleManifest`], signed by the coordinator.
    pub manifest: Envelope,
    /// The execution snapshot's canonical bytes.
    pub snapshot: Bytes,
    /// The tar.gz source.
    pub source: Bytes,
    /// The state document of the base generation.
    pub state: Option<Bytes>,
    /// The plan file to apply.
    pub plan: Option<Bytes>,
    /// The dependency lock file of the plan.
    pub lock_file: Option<Bytes>,
}

/// "I begin to execute this attempt now."
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The attempt.
    pub attempt: AttemptRef,
    /// This intent's nonce.
    pub nonce: Nonce,
}

/// A secret payload for the claiming worker alone.
#[derive(Debug, Clone)]
pub struct GrantedSecret {
    /// The input path it belongs to, a JSON pointer.
    pub path: String,
    /// The value.
    pub value: SecretString,
}

/// The execution fence was crossed: the worker may start the tool once.
#[derive(Debug, Clone)]
pub struct ClaimGrant {
    /// The nonce it was granted to.
    pub nonce: Nonce,
    /// How long the tool may run.
    pub execution_timeout: Duration,
    /// Secret payloads.
    pub secrets: Vec<GrantedSecret>,
}

/// Names an attempt the way only its claimant can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimRef {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its fence.
    pub fence: Fence,
    /// The claim's nonce.
    pub nonce: Nonce,
}

/// Log frames to append at `offset`.
#[derive(Debug, Clone)]
pub struct LogAppend {
    /// The claim.
    pub claim: ClaimRef,
    /// Log bytes sent before these.
    pub offset: u64,
    /// The frames, in order.
    pub frames: Vec<LogFrame>,
}

/// A state document the tool saved.
#[derive(Debug, Clone)]
pub struct StateWrite {
    /// The claim.
    pub claim: ClaimRef,
    /// The generation the document builds on.
    pub expected_generation: u64,
    /// The document's digest.
    pub digest: Digest,
    /// The document.
    pub document: Bytes,
}

/// A file to publish.
#[derive(Debug, Clone)]
pub struct ArtifactUpload {
    /// The claim.
    pub claim: ClaimRef,
    /// What it is.
    pub kind: ArtifactKind,
    /// Digest of its bytes.
    pub digest: Digest,
    /// Its bytes.
    pub bytes: Bytes,
}

/// The coordinator has the outcome for good. The worker forgets the attempt only if
/// `envelope_digest` is the digest of what it signed (rule H2 of `protocol.md`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptAnswer {
    /// The attempt.
    pub attempt: AttemptId,
    /// Digest of the envelope that was received.
    pub envelope_digest: Digest,
    /// Whether it ended the attempt; otherwise it was kept as evidence.
    pub applied: bool,
}

/// The coordinator as a worker sees it.
///
/// Every call but the first two is authorized by the session *and* by the object: the attempt must be
/// leased to the session's worker and the fence (and nonce, once claimed) must match. Every call may be
/// repeated with the same content and then has no further effect.
#[async_trait]
pub trait ControlPlane: Send + Sync + 'static {
    /// Asks for a challenge to sign.
    ///
    /// # Errors
    /// When the coordinator cannot be reached.
    async fn challenge(&self) -> Result<Challenge, ControlError>;

    /// Registers, or registers again with a known key. Ends every older session of the worker.
    ///
    /// # Errors
    /// Refused tokens, proofs, labels and pools; an unreachable coordinator.
    async fn register(&self, registration: Registration) -> Result<Registered, ControlError>;

    /// Reports life; answers with the orders in force.
    ///
    /// # Errors
    /// A dead session; an unreachable coordinator.
    async fn heartbeat(&self, session: &Session, heartbeat: Heartbeat) -> Result<Orders, ControlError>;

    /// Waits until there are orders other than `known`, or some seconds have passed.
    ///
    /// # Errors
    /// A dead session; an unreachable coordinator.
    async fn orders(&self, session: &Session, known: &Orders) -> Result<Orders, ControlError>;

    /// Fetches the bundle of an offered attempt.
    ///
    /// # Errors
    /// An attempt that is not this worker's or no longer offered; an unreachable coordinator.
    async fn bundle(&self, session: &Session, attempt: AttemptRef) -> Result<Bundle, ControlError>;

    /// Crosses the execution fence. The same nonce gets the same grant again; another one is refused.
    ///
    /// # Errors
    /// A lost offer, a cancelled run, a stale base generation; an unreachable coordinator.
    async fn claim(&self, session: &Session, request: ClaimRequest) -> Result<ClaimGrant, ControlError>;

    /// Appends log frames; answers with the end of the stored log.
    ///
    /// # Errors
    /// A gap, a foreign claim; an unreachable coordinator.
    async fn append_log(&self, session: &Session, append: LogAppend) -> Result<u64, ControlError>;

    /// Writes a state generation; answers with its number.
    ///
    /// # Errors
    /// A stale or foreign write (the document is kept aside); an unreachable coordinator.
    async fn put_state(&self, session: &Session, write: StateWrite) -> Result<u64, ControlError>;

    /// Publishes a file.
    ///
    /// # Errors
    /// A foreign claim, a wrong digest; an unreachable coordinator.
    async fn put_artifact(&self, session: &Session, upload: ArtifactUpload) -> Result<(), ControlError>;

    /// Delivers a [`KeyRotation`](crate::evidence::KeyRotation), signed by the old key and the new one. From then
    /// on only the new key registers the worker and is pinned to claims; the old one still counts for the attempts
    /// that are pinned to it.
    ///
    /// # Errors
    /// A statement that does not verify, a key that was used before; an unreachable coordinator.
    async fn rotate_key(&self, session: &Session, rotation: Envelope) -> Result<(), ControlError>;

    /// Delivers a signed outcome (or a signed `not_started`).
    ///
    /// # Errors
    /// An envelope that does not verify; an unreachable coordinator.
    async fn conclude(&self, session: &Session, envelope: Envelope) -> Result<ReceiptAnswer, ControlError>;
}
