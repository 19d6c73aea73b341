//! What a stop request does (`protocol.md` 1.7).

use jiff::Timestamp;
use serde_json::json;

use super::claim::revoked;
use super::lifecycle::Command;
use super::{RunDraft, object};
use crate::model::*;
use crate::refusal::Refusal;

/// Cancels a run: at once while no worker has claimed it, by asking the worker to stop after that.
/// `None` if a stop was already asked for.
///
/// # Errors
/// [`crate::Code::AlreadyTerminal`].
pub fn cancel(
    run: &Versioned<Run>,
    attempt: Option<&Versioned<Attempt>>,
    approval: Option<&Versioned<Approval>>,
    by: &Actor,
    reason: Option<String>,
    now: Timestamp,
) -> Result<Option<Changeset>, Refusal> {
    let mut draft = RunDraft::of(run, by.clone(), now);
    let status = draft.step(Command::Cancel)?;
    let open = attempt.filter(|a| a.is_open());
    let mut closes: Vec<(u64, Record)> = Vec::new();
    let told = object([("reason", json!(reason))]);
    if status == RunStatus::Canceling {
        if run.status == RunStatus::Canceling && run.stop.is_some() {
            return Ok(None);
        }
        draft.event(EventKind::RunCanceling, told);
        if let Some(attempt) = open {
            let asked = Attempt { stop: Some(StopCause::Cancel), ..attempt.value.clone() };
            closes.push((attempt.version, asked.into()));
        }
    } else {
        if let Some(attempt) = open {
            closes.push((attempt.version, revoked(&attempt.value, "canceled", now).into()));
            draft.event(
                EventKind::AttemptRevoked,
                object([("attempt", json!(attempt.id)), ("reason", json!("canceled"))]),
            );
        }
        if let Some(approval) = approval.filter(|a| a.status == ApprovalStatus::Pending) {
            let record = Approval {
                status: ApprovalStatus::Withdrawn,
                closed_at: Some(now),
                ..approval.value.clone()
            };
            closes.push((approval.version, record.into()));
            draft.event(EventKind::ApprovalWithdrawn, object([("approval", json!(approval.id))]));
        }
        draft.event(EventKind::RunCanceled, told);
    }
    draft.run.stop = Some(StopRequest { by: by.clone(), at: now, cause: StopCause::Cancel, reason });
    let mut changes = draft.finish();
    for (version, record) in closes {
        changes.update(version, record);
    }
    Ok(Some(changes))
}
