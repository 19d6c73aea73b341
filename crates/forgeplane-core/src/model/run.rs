//! The run: one execution intent.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Actor, Name, Operation, PlanSummary, Tool};
use crate::digest::Digest;
use crate::id::{ApprovalId, AttemptId, InstanceId, ProjectId, RunId, StateObjectId};

/// The eight statuses of `spec.md` §3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Waits for an approval decision.
    PendingApproval,
    /// Waits for a worker, or for its worker to claim.
    Queued,
    /// A worker has claimed it.
    Running,
    /// A stop was asked for; ends with what the attempt did.
    Canceling,
    /// Completed.
    Succeeded,
    /// The execution failed.
    Failed,
    /// Canceled.
    Canceled,
    /// Exceeded a deadline.
    TimedOut,
}

impl RunStatus {
    /// Every status.
    pub const ALL: [Self; 8] = [
        Self::PendingApproval,
        Self::Queued,
        Self::Running,
        Self::Canceling,
        Self::Succeeded,
        Self::Failed,
        Self::Canceled,
        Self::TimedOut,
    ];

    /// Whether nothing but a requeue can move the run.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled | Self::TimedOut)
    }

    /// The status as it travels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PendingApproval => "pending_approval",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Canceling => "canceling",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::TimedOut => "timed_out",
        }
    }
}

impl std::fmt::Display for RunStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for RunStatus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|s| s.as_str() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|s| s.as_str()).collect();
            format!("unknown run status; known are {}", known.join(", "))
        })
    }
}

/// Why a run is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// Somebody asked.
    Cancel,
    /// The execution deadline passed.
    Deadline,
    /// The tool printed nothing for longer than its template allows.
    Silence,
}

/// A recorded request to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    /// Who asked.
    pub by: Actor,
    /// When.
    pub at: Timestamp,
    /// Cancel or deadline.
    pub cause: StopCause,
    /// What they said.
    pub reason: Option<String>,
}

/// The plan artifact a run is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanBinding {
    /// The succeeded plan run.
    pub run: RunId,
    /// The exact plan file's digest.
    pub digest: Digest,
}

/// Why a run did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunError {
    /// Stable code, such as `tool_failed`, `worker_restarted`, `queue_expired`.
    pub code: String,
    /// What happened, without secrets.
    pub message: String,
}

/// One execution intent against an instance. Narrow and mutable; the frozen context is its
/// [`Snapshot`](super::Snapshot).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// Tenant.
    pub project: ProjectId,
    /// The instance it runs against.
    pub instance: InstanceId,
    /// What it does.
    pub operation: Operation,
    /// The tool it needs.
    pub tool: Tool,
    /// The pool it waits for.
    pub pool: Name,
    /// Where it is in its life.
    pub status: RunStatus,
    /// Digest of its frozen execution snapshot.
    pub snapshot: Digest,
    /// The managed state it reads or writes.
    pub state_object: Option<StateObjectId>,
    /// Who asked for it.
    pub requested_by: Actor,
    /// When it was admitted.
    pub created_at: Timestamp,
    /// Higher runs first; 0 unless asked otherwise.
    pub priority: i32,
    /// When it last entered the queue.
    pub queued_at: Option<Timestamp>,
    /// When it leaves the queue as `canceled` if nobody claimed it.
    pub queue_expires_at: Option<Timestamp>,
    /// When its current attempt was claimed.
    pub started_at: Option<Timestamp>,
    /// When it became terminal.
    pub finished_at: Option<Timestamp>,
    /// The plan it applies.
    pub plan: Option<PlanBinding>,
    /// The run its plan was promoted to.
    pub promoted_to: Option<RunId>,
    /// Its approval record.
    pub approval: Option<ApprovalId>,
    /// Its open or last attempt since it was last queued.
    pub current_attempt: Option<AttemptId>,
    /// Attempts made so far; the next one is `attempts + 1`.
    pub attempts: u32,
    /// How often in a row an attempt ended without the tool having started.
    pub not_started: u32,
    /// The stop request in force.
    pub stop: Option<StopRequest>,
    /// Why it did not succeed.
    pub error: Option<RunError>,
    /// Planned or applied changes.
    pub summary: Option<PlanSummary>,
    /// Sequence number of its last event; events of a run have no gaps.
    pub last_event: u64,
}
