//! Receipts, late evidence and operator decisions: append-only.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Actor, OutcomeKind};
use crate::digest::Digest;
use crate::id::{AttemptId, EvidenceId, ProjectId, RunId};

/// The coordinator's stored acceptance of a signed outcome. At most one per attempt, never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The attempt.
    pub attempt: AttemptId,
    /// The run.
    pub run: RunId,
    /// Tenant.
    pub project: ProjectId,
    /// The envelope exactly as it was signed (JSON text).
    pub envelope: String,
    /// Digest of those bytes.
    pub envelope_digest: Digest,
    /// The key that signed.
    pub key: Digest,
    /// What it says.
    pub outcome: OutcomeKind,
    /// When it was committed.
    pub at: Timestamp,
}

/// A verified envelope that changed nothing: late, conflicting, or by a compromised key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateEvidence {
    /// Its id.
    pub id: EvidenceId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The run.
    pub run: RunId,
    /// Tenant.
    pub project: ProjectId,
    /// The envelope exactly as it was signed (JSON text).
    pub envelope: String,
    /// Digest of those bytes.
    pub envelope_digest: Digest,
    /// What it says.
    pub outcome: OutcomeKind,
    /// Why it was not applied.
    pub why: String,
    /// When it arrived.
    pub at: Timestamp,
}

/// An operator's decision on an unresolved execution. At most one per attempt, never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorDecision {
    /// The attempt.
    pub attempt: AttemptId,
    /// The run.
    pub run: RunId,
    /// Tenant.
    pub project: ProjectId,
    /// Who decided.
    pub actor: Actor,
    /// Who confirmed, when two people are needed.
    pub confirmed_by: Option<Actor>,
    /// Why.
    pub reason: String,
    /// What the operator asserts, such as "worker host is off or wiped".
    pub asserted: Vec<String>,
    /// The state generation that holds what the execution created, if they said that it succeeded.
    #[serde(default)]
    pub generation: Option<u64>,
    /// The status they chose.
    pub outcome: OutcomeKind,
    /// When.
    pub at: Timestamp,
}
