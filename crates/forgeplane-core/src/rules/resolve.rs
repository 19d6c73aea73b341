//! What an operator's decision on an unresolved execution does (`protocol.md` 1.11).

use jiff::Timestamp;
use serde_json::json;

use super::lifecycle::Command;
use super::outcome::{quarantine, terminal_event};
use super::{RunDraft, object};
use crate::model::*;
use crate::refusal::{Code, Refusal};

/// What an operator decides.
#[derive(Debug, Clone)]
pub struct Resolution {
    /// `failed` or `canceled`; `succeeded` needs a second person.
    pub outcome: OutcomeKind,
    /// Why.
    pub reason: String,
    /// What the operator asserts.
    pub asserted: Vec<String>,
    /// The second person.
    pub confirmed_by: Option<Actor>,
}

/// Ends an unresolved execution by decision: fence closed, worker identity out of service, run terminal.
///
/// # Errors
/// [`Code::NotUnresolved`]; [`Code::InvalidField`] for an empty reason or another outcome;
/// [`Code::Forbidden`] for `succeeded` without a second person.
pub fn resolve(
    attempt: &Versioned<Attempt>,
    run: &Versioned<Run>,
    worker: &Versioned<Worker>,
    resolution: &Resolution,
    by: &Actor,
    now: Timestamp,
) -> Result<Changeset, Refusal> {
    if attempt.state != AttemptState::Unresolved {
        return Err(Refusal::new(
            Code::NotUnresolved,
            format!("attempt {} is `{}`", attempt.id, attempt.state.as_str()),
        )
        .way_out("only an attempt whose worker is missing can be resolved"));
    }
    if resolution.reason.trim().is_empty() {
        return Err(Refusal::new(Code::InvalidField, "a resolution needs a reason").field("reason"));
    }
    match resolution.outcome {
        OutcomeKind::Failed | OutcomeKind::Canceled => {}
        OutcomeKind::Succeeded => {
            let second = resolution.confirmed_by.as_ref().and_then(Actor::principal);
            if second.is_none() || second == by.principal() {
                return Err(Refusal::new(
                    Code::Forbidden,
                    "`succeeded` needs the confirmation of a second person",
                )
                .field("confirmed_by"));
            }
        }
        OutcomeKind::TimedOut | OutcomeKind::NotStarted => {
            return Err(Refusal::new(
                Code::InvalidField,
                "an outcome is `failed`, `canceled` or `succeeded`",
            )
            .field("outcome"));
        }
    }
    let mut draft = RunDraft::of(run, by.clone(), now);
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
        confirmed_by: resolution.confirmed_by.clone(),
        reason: resolution.reason.clone(),
        asserted: resolution.asserted.clone(),
        outcome: resolution.outcome,
        at: now,
    });
    quarantine(&mut changes, worker, "execution_resolved_by_operator", now);
    Ok(changes)
}
