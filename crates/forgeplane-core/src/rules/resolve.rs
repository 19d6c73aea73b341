//! What an operator's decision on an unresolved execution does (`protocol.md` 1.11).

use jiff::Timestamp;
use serde_json::json;

use super::lifecycle::Command;
use super::outcome::{quarantine, terminal_event};
use super::{RunDraft, object};
use crate::model::*;
use crate::refusal::{Code, Refusal};

/// What the rule looks at.
#[derive(Debug)]
pub struct Context<'a> {
    /// The attempt.
    pub attempt: &'a Versioned<Attempt>,
    /// Its run.
    pub run: &'a Versioned<Run>,
    /// Its worker.
    pub worker: &'a Versioned<Worker>,
    /// The managed state.
    pub state: Option<&'a Versioned<StateObject>>,
    /// A fence for the decision itself, allocated after the attempt was read.
    pub fence: Fence,
}

/// What an operator says.
#[derive(Debug, Clone)]
pub struct Resolution {
    /// `failed`, `canceled` or `succeeded`.
    pub outcome: OutcomeKind,
    /// Why.
    pub reason: String,
    /// What the operator asserts.
    pub asserted: Vec<String>,
    /// For `succeeded` of a run that writes state: the generation that holds what it created.
    pub generation: Option<u64>,
}

/// What becomes of it.
#[derive(Debug)]
pub enum Decision {
    /// It ends the execution.
    Decide(Changeset),
    /// It waits for a second person: one alone cannot call an execution a success.
    Propose(Changeset),
}

/// Ends an unresolved execution by decision: fence closed, worker identity out of service, run terminal. A success is
/// only proposed.
///
/// # Errors
/// [`Code::NotUnresolved`]; [`Code::InvalidField`] for an empty reason, another outcome, a generation that is missing
/// or is not the current one.
pub fn resolve(
    context: &Context<'_>,
    resolution: &Resolution,
    by: &Actor,
    now: Timestamp,
) -> Result<Decision, Refusal> {
    is_unresolved(context.attempt)?;
    if resolution.reason.trim().is_empty() {
        return Err(Refusal::new(Code::InvalidField, "a resolution needs a reason").field("reason"));
    }
    match resolution.outcome {
        OutcomeKind::Failed | OutcomeKind::Canceled => {
            Ok(Decision::Decide(decide(context, resolution, by, None, now)?))
        }
        OutcomeKind::Succeeded => {
            generation_is_current(context, resolution.generation)?;
            Ok(Decision::Propose(propose(context, resolution, by, now)))
        }
        OutcomeKind::TimedOut | OutcomeKind::NotStarted => {
            Err(Refusal::new(Code::InvalidField, "an outcome is `failed`, `canceled` or `succeeded`")
                .field("outcome"))
        }
    }
}

/// Confirms the proposal to call an unresolved execution a success.
///
/// # Errors
/// [`Code::NotUnresolved`]; [`Code::InvalidState`] without a proposal; [`Code::Forbidden`] for whoever made it;
/// [`Code::InvalidField`] when the state has moved on since.
pub fn confirm(context: &Context<'_>, by: &Actor, now: Timestamp) -> Result<Changeset, Refusal> {
    let attempt = context.attempt;
    is_unresolved(attempt)?;
    let proposal = attempt.proposal.as_ref().ok_or_else(|| {
        Refusal::new(Code::InvalidState, format!("nobody proposed that attempt {} succeeded", attempt.id))
            .way_out("propose it first, as another person")
    })?;
    if by.principal().is_none() || by.principal() == proposal.by.principal() {
        return Err(Refusal::new(Code::Forbidden, "a success is confirmed by a second person"));
    }
    generation_is_current(context, proposal.generation)?;
    let resolution = Resolution {
        outcome: OutcomeKind::Succeeded,
        reason: proposal.reason.clone(),
        asserted: proposal.asserted.clone(),
        generation: proposal.generation,
    };
    decide(context, &resolution, &proposal.by, Some(by), now)
}

fn is_unresolved(attempt: &Attempt) -> Result<(), Refusal> {
    if attempt.state == AttemptState::Unresolved {
        return Ok(());
    }
    Err(Refusal::new(Code::NotUnresolved, format!("attempt {} is `{}`", attempt.id, attempt.state.as_str()))
        .way_out("only an attempt whose worker is missing can be resolved"))
}

/// A success that leaves no trace in the state would make the next plan create everything again.
fn generation_is_current(context: &Context<'_>, generation: Option<u64>) -> Result<(), Refusal> {
    let Some(state) = context.state.filter(|_| context.run.operation.writes_state()) else { return Ok(()) };
    if generation == Some(state.head) {
        return Ok(());
    }
    Err(Refusal::new(
        Code::InvalidField,
        format!(
            "the state is at generation {}; a success names the generation that holds what was created",
            state.head
        ),
    )
    .field("generation")
    .way_out("look at the state first; if it lacks what the tool created, push the right document"))
}

fn propose(context: &Context<'_>, resolution: &Resolution, by: &Actor, now: Timestamp) -> Changeset {
    let Context { attempt, run, .. } = context;
    let mut draft = RunDraft::of(run, by.clone(), now);
    draft.event(
        EventKind::AttemptResolutionProposed,
        object([
            ("attempt", json!(attempt.id)),
            ("reason", json!(resolution.reason)),
            ("generation", json!(resolution.generation)),
        ]),
    );
    let mut changes = draft.finish();
    let proposal = Proposal {
        by: by.clone(),
        reason: resolution.reason.clone(),
        asserted: resolution.asserted.clone(),
        generation: resolution.generation,
        at: now,
    };
    changes.update(attempt.version, Attempt { proposal: Some(proposal), ..attempt.value.clone() });
    changes
}

fn decide(
    context: &Context<'_>,
    resolution: &Resolution,
    by: &Actor,
    confirmed_by: Option<&Actor>,
    now: Timestamp,
) -> Result<Changeset, Refusal> {
    let Context { attempt, run, worker, .. } = context;
    let mut draft = RunDraft::of(run, confirmed_by.unwrap_or(by).clone(), now);
    let status = draft.step(Command::Conclude(resolution.outcome))?;
    if status != RunStatus::Succeeded {
        draft.error("resolved_by_operator", resolution.reason.clone());
    }
    draft.event(
        EventKind::AttemptResolved,
        object([
            ("attempt", json!(attempt.id)),
            ("outcome", json!(resolution.outcome)),
            ("reason", json!(resolution.reason)),
        ]),
    );
    draft.event(terminal_event(status), object([("attempt", json!(attempt.id)), ("decided", json!(true))]));
    let mut changes = draft.finish();
    if let Some(state) = context.state {
        // Whatever the missing worker still sends, its fence is behind.
        changes.update(state.version, StateObject { high_water: context.fence, ..state.value.clone() });
    }
    changes.update(
        attempt.version,
        Attempt {
            state: AttemptState::Closed,
            closed_at: Some(now),
            closing: Some(Closing::Decided { outcome: resolution.outcome }),
            ..attempt.value.clone()
        },
    );
    changes.insert(OperatorDecision {
        attempt: attempt.id,
        run: run.id,
        project: run.project,
        actor: by.clone(),
        confirmed_by: confirmed_by.cloned(),
        reason: resolution.reason.clone(),
        asserted: resolution.asserted.clone(),
        generation: resolution.generation,
        outcome: resolution.outcome,
        at: now,
    });
    quarantine(&mut changes, worker, "execution_resolved_by_operator", now);
    Ok(changes)
}
