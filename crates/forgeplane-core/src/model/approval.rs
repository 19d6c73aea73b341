//! The approval record: separate from the run it gates.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Actor;
use crate::digest::Digest;
use crate::id::{ApprovalId, ProjectId, RunId};

/// When state-changing runs need a second pair of eyes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalPolicy {
    /// How many different reviewers must approve; 0 asks for none.
    pub required: u32,
    /// Whether the requester may be one of them.
    pub allow_self: bool,
    /// Seconds until an undecided approval expires; absent: never.
    pub expires_after_s: Option<u64>,
}

impl Default for ApprovalPolicy {
    /// One reviewer who is not the requester: deny by default.
    fn default() -> Self {
        Self { required: 1, allow_self: false, expires_after_s: None }
    }
}

/// Where an approval record is. Not a run status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    /// Undecided.
    Pending,
    /// Enough reviewers approved.
    Approved,
    /// A reviewer rejected.
    Rejected,
    /// Nobody decided in time.
    Expired,
    /// The run was canceled first.
    Withdrawn,
}

impl ApprovalStatus {
    /// The status as it travels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// What a reviewer said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Go.
    Approve,
    /// Stop; one rejection is enough.
    Reject,
}

/// One reviewer's decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Review {
    /// Who.
    pub reviewer: Actor,
    /// What.
    pub verdict: Verdict,
    /// Why.
    pub reason: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// Who asked, who decided, what, when, why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Its id.
    pub id: ApprovalId,
    /// Tenant.
    pub project: ProjectId,
    /// The run it gates.
    pub run: RunId,
    /// The plan the run was promoted from.
    pub source_plan: Option<RunId>,
    /// The plan file that is being approved.
    pub plan_digest: Option<Digest>,
    /// The state generation the plan was made from.
    pub base_generation: u64,
    /// The frozen context that is being approved.
    pub snapshot: Digest,
    /// The policy in force when it was asked for.
    pub policy: ApprovalPolicy,
    /// Who asked.
    pub requester: Actor,
    /// Where it is.
    pub status: ApprovalStatus,
    /// What reviewers said, in order.
    pub reviews: Vec<Review>,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it expires undecided.
    pub expires_at: Option<Timestamp>,
    /// When it was decided, expired or withdrawn.
    pub closed_at: Option<Timestamp>,
}
