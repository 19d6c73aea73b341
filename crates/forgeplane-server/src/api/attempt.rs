//! Attempts: tries at executing a run.

use forgeplane_core::digest::Digest;
use forgeplane_core::id::{AttemptId, RunId, WorkerId};
use forgeplane_core::model::{self, Name};
use forgeplane_core::rules::resolve::Resolution;
use forgeplane_core::{coordinator, ports};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Actor, AttemptState, OutcomeKind, Run, StateGeneration, StopCause, WorkerStatus};

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Closing {
    /// A signed outcome was committed.
    Receipted {
        /// Digest of the committed envelope.
        #[schema(value_type = String)]
        envelope: Digest,
        /// What it says.
        outcome: OutcomeKind,
    },
    /// The offer was withdrawn before a claim.
    Revoked {
        /// Why, such as `offer_expired` or `canceled`.
        reason: String,
    },
    /// An operator decided.
    Decided {
        /// The status they chose.
        outcome: OutcomeKind,
    },
}

impl From<model::Closing> for Closing {
    fn from(it: model::Closing) -> Self {
        match it {
            model::Closing::Receipted { envelope, outcome } => {
                Self::Receipted { envelope, outcome: outcome.into() }
            }
            model::Closing::Revoked { reason } => Self::Revoked { reason },
            model::Closing::Decided { outcome } => Self::Decided { outcome: outcome.into() },
        }
    }
}

/// One try at executing a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    /// Its id.
    #[schema(value_type = String)]
    pub id: AttemptId,
    /// The run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// 1, 2, …
    pub number: u32,
    /// Its fence.
    pub fence: u64,
    /// The worker it is leased to.
    #[schema(value_type = String)]
    pub worker: WorkerId,
    /// Where it is.
    pub state: AttemptState,
    /// The generation the tool starts from.
    pub base_generation: u64,
    /// When the lease was recorded.
    #[schema(value_type = String, format = DateTime)]
    pub offered_at: Timestamp,
    /// When the offer ends if nobody claims.
    #[schema(value_type = String, format = DateTime)]
    pub offer_expires_at: Timestamp,
    /// When it was claimed.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub claimed_at: Option<Timestamp>,
    /// When the worker should have stopped by itself.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub deadline: Option<Timestamp>,
    /// Since when the worker is missing.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub unresolved_since: Option<Timestamp>,
    /// One person says that it succeeded; a second one decides.
    pub proposal: Option<Proposal>,
    /// The deadline passed while the worker was missing.
    pub deadline_exceeded: bool,
    /// The stop the coordinator asked for.
    pub stop: Option<StopCause>,
    /// When it closed.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub closed_at: Option<Timestamp>,
    /// How it closed.
    pub closing: Option<Closing>,
    /// The highest state generation it wrote.
    pub last_generation: Option<u64>,
}

impl From<model::Attempt> for Attempt {
    fn from(it: model::Attempt) -> Self {
        Self {
            id: it.id,
            run: it.run,
            number: it.number,
            fence: it.fence.0,
            worker: it.worker,
            state: it.state.into(),
            base_generation: it.base_generation,
            offered_at: it.offered_at,
            offer_expires_at: it.offer_expires_at,
            claimed_at: it.claim.map(|c| c.at),
            deadline: it.deadline,
            unresolved_since: it.unresolved_since,
            proposal: it.proposal.map(Proposal::from),
            deadline_exceeded: it.deadline_exceeded,
            stop: it.stop.map(StopCause::from),
            closed_at: it.closed_at,
            closing: it.closing.map(Closing::from),
            last_generation: it.last_generation,
        }
    }
}

/// One person's proposal to call an unresolved execution a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Proposal {
    /// Who proposes.
    pub by: Actor,
    /// Why.
    pub reason: String,
    /// What they assert.
    pub asserted: Vec<String>,
    /// The state generation that holds what the execution created.
    pub generation: Option<u64>,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

impl From<model::Proposal> for Proposal {
    fn from(it: model::Proposal) -> Self {
        Self {
            by: it.by.into(),
            reason: it.reason,
            asserted: it.asserted,
            generation: it.generation,
            at: it.at,
        }
    }
}

/// The coordinator's acceptance of a signed outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Receipt {
    /// Digest of the envelope.
    #[schema(value_type = String)]
    pub envelope: Digest,
    /// The key that signed it.
    #[schema(value_type = String)]
    pub key: Digest,
    /// What it says.
    pub outcome: OutcomeKind,
    /// When it was committed.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

/// A verified statement that changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LateEvidence {
    /// Digest of the envelope.
    #[schema(value_type = String)]
    pub envelope: Digest,
    /// What it says.
    pub outcome: OutcomeKind,
    /// Why it was not applied, such as `operator_decided`.
    pub why: String,
    /// When it arrived.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

/// An operator's decision on an unresolved execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperatorDecision {
    /// Who decided.
    pub by: Actor,
    /// Who confirmed.
    pub confirmed_by: Option<Actor>,
    /// Why.
    pub reason: String,
    /// What they assert.
    pub asserted: Vec<String>,
    /// The state generation that holds what the execution created.
    pub generation: Option<u64>,
    /// The status they chose.
    pub outcome: OutcomeKind,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

/// An attempt with everything that is known about its execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttemptDetail {
    /// The attempt.
    pub attempt: Attempt,
    /// Its run.
    pub run: Run,
    /// The name of its worker.
    #[schema(value_type = String)]
    pub worker_name: Name,
    /// Where the worker is.
    pub worker_status: WorkerStatus,
    /// When the worker was last heard of.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_contact: Option<Timestamp>,
    /// When the worker last named this very claim.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_named: Option<Timestamp>,
    /// How much of its log has arrived, bytes.
    pub log_bytes: u64,
    /// The state generations it wrote, newest first.
    pub generations: Vec<StateGeneration>,
    /// The receipt that closed it.
    pub receipt: Option<Receipt>,
    /// The decision that closed it.
    pub decision: Option<OperatorDecision>,
    /// Statements that came too late to change anything.
    pub late: Vec<LateEvidence>,
}

impl From<coordinator::AttemptView> for AttemptDetail {
    fn from(it: coordinator::AttemptView) -> Self {
        Self {
            attempt: it.attempt.into(),
            run: it.run.into(),
            worker_name: it.worker.name,
            worker_status: it.worker_status.into(),
            last_contact: it.last_contact,
            last_named: it.last_named,
            log_bytes: it.log_bytes,
            generations: it.generations.into_iter().map(StateGeneration::from).collect(),
            receipt: it.receipt.map(|r| Receipt {
                envelope: r.envelope_digest,
                key: r.key,
                outcome: r.outcome.into(),
                at: r.at,
            }),
            decision: it.decision.map(|d| OperatorDecision {
                by: d.actor.into(),
                confirmed_by: d.confirmed_by.map(Actor::from),
                reason: d.reason,
                asserted: d.asserted,
                generation: d.generation,
                outcome: d.outcome.into(),
                at: d.at,
            }),
            late: it
                .late
                .into_iter()
                .map(|l| LateEvidence {
                    envelope: l.envelope_digest,
                    outcome: l.outcome.into(),
                    why: l.why,
                    at: l.at,
                })
                .collect(),
        }
    }
}

/// What an operator decides about an unresolved execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resolve {
    /// `failed` or `canceled`; `succeeded` is proposed and needs a second person.
    pub outcome: OutcomeKind,
    /// Why.
    pub reason: String,
    /// What the operator asserts, such as "worker host is off or wiped".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asserted: Vec<String>,
    /// For `succeeded` of a run that writes state: the generation that holds what it created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

impl From<Resolve> for Resolution {
    fn from(it: Resolve) -> Self {
        Self {
            outcome: it.outcome.into(),
            reason: it.reason,
            asserted: it.asserted,
            generation: it.generation,
        }
    }
}

/// What became of an outcome that somebody brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmittedOutcome {
    /// The attempt it is about.
    #[schema(value_type = String)]
    pub attempt: AttemptId,
    /// Digest of the envelope.
    #[schema(value_type = String)]
    pub envelope: Digest,
    /// It ended the attempt; otherwise it was kept as evidence.
    pub applied: bool,
}

impl From<ports::ReceiptAnswer> for SubmittedOutcome {
    fn from(it: ports::ReceiptAnswer) -> Self {
        Self { attempt: it.attempt, envelope: it.envelope_digest, applied: it.applied }
    }
}
