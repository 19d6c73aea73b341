//! Approval records.

use forgeplane_core::digest::Digest;
use forgeplane_core::id::{ApprovalId, RunId};
use forgeplane_core::model;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Actor, ApprovalStatus, Verdict};

/// When runs that change infrastructure need a second pair of eyes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalPolicy {
    /// How many different reviewers must approve; 0 asks for none; 1 unless given.
    pub required: u32,
    /// Whether the requester may be one of them.
    pub allow_self: bool,
    /// Seconds until an undecided approval expires; absent: never.
    pub expires_after_s: Option<u64>,
}

impl Default for ApprovalPolicy {
    fn default() -> Self {
        model::ApprovalPolicy::default().into()
    }
}

impl From<model::ApprovalPolicy> for ApprovalPolicy {
    fn from(it: model::ApprovalPolicy) -> Self {
        Self { required: it.required, allow_self: it.allow_self, expires_after_s: it.expires_after_s }
    }
}

impl From<ApprovalPolicy> for model::ApprovalPolicy {
    fn from(it: ApprovalPolicy) -> Self {
        Self { required: it.required, allow_self: it.allow_self, expires_after_s: it.expires_after_s }
    }
}

/// One reviewer's decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Review {
    /// Who.
    pub reviewer: Actor,
    /// What.
    pub verdict: Verdict,
    /// Why.
    pub reason: Option<String>,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

/// Who asked, who decided, what, when, why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Approval {
    /// Its id.
    #[schema(value_type = String)]
    pub id: ApprovalId,
    /// The run it gates.
    #[schema(value_type = String)]
    pub run: RunId,
    /// The plan the run was promoted from.
    #[schema(value_type = Option<String>)]
    pub source_plan: Option<RunId>,
    /// The plan file that is being approved.
    #[schema(value_type = Option<String>)]
    pub plan_digest: Option<Digest>,
    /// The state generation the plan was made from.
    pub base_generation: u64,
    /// Digest of the frozen context that is being approved.
    #[schema(value_type = String)]
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
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it expires undecided.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// When it was decided, expired or withdrawn.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub closed_at: Option<Timestamp>,
}

impl From<model::Approval> for Approval {
    fn from(it: model::Approval) -> Self {
        let review = |r: model::Review| Review {
            reviewer: r.reviewer.into(),
            verdict: r.verdict.into(),
            reason: r.reason,
            at: r.at,
        };
        Self {
            id: it.id,
            run: it.run,
            source_plan: it.source_plan,
            plan_digest: it.plan_digest,
            base_generation: it.base_generation,
            snapshot: it.snapshot,
            policy: it.policy.into(),
            requester: it.requester.into(),
            status: it.status.into(),
            reviews: it.reviews.into_iter().map(review).collect(),
            created_at: it.created_at,
            expires_at: it.expires_at,
            closed_at: it.closed_at,
        }
    }
}

/// The body of `approve`, `reject` and `cancel`; may be left out altogether.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Why, for the record; at most 2,000 characters. Never put a secret here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
