//! One try at executing a run, its lease, fence and claim.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Actor, StopCause};
use crate::digest::Digest;
use crate::id::{AttemptId, InstanceId, ProjectId, RunId, StateObjectId, WorkerId};

/// A number that is never reused and grows with every attempt of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// 128 random bits, fresh for every claim intent (rule H3 of `protocol.md`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub [u8; 16]);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Nonce {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Nonce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut bytes = [0; 16];
        hex::decode_to_slice(&text, &mut bytes).map_err(serde::de::Error::custom)?;
        Ok(Self(bytes))
    }
}

/// Where an attempt is (`protocol.md` 1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptState {
    /// Leased to a worker that has not claimed it.
    Offered,
    /// The worker crossed the execution fence.
    Claimed,
    /// Claimed, and the worker has not been heard of.
    Unresolved,
    /// Over.
    Closed,
}

impl AttemptState {
    /// The state as it travels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Claimed => "claimed",
            Self::Unresolved => "unresolved",
            Self::Closed => "closed",
        }
    }
}

/// The worker's statement "I begin now". Set once, never cleared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The claiming intent's nonce.
    pub nonce: Nonce,
    /// When the coordinator committed it.
    pub at: Timestamp,
    /// The worker incarnation that claimed.
    pub incarnation: u64,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Closing {
    /// A signed outcome was committed.
    Receipted {
        /// Digest of the committed envelope.
        envelope: Digest,
        /// What it says.
        outcome: OutcomeKind,
    },
    /// The offer was withdrawn before a claim.
    Revoked {
        /// `offer_expired`, `canceled`, `worker_offline`, `worker_draining`, `not_runnable`.
        reason: String,
    },
    /// An operator decided.
    Decided {
        /// The status they chose.
        outcome: OutcomeKind,
    },
}

/// What a signed outcome says happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// Completed.
    Succeeded,
    /// Failed.
    Failed,
    /// Stopped on request.
    Canceled,
    /// Stopped by the deadline.
    TimedOut,
    /// The tool never started; the run may be tried again.
    NotStarted,
}

impl OutcomeKind {
    /// The outcome as it travels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::TimedOut => "timed_out",
            Self::NotStarted => "not_started",
        }
    }
}

/// One person's proposal to call an unresolved execution a success; a second person decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// Who proposes.
    pub by: Actor,
    /// Why.
    pub reason: String,
    /// What they assert, such as "worker host is off or wiped".
    pub asserted: Vec<String>,
    /// The state generation that holds what the execution created, if it writes state.
    pub generation: Option<u64>,
    /// When.
    pub at: Timestamp,
}

/// One try at executing a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its id.
    pub id: AttemptId,
    /// The run.
    pub run: RunId,
    /// Tenant.
    pub project: ProjectId,
    /// 1, 2, …
    pub number: u32,
    /// Its fence.
    pub fence: Fence,
    /// The worker it is leased to.
    pub worker: WorkerId,
    /// Which of the worker's places it takes: below the worker's capacity.
    pub slot: u32,
    /// The key that must sign its outcome.
    pub key: Digest,
    /// Where it is.
    pub state: AttemptState,
    /// The instance it holds exclusively, if it changes infrastructure.
    pub exclusive: Option<InstanceId>,
    /// Managed state.
    pub state_object: Option<StateObjectId>,
    /// The generation the tool starts from.
    pub base_generation: u64,
    /// The snapshot it executes.
    pub snapshot: Digest,
    /// The plan file it applies.
    pub plan: Option<Digest>,
    /// When the lease was recorded.
    pub offered_at: Timestamp,
    /// When the offer ends if nobody claims.
    pub offer_expires_at: Timestamp,
    /// How often the job was published.
    pub publications: u32,
    /// When it was last published (or queued for publication).
    pub published_at: Timestamp,
    /// The claim, once made.
    pub claim: Option<Claim>,
    /// When the worker should have stopped by itself.
    pub deadline: Option<Timestamp>,
    /// Since when the worker is missing.
    pub unresolved_since: Option<Timestamp>,
    /// A proposal to call it a success, while the worker is missing.
    #[serde(default)]
    pub proposal: Option<Proposal>,
    /// The deadline passed while the worker was missing.
    pub deadline_exceeded: bool,
    /// The stop cause the coordinator asked for.
    pub stop: Option<StopCause>,
    /// When it closed.
    pub closed_at: Option<Timestamp>,
    /// How it closed.
    pub closing: Option<Closing>,
    /// The highest state generation it wrote.
    pub last_generation: Option<u64>,
}

impl Attempt {
    /// Whether it can still end by a claim or an outcome.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state != AttemptState::Closed
    }
}
