//! Conversions between messages and core types.

use bytes::Bytes;
use forgeplane_core::digest::Digest;
use forgeplane_core::model::{ArtifactKind, Fence, Job, LogFrame, LogStream, Nonce, StopCause};
use forgeplane_core::ports::{
    ArtifactUpload, AttemptRef, Challenge, ClaimGrant, ClaimRef, ClaimRequest, GrantedSecret, Heartbeat,
    Holding, LogAppend, Orders, ReceiptAnswer, Registered, Registration, Session, StateWrite, StopOrder,
};
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use std::time::Duration;

use crate::v1;

/// A message that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}`: {rule}")]
pub struct InvalidMessage {
    /// The field at fault.
    pub field: &'static str,
    /// What it should be.
    pub rule: &'static str,
}

type Result<T> = std::result::Result<T, InvalidMessage>;

fn parse<T: std::str::FromStr>(field: &'static str, text: &str, rule: &'static str) -> Result<T> {
    text.parse().map_err(|_| InvalidMessage { field, rule })
}

fn exact<const N: usize>(field: &'static str, bytes: &[u8], rule: &'static str) -> Result<[u8; N]> {
    bytes.try_into().map_err(|_| InvalidMessage { field, rule })
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T> {
    value.ok_or(InvalidMessage { field, rule: "is required" })
}

fn nonce(bytes: &[u8]) -> Result<Nonce> {
    exact("nonce", bytes, "is 16 bytes").map(Nonce)
}

fn nonce_bytes(nonce: Nonce) -> Bytes {
    Bytes::copy_from_slice(&nonce.0)
}

/// Reads a SHA-256 digest.
///
/// # Errors
/// When it is not 32 bytes.
fn digest(bytes: &[u8]) -> Result<Digest> {
    exact("digest", bytes, "is 32 bytes").map(Digest::from_bytes)
}

fn digest_bytes(digest: Digest) -> Bytes {
    Bytes::copy_from_slice(digest.as_bytes())
}

const ATTEMPT_RULE: &str = "is an attempt id";

/// The message of a registration. Not a `From`, because it exposes the enrollment token to the wire.
#[must_use]
pub fn registration_into(registration: Registration) -> v1::RegisterRequest {
    v1::RegisterRequest {
        name: registration.name.to_string(),
        pool: registration.pool.to_string(),
        capabilities: registration.capabilities.into_iter().collect(),
        max_jobs: registration.max_jobs,
        unsafe_no_isolation: registration.unsafe_no_isolation,
        public_key: Bytes::copy_from_slice(&registration.public_key),
        enrollment_token: registration.enrollment_token.map(|t| t.expose_secret().to_owned()),
        challenge: registration.challenge.0,
        proof: Bytes::copy_from_slice(&registration.proof),
    }
}

/// The registration of a message.
///
/// # Errors
/// When a field is not what it should be.
pub fn registration_from(message: v1::RegisterRequest) -> Result<Registration> {
    Ok(Registration {
        name: parse("name", &message.name, "is a worker name")?,
        pool: parse("pool", &message.pool, "is a pool name")?,
        capabilities: message.capabilities.into_iter().collect(),
        max_jobs: message.max_jobs,
        unsafe_no_isolation: message.unsafe_no_isolation,
        public_key: exact("public_key", &message.public_key, "is 32 bytes")?,
        enrollment_token: message.enrollment_token.map(SecretString::from),
        challenge: Challenge(message.challenge),
        proof: exact("proof", &message.proof, "is 64 bytes")?,
        certificate: None,
    })
}

impl From<Registered> for v1::RegisterResponse {
    fn from(it: Registered) -> Self {
        Self {
            worker: it.session.worker.to_string(),
            incarnation: it.session.incarnation,
            session_token: it.session.token.expose_secret().to_owned(),
            coordinator_key: Bytes::copy_from_slice(&it.coordinator_key),
            heartbeat_ms: u64::try_from(it.heartbeat.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl TryFrom<v1::RegisterResponse> for Registered {
    type Error = InvalidMessage;

    fn try_from(it: v1::RegisterResponse) -> Result<Self> {
        Ok(Self {
            session: Session {
                worker: parse("worker", &it.worker, "is a worker id")?,
                incarnation: it.incarnation,
                token: SecretString::from(it.session_token),
                certificate: None,
            },
            coordinator_key: exact("coordinator_key", &it.coordinator_key, "is 32 bytes")?,
            heartbeat: Duration::from_millis(it.heartbeat_ms),
        })
    }
}

/// The message of a job's delivery.
#[must_use]
pub fn delivery_of(delivery: u64, job: &Job) -> v1::JobDelivery {
    v1::JobDelivery {
        delivery,
        project: job.project.to_string(),
        run: job.run.to_string(),
        attempt: job.attempt.to_string(),
        fence: job.fence.0,
        worker: job.worker.to_string(),
        publication: job.publication,
    }
}

impl TryFrom<v1::JobDelivery> for Job {
    type Error = InvalidMessage;

    fn try_from(it: v1::JobDelivery) -> Result<Self> {
        Ok(Self {
            project: parse("project", &it.project, "is a project id")?,
            run: parse("run", &it.run, "is a run id")?,
            attempt: parse("attempt", &it.attempt, ATTEMPT_RULE)?,
            fence: Fence(it.fence),
            worker: parse("worker", &it.worker, "is a worker id")?,
            publication: it.publication,
        })
    }
}

/// Reads the header of a state document.
///
/// # Errors
/// When a field is not what it should be.
pub fn state_from(header: v1::StateHeader, document: Bytes) -> Result<StateWrite> {
    Ok(StateWrite {
        claim: required("claim", header.claim)?.try_into()?,
        expected_generation: header.expected_generation,
        digest: digest(&header.digest)?,
        document,
    })
}

/// The header of a state document; the document itself follows in chunks.
#[must_use]
pub fn state_header(write: &StateWrite) -> v1::StateHeader {
    v1::StateHeader {
        claim: Some(write.claim.into()),
        expected_generation: write.expected_generation,
        digest: digest_bytes(write.digest),
    }
}

/// Reads the header of a file to publish.
///
/// # Errors
/// When a field is not what it should be.
pub fn artifact_from(header: v1::ArtifactHeader, bytes: Bytes) -> Result<ArtifactUpload> {
    Ok(ArtifactUpload {
        kind: header.kind().try_into()?,
        claim: required("claim", header.claim)?.try_into()?,
        digest: digest(&header.digest)?,
        bytes,
    })
}

/// The header of a file to publish; the file itself follows in chunks.
#[must_use]
pub fn artifact_header(upload: &ArtifactUpload) -> v1::ArtifactHeader {
    v1::ArtifactHeader {
        claim: Some(upload.claim.into()),
        kind: v1::ArtifactKind::from(upload.kind).into(),
        digest: digest_bytes(upload.digest),
    }
}

impl From<Heartbeat> for v1::HeartbeatRequest {
    fn from(it: Heartbeat) -> Self {
        let holding = it
            .holding
            .into_iter()
            .map(|h| v1::Holding { fence: h.fence.0, nonce: nonce_bytes(h.nonce) })
            .collect();
        Self { holding, draining: it.draining, newest: it.newest.0, short_of: it.short_of }
    }
}

impl TryFrom<v1::HeartbeatRequest> for Heartbeat {
    type Error = InvalidMessage;

    fn try_from(it: v1::HeartbeatRequest) -> Result<Self> {
        let holding = it
            .holding
            .into_iter()
            .map(|h| Ok(Holding { fence: Fence(h.fence), nonce: nonce(&h.nonce)? }))
            .collect::<Result<_>>()?;
        Ok(Self { holding, draining: it.draining, newest: Fence(it.newest), short_of: it.short_of })
    }
}

impl From<Orders> for v1::Orders {
    fn from(it: Orders) -> Self {
        let stops = it
            .stops
            .into_iter()
            .map(|stop| {
                let cause = match stop.cause {
                    StopCause::Cancel => v1::StopCause::Cancel,
                    StopCause::Deadline => v1::StopCause::Deadline,
                    StopCause::Silence => v1::StopCause::Silence,
                };
                v1::StopOrder { fence: stop.fence.0, cause: cause.into() }
            })
            .collect();
        let rotate_key = it.rotate_key.map(digest_bytes);
        Self { stops, drain: it.drain, rotate_key }
    }
}

impl TryFrom<v1::Orders> for Orders {
    type Error = InvalidMessage;

    fn try_from(it: v1::Orders) -> Result<Self> {
        let stops = it
            .stops
            .into_iter()
            .map(|stop| {
                let cause = match v1::StopCause::try_from(stop.cause) {
                    Ok(v1::StopCause::Cancel) => StopCause::Cancel,
                    Ok(v1::StopCause::Deadline) => StopCause::Deadline,
                    Ok(v1::StopCause::Silence) => StopCause::Silence,
                    _ => return Err(InvalidMessage { field: "cause", rule: "is a known stop cause" }),
                };
                Ok(StopOrder { fence: Fence(stop.fence), cause })
            })
            .collect::<Result<_>>()?;
        let rotate_key = it.rotate_key.map(|key| digest(&key)).transpose()?;
        Ok(Self { stops, drain: it.drain, rotate_key })
    }
}

impl From<AttemptRef> for v1::FetchBundleRequest {
    fn from(it: AttemptRef) -> Self {
        Self { attempt: it.attempt.to_string(), fence: it.fence.0 }
    }
}

impl TryFrom<v1::FetchBundleRequest> for AttemptRef {
    type Error = InvalidMessage;

    fn try_from(it: v1::FetchBundleRequest) -> Result<Self> {
        Ok(Self { attempt: parse("attempt", &it.attempt, ATTEMPT_RULE)?, fence: Fence(it.fence) })
    }
}

impl From<ClaimRequest> for v1::ClaimRequest {
    fn from(it: ClaimRequest) -> Self {
        Self {
            attempt: it.attempt.attempt.to_string(),
            fence: it.attempt.fence.0,
            nonce: nonce_bytes(it.nonce),
        }
    }
}

impl TryFrom<v1::ClaimRequest> for ClaimRequest {
    type Error = InvalidMessage;

    fn try_from(it: v1::ClaimRequest) -> Result<Self> {
        let attempt =
            AttemptRef { attempt: parse("attempt", &it.attempt, ATTEMPT_RULE)?, fence: Fence(it.fence) };
        Ok(Self { attempt, nonce: nonce(&it.nonce)? })
    }
}

impl From<ClaimGrant> for v1::ClaimGrant {
    fn from(it: ClaimGrant) -> Self {
        Self {
            nonce: nonce_bytes(it.nonce),
            execution_timeout_s: it.execution_timeout.as_secs(),
            secrets: it
                .secrets
                .into_iter()
                .map(|s| v1::GrantedSecret { path: s.path, value: s.value.expose_secret().to_owned() })
                .collect(),
        }
    }
}

impl TryFrom<v1::ClaimGrant> for ClaimGrant {
    type Error = InvalidMessage;

    fn try_from(it: v1::ClaimGrant) -> Result<Self> {
        Ok(Self {
            nonce: nonce(&it.nonce)?,
            execution_timeout: Duration::from_secs(it.execution_timeout_s),
            secrets: it
                .secrets
                .into_iter()
                .map(|s| GrantedSecret { path: s.path, value: SecretString::from(s.value) })
                .collect(),
        })
    }
}

impl From<ClaimRef> for v1::ClaimRef {
    fn from(it: ClaimRef) -> Self {
        Self { attempt: it.attempt.to_string(), fence: it.fence.0, nonce: nonce_bytes(it.nonce) }
    }
}

impl TryFrom<v1::ClaimRef> for ClaimRef {
    type Error = InvalidMessage;

    fn try_from(it: v1::ClaimRef) -> Result<Self> {
        Ok(Self {
            attempt: parse("attempt", &it.attempt, ATTEMPT_RULE)?,
            fence: Fence(it.fence),
            nonce: nonce(&it.nonce)?,
        })
    }
}

impl From<LogFrame> for v1::LogFrame {
    fn from(it: LogFrame) -> Self {
        let stream = match it.stream {
            LogStream::Stdout => v1::LogStream::Stdout,
            LogStream::Stderr => v1::LogStream::Stderr,
            LogStream::Worker => v1::LogStream::Worker,
        };
        Self { stream: stream.into(), at_us: it.at.as_microsecond(), bytes: it.bytes }
    }
}

impl TryFrom<v1::LogFrame> for LogFrame {
    type Error = InvalidMessage;

    fn try_from(it: v1::LogFrame) -> Result<Self> {
        let stream = match v1::LogStream::try_from(it.stream) {
            Ok(v1::LogStream::Stdout) => LogStream::Stdout,
            Ok(v1::LogStream::Stderr) => LogStream::Stderr,
            Ok(v1::LogStream::Worker) => LogStream::Worker,
            _ => return Err(InvalidMessage { field: "stream", rule: "is a known log stream" }),
        };
        let at = Timestamp::from_microsecond(it.at_us)
            .map_err(|_| InvalidMessage { field: "at_us", rule: "is a time that can be written" })?;
        Ok(Self { stream, at, bytes: it.bytes })
    }
}

impl From<LogAppend> for v1::LogAppend {
    fn from(it: LogAppend) -> Self {
        Self {
            claim: Some(it.claim.into()),
            offset: it.offset,
            frames: it.frames.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::LogAppend> for LogAppend {
    type Error = InvalidMessage;

    fn try_from(it: v1::LogAppend) -> Result<Self> {
        Ok(Self {
            claim: required("claim", it.claim)?.try_into()?,
            offset: it.offset,
            frames: it.frames.into_iter().map(TryInto::try_into).collect::<Result<_>>()?,
        })
    }
}

impl From<ArtifactKind> for v1::ArtifactKind {
    fn from(it: ArtifactKind) -> Self {
        match it {
            ArtifactKind::Plan => Self::Plan,
            ArtifactKind::PlanJson => Self::PlanJson,
            ArtifactKind::PlanText => Self::PlanText,
            ArtifactKind::LockFile => Self::LockFile,
            ArtifactKind::ErroredState => Self::ErroredState,
        }
    }
}

impl TryFrom<v1::ArtifactKind> for ArtifactKind {
    type Error = InvalidMessage;

    fn try_from(it: v1::ArtifactKind) -> Result<Self> {
        Ok(match it {
            v1::ArtifactKind::Plan => Self::Plan,
            v1::ArtifactKind::PlanJson => Self::PlanJson,
            v1::ArtifactKind::PlanText => Self::PlanText,
            v1::ArtifactKind::LockFile => Self::LockFile,
            v1::ArtifactKind::ErroredState => Self::ErroredState,
            v1::ArtifactKind::Unspecified => {
                return Err(InvalidMessage { field: "kind", rule: "is a known artifact kind" });
            }
        })
    }
}

impl From<ReceiptAnswer> for v1::ConcludeResponse {
    fn from(it: ReceiptAnswer) -> Self {
        Self {
            attempt: it.attempt.to_string(),
            envelope_digest: digest_bytes(it.envelope_digest),
            applied: it.applied,
        }
    }
}

impl TryFrom<v1::ConcludeResponse> for ReceiptAnswer {
    type Error = InvalidMessage;

    fn try_from(it: v1::ConcludeResponse) -> Result<Self> {
        Ok(Self {
            attempt: parse("attempt", &it.attempt, ATTEMPT_RULE)?,
            envelope_digest: digest(&it.envelope_digest)?,
            applied: it.applied,
        })
    }
}

#[cfg(test)]
mod tests {
    use forgeplane_core::id::{AttemptId, WorkerId};

    use super::*;

    fn claim() -> ClaimRef {
        ClaimRef {
            attempt: AttemptId::new(Timestamp::UNIX_EPOCH, [3; 10]),
            fence: Fence(u64::MAX),
            nonce: Nonce([9; 16]),
        }
    }

    #[test]
    fn a_registration_survives_the_wire() {
        let registration = Registration {
            name: "w1".parse().unwrap(),
            pool: "default".parse().unwrap(),
            capabilities: [("tofu".to_owned(), "1.10".to_owned())].into(),
            max_jobs: 1,
            unsafe_no_isolation: false,
            public_key: [1; 32],
            enrollment_token: Some(SecretString::from("fpe_x")),
            challenge: Challenge("c".into()),
            proof: [2; 64],
            certificate: None,
        };
        let back = registration_from(registration_into(registration.clone())).unwrap();
        assert_eq!(
            (back.name, back.pool, back.proof),
            (registration.name, registration.pool, registration.proof)
        );
        assert_eq!(back.enrollment_token.unwrap().expose_secret(), "fpe_x");
    }

    #[test]
    fn orders_logs_claims_and_receipts_survive_the_wire() {
        let orders = Orders {
            stops: vec![StopOrder { fence: Fence(3), cause: StopCause::Deadline }],
            drain: true,
            rotate_key: Some(Digest::of(b"key")),
        };
        assert_eq!(Orders::try_from(v1::Orders::from(orders.clone())), Ok(orders));
        assert_eq!(ClaimRef::try_from(v1::ClaimRef::from(claim())), Ok(claim()));
        let frame = LogFrame {
            stream: LogStream::Stderr,
            at: Timestamp::from_microsecond(1_700_000_000_123_456).unwrap(),
            bytes: Bytes::from_static(b"\xff\x00"),
        };
        let append = LogAppend { claim: claim(), offset: 7, frames: vec![frame.clone()] };
        assert_eq!(LogAppend::try_from(v1::LogAppend::from(append)).unwrap().frames, [frame]);
        let answer =
            ReceiptAnswer { attempt: claim().attempt, envelope_digest: Digest::of(b"x"), applied: true };
        assert_eq!(ReceiptAnswer::try_from(v1::ConcludeResponse::from(answer.clone())), Ok(answer));
        let registered = Registered {
            session: Session {
                worker: WorkerId::new(Timestamp::UNIX_EPOCH, [1; 10]),
                incarnation: 4,
                token: SecretString::from("fps_x"),
                certificate: None,
            },
            coordinator_key: [5; 32],
            heartbeat: Duration::from_millis(1500),
        };
        let back = Registered::try_from(v1::RegisterResponse::from(registered.clone())).unwrap();
        assert_eq!((back.session.incarnation, back.heartbeat), (4, registered.heartbeat));
    }

    #[test]
    fn g30_unknown_enum_values_and_missing_fields_are_refused() {
        let order =
            v1::Orders { stops: vec![v1::StopOrder { fence: 1, cause: 99 }], drain: false, rotate_key: None };
        assert_eq!(Orders::try_from(order).unwrap_err().field, "cause");
        let frame = v1::LogFrame { stream: 0, at_us: 0, bytes: Bytes::new() };
        assert_eq!(LogFrame::try_from(frame).unwrap_err().field, "stream");
        assert_eq!(LogAppend::try_from(v1::LogAppend::default()).unwrap_err().field, "claim");
        let short = v1::ClaimRef {
            attempt: claim().attempt.to_string(),
            fence: 1,
            nonce: Bytes::from_static(b"short"),
        };
        assert_eq!(ClaimRef::try_from(short).unwrap_err().field, "nonce");
        assert!(ArtifactKind::try_from(v1::ArtifactKind::Unspecified).is_err());
    }
}
