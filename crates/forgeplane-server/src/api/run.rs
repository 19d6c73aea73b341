//! Runs, and why a run is where it is.

use forgeplane_core::coordinator;
use forgeplane_core::digest::Digest;
use forgeplane_core::id::{ApprovalId, AttemptId, InstanceId, RunId, StateObjectId, WorkerId};
use forgeplane_core::model::{self, Name, Object};
use forgeplane_core::refusal::{Code, Refusal};
use forgeplane_core::rules::admission::RunRequest;
use forgeplane_core::rules::schedule::WaitReason;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Actor, Approval, Attempt, DestroyMode, Operation, PlanArtifact, RunStatus, Snapshot, StopCause, Tool,
};

/// A run to create. An `apply` is made by promoting a plan, not here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRun {
    /// Instance name or id.
    pub instance: String,
    /// What to do.
    pub operation: Operation,
    /// For `plan`: plan the removal of everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy: Option<bool>,
    /// For `destroy`, and required there: only plan the removal, or perform it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<DestroyMode>,
    /// Inputs over the instance's.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    #[schema(value_type = Object)]
    pub inputs: Object,
    /// Execution timeout, seconds; absent: the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_timeout_s: Option<u64>,
    /// Higher runs first: -100 to 100, 0 unless given.
    #[serde(default)]
    pub priority: i32,
}

impl NewRun {
    /// The coordinator's command.
    ///
    /// # Errors
    /// `destroy` or `mode` where they mean nothing, and `operation: destroy` without `mode`.
    pub fn into_command(self, idempotency_key: Option<String>) -> Result<coordinator::NewRun, Refusal> {
        let wrong =
            |field: &str, why: &str| Refusal::new(Code::InvalidField, why.to_owned()).field(field.to_owned());
        if self.destroy.is_some() && self.operation != Operation::Plan {
            return Err(wrong("destroy", "`destroy` belongs to operation `plan`"));
        }
        if self.mode.is_some() && self.operation != Operation::Destroy {
            return Err(wrong("mode", "`mode` belongs to operation `destroy`"));
        }
        let operation = match self.operation {
            Operation::Plan => model::Operation::Plan { destroy: self.destroy.unwrap_or(false) },
            Operation::Apply => model::Operation::Apply,
            Operation::Destroy => {
                let mode = self
                    .mode
                    .ok_or_else(|| wrong("mode", "operation `destroy` needs `mode`: `plan` or `perform`"))?;
                model::Operation::Destroy { mode: mode.into() }
            }
            Operation::PlanOnly => model::Operation::PlanOnly,
            Operation::Preview => model::Operation::Preview,
            Operation::Teardown => model::Operation::Teardown,
            Operation::Execute => model::Operation::Execute,
        };
        Ok(coordinator::NewRun {
            instance: self.instance,
            request: RunRequest {
                operation,
                inputs: self.inputs,
                execution_timeout_s: self.execution_timeout_s,
                priority: self.priority,
            },
            idempotency_key,
        })
    }
}

/// The plan a run is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanBinding {
    /// The succeeded plan run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// The exact plan file's digest.
    #[schema(value_type = String)]
    pub digest: Digest,
}

impl From<model::PlanBinding> for PlanBinding {
    fn from(it: model::PlanBinding) -> Self {
        Self { run: it.run, digest: it.digest }
    }
}

/// A recorded request to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopRequest {
    /// Who asked.
    pub by: Actor,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Cancel or deadline.
    pub cause: StopCause,
    /// What they said.
    pub reason: Option<String>,
}

impl From<model::StopRequest> for StopRequest {
    fn from(it: model::StopRequest) -> Self {
        Self { by: it.by.into(), at: it.at, cause: it.cause.into(), reason: it.reason }
    }
}

/// Why a run did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunError {
    /// Stable code, such as `tool_failed`.
    pub code: String,
    /// What happened, without secrets.
    pub message: String,
}

impl From<model::RunError> for RunError {
    fn from(it: model::RunError) -> Self {
        Self { code: it.code, message: it.message }
    }
}

/// Counts of planned or applied changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanSummary {
    /// Resources to add.
    pub add: u64,
    /// Resources to change in place.
    pub change: u64,
    /// Resources to destroy.
    pub destroy: u64,
    /// Resources to import.
    pub import: u64,
}

impl From<model::PlanSummary> for PlanSummary {
    fn from(it: model::PlanSummary) -> Self {
        Self { add: it.add, change: it.change, destroy: it.destroy, import: it.import }
    }
}

impl std::fmt::Display for PlanSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { add, change, destroy, import } = *self;
        model::PlanSummary { add, change, destroy, import }.fmt(f)
    }
}

/// One execution intent against an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// Its id.
    #[schema(value_type = String)]
    pub id: RunId,
    /// The instance it runs against.
    #[schema(value_type = String)]
    pub instance: InstanceId,
    /// What it does.
    pub operation: Operation,
    /// Whether it plans or performs the removal of everything.
    pub destroy: bool,
    /// The mode of a `destroy`.
    pub mode: Option<DestroyMode>,
    /// The tool it needs.
    pub tool: Tool,
    /// The pool it waits for.
    #[schema(value_type = String)]
    pub pool: Name,
    /// Where it is in its life.
    pub status: RunStatus,
    /// Digest of its frozen execution snapshot.
    #[schema(value_type = String)]
    pub snapshot: Digest,
    /// The managed state it reads or writes.
    #[schema(value_type = Option<String>)]
    pub state_object: Option<StateObjectId>,
    /// Who asked for it.
    pub requested_by: Actor,
    /// When it was admitted.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Higher runs first.
    pub priority: i32,
    /// When it last entered the queue.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub queued_at: Option<Timestamp>,
    /// When it leaves the queue as `canceled` if nobody claimed it.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub queue_expires_at: Option<Timestamp>,
    /// When its current attempt was claimed.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When it became terminal.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    /// The plan it applies.
    pub plan: Option<PlanBinding>,
    /// The run its plan was promoted to.
    #[schema(value_type = Option<String>)]
    pub promoted_to: Option<RunId>,
    /// Its approval record.
    #[schema(value_type = Option<String>)]
    pub approval: Option<ApprovalId>,
    /// Its open or last attempt since it was last queued.
    #[schema(value_type = Option<String>)]
    pub current_attempt: Option<AttemptId>,
    /// Attempts made so far.
    pub attempts: u32,
    /// The stop request in force.
    pub stop: Option<StopRequest>,
    /// Why it did not succeed.
    pub error: Option<RunError>,
    /// Planned or applied changes.
    pub summary: Option<PlanSummary>,
    /// Number of its last event in its own history.
    pub last_event: u64,
}

fn destroy_mode(operation: &model::Operation) -> Option<DestroyMode> {
    match operation {
        model::Operation::Destroy { mode } => Some((*mode).into()),
        _ => None,
    }
}

impl From<model::Run> for Run {
    fn from(it: model::Run) -> Self {
        Self {
            id: it.id,
            instance: it.instance,
            operation: (&it.operation).into(),
            destroy: it.operation.removes_everything(),
            mode: destroy_mode(&it.operation),
            tool: it.tool.into(),
            pool: it.pool,
            status: it.status.into(),
            snapshot: it.snapshot,
            state_object: it.state_object,
            requested_by: it.requested_by.into(),
            created_at: it.created_at,
            priority: it.priority,
            queued_at: it.queued_at,
            queue_expires_at: it.queue_expires_at,
            started_at: it.started_at,
            finished_at: it.finished_at,
            plan: it.plan.map(PlanBinding::from),
            promoted_to: it.promoted_to,
            approval: it.approval,
            current_attempt: it.current_attempt,
            attempts: it.attempts,
            stop: it.stop.map(StopRequest::from),
            error: it.error.map(RunError::from),
            summary: it.summary.map(PlanSummary::from),
            last_event: it.last_event,
        }
    }
}

/// A run with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunDetail {
    /// The run.
    pub run: Run,
    /// Its execution's worker is missing and its outcome unknown.
    pub unresolved: bool,
    /// What admission froze.
    pub snapshot: Snapshot,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// Its approval record.
    pub approval: Option<Approval>,
    /// The plan it published.
    pub plan: Option<PlanArtifact>,
}

impl From<coordinator::RunView> for RunDetail {
    fn from(view: coordinator::RunView) -> Self {
        Self {
            unresolved: view.is_unresolved(),
            run: view.run.into(),
            snapshot: view.snapshot.into(),
            attempts: view.attempts.into_iter().map(Attempt::from).collect(),
            approval: view.approval.map(Approval::from),
            plan: view.plan.map(PlanArtifact::from),
        }
    }
}

/// Why a run waits. Which of the optional fields are there depends on the code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Waiting {
    /// Stable code: `pending_approval`, `offered`, `instance_busy`, `no_worker_in_pool`,
    /// `no_worker_with_capability`, `all_offline`, `all_draining`, `all_at_capacity`, `paused`, `next`.
    pub code: String,
    /// The reason in words.
    pub detail: String,
    /// `offered`: to this worker.
    #[schema(value_type = Option<String>)]
    pub worker: Option<WorkerId>,
    /// `offered`: until then.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Timestamp>,
    /// `instance_busy`: with this run.
    #[schema(value_type = Option<String>)]
    pub run: Option<RunId>,
    /// `instance_busy`: that run's outcome is unknown.
    pub unresolved: Option<bool>,
    /// `no_worker_…`: in this pool.
    #[schema(value_type = Option<String>)]
    pub pool: Option<Name>,
    /// `no_worker_with_capability`: this tool.
    pub capability: Option<Tool>,
    /// `all_…`: this many fitting workers.
    pub workers: Option<u64>,
}

impl From<WaitReason> for Waiting {
    fn from(reason: WaitReason) -> Self {
        let base = Self { code: reason.code().to_owned(), detail: reason.to_string(), ..Self::default() };
        match reason {
            WaitReason::PendingApproval | WaitReason::Paused | WaitReason::Next => base,
            WaitReason::CommitsLost { worker, .. } => Self { worker: Some(worker), ..base },
            WaitReason::Offered { worker, until } => {
                Self { worker: Some(worker), until: Some(until), ..base }
            }
            WaitReason::InstanceBusy { run, unresolved } => {
                Self { run: Some(run), unresolved: Some(unresolved), ..base }
            }
            WaitReason::NoWorkerInPool { pool } => Self { pool: Some(pool), ..base },
            WaitReason::NoWorkerWithCapability { pool, capability } => {
                Self { pool: Some(pool), capability: Some(capability.into()), ..base }
            }
            WaitReason::AllOffline { workers }
            | WaitReason::AllDraining { workers }
            | WaitReason::AllAtCapacity { workers } => Self { workers: Some(workers as u64), ..base },
        }
    }
}

/// Why a run is where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The run.
    pub run: Run,
    /// Why it waits, if it waits for something.
    pub waiting: Option<Waiting>,
    /// Since when the worker of its claimed attempt is missing.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub unresolved_since: Option<Timestamp>,
    /// What may be asked of it now: `approve`, `reject`, `cancel`, `requeue`, `promote`, `resolve`.
    pub allowed: Vec<String>,
}

impl From<coordinator::Explanation> for Explanation {
    fn from(it: coordinator::Explanation) -> Self {
        Self {
            run: it.run.into(),
            waiting: it.waiting.map(Waiting::from),
            unresolved_since: it.unresolved_since,
            allowed: it.allowed.into_iter().map(str::to_owned).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<coordinator::NewRun, Refusal> {
        serde_json::from_str::<NewRun>(text).unwrap().into_command(None)
    }

    #[test]
    fn destroy_and_mode_are_refused_where_they_mean_nothing() {
        let field = |text: &str| parse(text).unwrap_err().field.unwrap();
        assert_eq!(field(r#"{"instance":"a","operation":"preview","destroy":true}"#), "destroy");
        assert_eq!(field(r#"{"instance":"a","operation":"plan","mode":"plan"}"#), "mode");
        assert_eq!(field(r#"{"instance":"a","operation":"destroy"}"#), "mode");
        let run = parse(r#"{"instance":"a","operation":"destroy","mode":"perform"}"#).unwrap();
        assert_eq!(run.request.operation, model::Operation::Destroy { mode: model::DestroyMode::Perform });
    }
}
