//! Whether a run comes into being, and what it freezes (`spec.md` §2, §4; `protocol.md` S0).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::lifecycle::{after_seconds, next};
use super::{Settings, environment, inputs, object};
use crate::digest::Digest;
use crate::id::{ApprovalId, RunId};
use crate::model::*;
use crate::refusal::{Code, Refusal};

/// What a requester asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRequest {
    /// What to do.
    pub operation: Operation,
    /// Inputs over the instance's.
    pub inputs: Object,
    /// Execution timeout override, seconds.
    pub execution_timeout_s: Option<u64>,
    /// Higher runs first.
    pub priority: i32,
}

/// What the rule looks at.
#[derive(Debug)]
pub struct Context<'a> {
    /// Who asks.
    pub requester: Actor,
    /// Against which instance.
    pub instance: &'a Versioned<Instance>,
    /// Its template version.
    pub template: &'a TemplateVersion,
    /// Its managed state.
    pub state: Option<&'a Versioned<StateObject>>,
    /// Secret bindings of the instance, resolved.
    pub secrets: Vec<SecretBinding>,
    /// The approval policy for this operation.
    pub approval: ApprovalPolicy,
    /// System settings.
    pub settings: &'a Settings,
}

/// Fresh ids for what may be created.
#[derive(Debug, Clone, Copy)]
pub struct FreshIds {
    /// The run's.
    pub run: RunId,
    /// The approval record's.
    pub approval: ApprovalId,
}

/// Priorities outside this range are refused.
pub const PRIORITY_RANGE: std::ops::RangeInclusive<i32> = -100..=100;

/// Whether the instance's tool can do the operation at all.
///
/// # Errors
/// [`Code::NoExecutor`], [`Code::UnsupportedOperation`]; both name the tool, the operation and what works.
pub fn check_operation(tool: Tool, operation: &Operation, settings: &Settings) -> Result<(), Refusal> {
    if !settings.executors.contains(&tool) {
        let known: Vec<_> = settings.executors.iter().map(|t| t.label()).collect();
        return Err(Refusal::new(Code::NoExecutor, format!("there is no executor for tool `{tool}`"))
            .field("tool")
            .way_out(format!("tools with an executor: {}", known.join(", "))));
    }
    if !tool.supports(operation) {
        return Err(Refusal::new(
            Code::UnsupportedOperation,
            format!("tool `{tool}` does not support operation `{}`", operation.label()),
        )
        .field("operation")
        .way_out(format!("`{tool}` supports: {}", tool.operations().join(", "))));
    }
    Ok(())
}

/// Admits a run.
///
/// # Errors
/// Everything that makes the request impossible; nothing is created then.
pub fn admit(
    context: &Context<'_>,
    request: &RunRequest,
    ids: FreshIds,
    now: Timestamp,
) -> Result<(Changeset, Run), Refusal> {
    let Context { instance, template, settings, .. } = context;
    check_operation(instance.tool, &request.operation, settings)?;
    if request.operation == Operation::Apply {
        return Err(Refusal::new(
            Code::UnsupportedOperation,
            "an apply exists only as the promotion of a succeeded plan",
        )
        .field("operation")
        .way_out("create a `plan` run, then promote it"));
    }
    if let Some(run) = instance.torn_down_by {
        return Err(torn_down(&instance.value, run));
    }
    if !PRIORITY_RANGE.contains(&request.priority) {
        return Err(
            Refusal::new(Code::InvalidField, "a priority is a number from -100 to 100").field("priority")
        );
    }
    let execution_timeout_s = execution_timeout(template, request.execution_timeout_s)?;
    let inputs = inputs::resolve(
        &template.schema,
        [&template.defaults, &instance.inputs, &request.inputs],
        &instance.secrets,
    )?;
    let environment = environment::variables(&template.schema, &inputs)?;

    let snapshot = Snapshot {
        run: ids.run,
        project: instance.project,
        instance: instance.id,
        instance_name: instance.name.clone(),
        template: template.template,
        template_version: template.version,
        tool: template.tool,
        operation: request.operation.clone(),
        source: template.source,
        entrypoint: template.entrypoint.clone(),
        inputs,
        secrets: context.secrets.clone(),
        environment,
        pool: instance.pool.clone().unwrap_or_else(|| template.pool.clone()),
        execution_timeout_s,
        cancel_grace_s: template.cancel_grace_s,
        no_output_timeout_s: template.no_output_timeout_s,
        queue_timeout_s: template.queue_timeout_s,
        state_object: instance.state_object,
        base_generation: context.state.map_or(0, |s| s.head),
        plan: None,
        approval: context.approval.clone(),
    };
    let mut changes = Changeset::new();
    changes.check(instance);
    let run = create(&mut changes, snapshot, context.requester.clone(), request.priority, ids, now);
    Ok((changes, run))
}

fn execution_timeout(template: &TemplateVersion, asked: Option<u64>) -> Result<u64, Refusal> {
    match asked {
        None => Ok(template.execution_timeout_s),
        Some(seconds) if (1..=template.max_execution_timeout_s).contains(&seconds) => Ok(seconds),
        Some(_) => Err(Refusal::new(
            Code::InvalidField,
            format!(
                "an execution timeout is 1 to {} seconds for this template",
                template.max_execution_timeout_s
            ),
        )
        .field("execution_timeout_s")),
    }
}

pub(crate) fn torn_down(instance: &Instance, by: RunId) -> Refusal {
    Refusal::new(Code::InstanceTornDown, format!("instance `{}` was torn down by run {by}", instance.name))
        .way_out("create a new instance")
}

/// Creates the run, its snapshot and, if needed, its approval record; shared by admission and promotion.
pub(crate) fn create(
    changes: &mut Changeset,
    snapshot: Snapshot,
    requester: Actor,
    priority: i32,
    ids: FreshIds,
    now: Timestamp,
) -> Run {
    let digest: Digest = snapshot.digest();
    let gated = snapshot.is_gated();
    let mut run = Run {
        id: ids.run,
        project: snapshot.project,
        instance: snapshot.instance,
        operation: snapshot.operation.clone(),
        tool: snapshot.tool,
        pool: snapshot.pool.clone(),
        status: if gated { RunStatus::PendingApproval } else { RunStatus::Queued },
        snapshot: digest,
        state_object: snapshot.state_object,
        requested_by: requester.clone(),
        created_at: now,
        priority,
        queued_at: (!gated).then_some(now),
        queue_expires_at: if gated { None } else { snapshot.queue_timeout_s.map(|s| after_seconds(now, s)) },
        started_at: None,
        finished_at: None,
        plan: snapshot.plan.clone(),
        promoted_to: None,
        approval: gated.then_some(ids.approval),
        current_attempt: None,
        attempts: 0,
        not_started: 0,
        stop: None,
        error: None,
        summary: None,
        last_event: 0,
    };
    debug_assert!(next(run.status, super::lifecycle::Command::Cancel).is_some());
    let mut event = |run: &mut Run, kind: EventKind, data: Object| {
        run.last_event += 1;
        changes.events.push(Event {
            seq: 0,
            project: Some(run.project),
            run: Some(run.id),
            run_seq: run.last_event,
            kind,
            actor: requester.clone(),
            at: now,
            data,
        });
    };
    event(
        &mut run,
        EventKind::RunCreated,
        object([
            ("operation", json!(snapshot.operation.label())),
            ("instance", json!(snapshot.instance_name)),
            ("snapshot", json!(digest)),
            ("base_generation", json!(snapshot.base_generation)),
            ("plan", snapshot.plan.as_ref().map_or(Value::Null, |p| json!(p))),
        ]),
    );
    if gated {
        let expires_at = snapshot.approval.expires_after_s.map(|s| after_seconds(now, s));
        event(
            &mut run,
            EventKind::ApprovalPending,
            object([("approval", json!(ids.approval)), ("required", json!(snapshot.approval.required))]),
        );
        changes.insert(Approval {
            id: ids.approval,
            project: run.project,
            run: run.id,
            source_plan: snapshot.plan.as_ref().map(|p| p.run),
            plan_digest: snapshot.plan.as_ref().map(|p| p.digest),
            base_generation: snapshot.base_generation,
            snapshot: digest,
            policy: snapshot.approval.clone(),
            requester,
            status: ApprovalStatus::Pending,
            reviews: Vec::new(),
            created_at: now,
            expires_at,
            closed_at: None,
        });
    } else {
        event(&mut run, EventKind::RunQueued, Object::new());
    }
    changes.insert(snapshot).insert(run.clone());
    run
}
