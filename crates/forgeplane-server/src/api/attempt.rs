//! Attempts: tries at executing a run.

use forgeplane_core::digest::Digest;
use forgeplane_core::id::{AttemptId, RunId, WorkerId};
use forgeplane_core::model;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AttemptState, OutcomeKind, StopCause};

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
            deadline_exceeded: it.deadline_exceeded,
            stop: it.stop.map(StopCause::from),
            closed_at: it.closed_at,
            closing: it.closing.map(Closing::from),
            last_generation: it.last_generation,
        }
    }
}
