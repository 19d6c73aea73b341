//! Whether a run may be tried again under the same id (`spec.md` §3, `protocol.md` 1.10).

use jiff::Timestamp;
use serde_json::json;

use super::lifecycle::{Command, step};
use super::{RunDraft, admission, object};
use crate::model::*;
use crate::refusal::{Code, Refusal};

/// What the rule looks at.
#[derive(Debug)]
pub struct Context<'a> {
    /// The run.
    pub run: &'a Versioned<Run>,
    /// Its snapshot.
    pub snapshot: &'a Snapshot,
    /// Its last attempt.
    pub attempt: Option<&'a Attempt>,
    /// The instance.
    pub instance: &'a Versioned<Instance>,
    /// The managed state.
    pub state: Option<&'a Versioned<StateObject>>,
    /// The plan run it was promoted from.
    pub source: Option<&'a Versioned<Run>>,
    /// The artifact of the plan it applies.
    pub artifact: Option<&'a PlanArtifact>,
    /// The run its plan is promoted to now.
    pub promoted: Option<&'a Run>,
    /// Its approval record.
    pub approval: Option<&'a Approval>,
}

/// Puts an eligible run back into the queue; earlier attempts, logs and receipts stay readable.
///
/// # Errors
/// [`Code::InvalidTransition`], [`Code::UnresolvedExecution`], [`Code::InstanceTornDown`],
/// [`Code::ArtifactMissing`], [`Code::AlreadyPromoted`], [`Code::ReplanRequired`], [`Code::StaleState`],
/// [`Code::ApprovalInvalid`].
pub fn requeue(context: &Context<'_>, by: &Actor, now: Timestamp) -> Result<Changeset, Refusal> {
    let Context { run, instance, .. } = context;
    if context.attempt.is_some_and(|a| a.state == AttemptState::Unresolved) {
        return Err(Refusal::new(
            Code::UnresolvedExecution,
            format!("run {} has an execution whose outcome is missing", run.id),
        )
        .way_out("wait for its worker, or resolve the attempt"));
    }
    step(run, Command::Requeue)?;
    if let Some(by) = instance.torn_down_by {
        return Err(admission::torn_down(&instance.value, by));
    }
    check_plan(context)?;
    check_state(context)?;
    check_approval(context)?;

    let mut draft = RunDraft::of(run, by.clone(), now);
    draft.step(Command::Requeue)?;
    draft.enqueue(context.snapshot.queue_timeout_s);
    let from = run.status;
    draft.run.started_at = None;
    draft.run.finished_at = None;
    draft.run.current_attempt = None;
    draft.run.not_started = 0;
    draft.run.stop = None;
    draft.run.error = None;
    draft.run.summary = None;
    draft.event(EventKind::RunRequeued, object([("from", json!(from))]));
    draft.event(EventKind::RunQueued, Object::new());
    let mut changes = draft.finish();
    changes.check(instance);
    if let Some(state) = context.state {
        changes.check(state);
    }
    if let Some(source) = context.source {
        // The plan points to its live promotion; this also lets a concurrent promotion conflict.
        changes.update(source.version, Run { promoted_to: Some(run.id), ..source.value.clone() });
    }
    Ok(changes)
}

fn check_plan(context: &Context<'_>) -> Result<(), Refusal> {
    let Some(plan) = &context.run.plan else { return Ok(()) };
    if context.artifact.is_none_or(|a| a.plan != plan.digest) {
        return Err(Refusal::new(
            Code::ArtifactMissing,
            format!("the artifact of plan {} is gone", plan.run),
        )
        .way_out("create a new plan"));
    }
    match context.promoted {
        Some(other) if other.id != context.run.id && !other.status.is_terminal() => Err(Refusal::new(
            Code::AlreadyPromoted,
            format!("plan {} is promoted to run {} by now", plan.run, other.id),
        )
        .way_out(format!("follow run {}", other.id))),
        _ => Ok(()),
    }
}

fn check_state(context: &Context<'_>) -> Result<(), Refusal> {
    let Some(state) = context.state else { return Ok(()) };
    let base = context.snapshot.base_generation;
    if state.head == base {
        return Ok(());
    }
    if context.run.plan.is_some() {
        return Err(Refusal::new(
            Code::ReplanRequired,
            format!("the state moved from generation {base} to {} since the plan", state.head),
        )
        .way_out("create a new plan"));
    }
    if context.run.operation.writes_state() && state.head_run == Some(context.run.id) {
        return Ok(());
    }
    Err(Refusal::new(
        Code::StaleState,
        format!("the state moved from generation {base} to {} and this run did not move it last", state.head),
    )
    .way_out("create a new run"))
}

fn check_approval(context: &Context<'_>) -> Result<(), Refusal> {
    if context.run.approval.is_none() {
        return Ok(());
    }
    match context.approval {
        Some(approval)
            if approval.status == ApprovalStatus::Approved && approval.snapshot == context.run.snapshot =>
        {
            Ok(())
        }
        other => Err(Refusal::new(
            Code::ApprovalInvalid,
            format!("the run's approval is `{}`", other.map_or("gone", |a| a.status.as_str())),
        )
        .way_out("create (or promote to) a new run and have it approved")),
    }
}
