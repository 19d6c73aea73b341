//! Offline verification: what a third party checks with a file and nothing else.

use serde::{Deserialize, Serialize};

use super::{BundleManifest, Envelope, EnvelopeError, NotStarted, Outcome, Statement as _};
use crate::digest::Digest;
use crate::model::{Approval, ApprovalStatus, Snapshot, Verdict};

/// Everything needed to verify how one attempt ended. Exported by the coordinator, checked by anybody.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The signed outcome, exactly as the worker signed it.
    pub outcome: Envelope,
    /// The worker's public key, hex.
    pub worker_key: String,
    /// The signed bundle manifest.
    pub bundle: Envelope,
    /// The coordinator's public key, hex.
    pub coordinator_key: String,
    /// The execution snapshot's canonical bytes (JSON text).
    pub snapshot: String,
    /// The approval the run was gated by. That it approves this very snapshot and plan is verified; who the
    /// reviewers were, when and why is the coordinator's word.
    pub approval: Option<Approval>,
}

/// What verified evidence says.
#[derive(Debug, Clone)]
pub struct VerifiedEvidence {
    /// The outcome.
    pub outcome: Outcome,
    /// The bundle manifest it was executed from.
    pub manifest: BundleManifest,
    /// The execution snapshot.
    pub snapshot: Snapshot,
    /// The worker's key.
    pub worker_key: Digest,
    /// The coordinator's key.
    pub coordinator_key: Digest,
}

/// Evidence that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvidenceError {
    /// An envelope does not verify.
    #[error("{what}: {source}")]
    Envelope {
        /// Which one.
        what: &'static str,
        /// Why.
        source: EnvelopeError,
    },
    /// Two parts contradict each other.
    #[error("{0}")]
    Mismatch(String),
    /// A key or document cannot be read.
    #[error("{0}")]
    Malformed(String),
}

/// A statement that ends an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion {
    /// The tool was claimed and ended.
    Outcome(Box<Outcome>),
    /// The tool never started.
    NotStarted(Box<NotStarted>),
}

impl Conclusion {
    /// Reads which attempt an envelope is about, unverified.
    ///
    /// # Errors
    /// When it is neither kind of conclusion.
    pub fn peek(envelope: &Envelope) -> Result<Self, EnvelopeError> {
        if envelope.payload_type == NotStarted::PAYLOAD_TYPE {
            envelope.peek().map(|s| Self::NotStarted(Box::new(s)))
        } else {
            envelope.peek().map(|s| Self::Outcome(Box::new(s)))
        }
    }

    /// Verifies a conclusion.
    ///
    /// # Errors
    /// When it does not verify under `public_key`.
    pub fn verify(envelope: &Envelope, public_key: &[u8; 32]) -> Result<Self, EnvelopeError> {
        if envelope.payload_type == NotStarted::PAYLOAD_TYPE {
            envelope.verify(public_key).map(|s| Self::NotStarted(Box::new(s)))
        } else {
            envelope.verify(public_key).map(|s| Self::Outcome(Box::new(s)))
        }
    }

    /// The attempt it is about.
    #[must_use]
    pub fn attempt(&self) -> crate::id::AttemptId {
        match self {
            Self::Outcome(it) => it.attempt,
            Self::NotStarted(it) => it.attempt,
        }
    }
}

/// Reads a public key from hex.
///
/// # Errors
/// When it is not 32 bytes of lower-case hex: a key has one spelling.
pub fn public_key_from_hex(text: &str) -> Result<[u8; 32], EvidenceError> {
    let malformed = || EvidenceError::Malformed("a public key is 64 lower-case hex digits".into());
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(malformed());
    }
    let mut key = [0; 32];
    hex::decode_to_slice(text, &mut key).map_err(|_| malformed())?;
    Ok(key)
}

impl Evidence {
    /// Verifies both signatures and that every part speaks of the same run, plan, bundle and approval.
    ///
    /// Whether the two keys belong to whom you think is for you to check: compare their ids with those you
    /// were given out of band.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn verify(&self) -> Result<VerifiedEvidence, EvidenceError> {
        let worker_key = public_key_from_hex(&self.worker_key)?;
        let coordinator_key = public_key_from_hex(&self.coordinator_key)?;
        let outcome: Outcome = self
            .outcome
            .verify(&worker_key)
            .map_err(|source| EvidenceError::Envelope { what: "the outcome", source })?;
        let manifest: BundleManifest = self
            .bundle
            .verify(&coordinator_key)
            .map_err(|source| EvidenceError::Envelope { what: "the bundle manifest", source })?;
        let snapshot: Snapshot = serde_json::from_str(&self.snapshot)
            .map_err(|e| EvidenceError::Malformed(format!("the snapshot cannot be read: {e}")))?;
        let snapshot_digest = Digest::of(self.snapshot.as_bytes());

        same("bundle digest", &outcome.bundle, &self.bundle.digest())?;
        same("run", &outcome.run, &manifest.run)?;
        same("attempt", &outcome.attempt, &manifest.attempt)?;
        same("attempt number", &outcome.number, &manifest.number)?;
        same("fence", &outcome.fence, &manifest.fence)?;
        same("worker", &outcome.worker, &manifest.worker)?;
        same("project", &outcome.project, &manifest.project)?;
        same("snapshot digest", &outcome.snapshot, &manifest.snapshot)?;
        same("snapshot digest", &outcome.snapshot, &snapshot_digest)?;
        same("run", &outcome.run, &snapshot.run)?;
        same("source digest", &manifest.source, &snapshot.source)?;
        same("plan digest", &outcome.plan, &manifest.plan)?;
        same("plan digest", &outcome.plan, &snapshot.plan.as_ref().map(|p| p.digest))?;
        match &self.approval {
            Some(approval) => approves(approval, &snapshot, snapshot_digest)?,
            None if snapshot.is_gated() => {
                return Err(EvidenceError::Mismatch("the run needed an approval, which is missing".into()));
            }
            None => {}
        }
        Ok(VerifiedEvidence {
            outcome,
            manifest,
            snapshot,
            worker_key: super::key_id(&worker_key),
            coordinator_key: super::key_id(&coordinator_key),
        })
    }
}

/// Whether the record approves what the (signed) snapshot says, by as many people as it asks for.
fn approves(approval: &Approval, snapshot: &Snapshot, digest: Digest) -> Result<(), EvidenceError> {
    same("approved run", &approval.run, &snapshot.run)?;
    same("approved project", &approval.project, &snapshot.project)?;
    same("approved plan run", &approval.source_plan, &snapshot.plan.as_ref().map(|p| p.run))?;
    same("approved plan digest", &approval.plan_digest, &snapshot.plan.as_ref().map(|p| p.digest))?;
    same("approved base generation", &approval.base_generation, &snapshot.base_generation)?;
    same("approved snapshot", &approval.snapshot, &digest)?;
    same("approval policy", &approval.policy, &snapshot.approval)?;
    same("approval status", &approval.status, &ApprovalStatus::Approved)?;
    let mut reviewers = Vec::new();
    for review in &approval.reviews {
        if review.verdict != Verdict::Approve || reviewers.contains(&&review.reviewer) {
            return Err(EvidenceError::Mismatch("a review is not one person's approval".into()));
        }
        if !approval.policy.allow_self && review.reviewer == approval.requester {
            return Err(EvidenceError::Mismatch("the requester approved their own run".into()));
        }
        reviewers.push(&review.reviewer);
    }
    if reviewers.len() < approval.policy.required as usize {
        return Err(EvidenceError::Mismatch(format!(
            "{} people approved; {} were needed",
            reviewers.len(),
            approval.policy.required
        )));
    }
    Ok(())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, left: &T, right: &T) -> Result<(), EvidenceError> {
    if left == right {
        Ok(())
    } else {
        Err(EvidenceError::Mismatch(format!("the {what} differs: {left:?} and {right:?}")))
    }
}
