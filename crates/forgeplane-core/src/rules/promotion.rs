//! Whether a succeeded plan becomes an apply (`spec.md` §3).

use jiff::Timestamp;
use serde_json::json;

use super::admission::{self, FreshIds};
use super::lifecycle::Command;
use super::{RunDraft, object};
use crate::model::*;
use crate::refusal::{Code, Refusal};

/// What the rule looks at.
#[derive(Debug)]
pub struct Context<'a> {
    /// Who asks.
    pub requester: Actor,
    /// The plan run.
    pub plan: &'a Versioned<Run>,
    /// Its snapshot.
    pub snapshot: &'a Snapshot,
    /// Its artifact.
    pub artifact: Option<&'a PlanArtifact>,
    /// The run it was promoted to before.
    pub promoted: Option<&'a Run>,
    /// The instance.
    pub instance: &'a Versioned<Instance>,
    /// The managed state.
    pub state: &'a Versioned<StateObject>,
    /// The approval policy for the apply.
    pub approval: ApprovalPolicy,
}

/// Makes a new linked apply run out of a succeeded plan.
///
/// # Errors
/// [`Code::NotPromotable`], [`Code::ArtifactMissing`], [`Code::StalePlan`], [`Code::AlreadyPromoted`],
/// [`Code::InstanceTornDown`]; nothing is created then.
pub fn promote(context: &Context<'_>, ids: FreshIds, now: Timestamp) -> Result<(Changeset, Run), Refusal> {
    let Context { plan, snapshot, instance, state, .. } = context;
    if !plan.operation.publishes_plan() {
        return Err(Refusal::new(
            Code::NotPromotable,
            format!("run {} is a `{}`: only a plan can be promoted", plan.id, plan.operation.label()),
        )
        .way_out("create a `plan` run and promote that"));
    }
    let mut draft = RunDraft::of(plan, context.requester.clone(), now);
    draft.step(Command::Promote)?;
    if let Some(run) = instance.torn_down_by {
        return Err(admission::torn_down(&instance.value, run));
    }
    let artifact = context.artifact.ok_or_else(|| {
        Refusal::new(Code::ArtifactMissing, format!("the plan artifact of run {} is gone", plan.id))
            .way_out("create a new plan")
    })?;
    if let Some(live) = context.promoted.filter(|run| !run.status.is_terminal()) {
        return Err(Refusal::new(
            Code::AlreadyPromoted,
            format!("plan {} is already promoted to run {}, which is `{}`", plan.id, live.id, live.status),
        )
        .way_out(format!("follow run {}, or cancel it and promote again", live.id)));
    }
    if state.head != artifact.base_generation {
        return Err(Refusal::new(
            Code::StalePlan,
            format!(
                "plan {} was made from state generation {}, but the current one is {}",
                plan.id, artifact.base_generation, state.head
            ),
        )
        .way_out("create a new plan"));
    }

    let binding = PlanBinding { run: plan.id, digest: artifact.plan };
    let apply = Snapshot {
        run: ids.run,
        operation: Operation::Apply,
        base_generation: artifact.base_generation,
        plan: Some(binding),
        approval: context.approval.clone(),
        ..(*snapshot).clone()
    };
    draft.run.promoted_to = Some(ids.run);
    draft.event(EventKind::RunPromoted, object([("to", json!(ids.run)), ("plan", json!(artifact.plan))]));
    let priority = draft.run.priority;
    let mut changes = draft.finish();
    changes.check(instance).check(state);
    let run = admission::create(&mut changes, apply, context.requester.clone(), priority, ids, now);
    Ok((changes, run))
}
