//! What a review does (`spec.md` §3).

use jiff::Timestamp;
use serde_json::json;

use super::lifecycle::Command;
use super::{RunDraft, object};
use crate::model::*;
use crate::refusal::{Code, Refusal};

/// Records a reviewer's verdict; enough approvals queue the run, one rejection cancels it.
///
/// # Errors
/// [`Code::AlreadyDecided`] after a decision or a second review by the same person,
/// [`Code::SelfApproval`], [`Code::InvalidTransition`] when the run no longer waits.
pub fn review(
    approval: &Versioned<Approval>,
    run: &Versioned<Run>,
    snapshot: &Snapshot,
    reviewer: &Actor,
    verdict: Verdict,
    reason: Option<String>,
    now: Timestamp,
) -> Result<Changeset, Refusal> {
    if approval.status != ApprovalStatus::Pending {
        return Err(Refusal::new(
            Code::AlreadyDecided,
            format!("approval {} is already `{}`", approval.id, approval.status.as_str()),
        ));
    }
    if verdict == Verdict::Approve
        && !approval.policy.allow_self
        && reviewer.principal().is_some()
        && reviewer.principal() == approval.requester.principal()
    {
        return Err(Refusal::new(
            Code::SelfApproval,
            format!("{reviewer} asked for run {} and may not approve it", run.id),
        )
        .way_out("ask somebody else with the approver role"));
    }
    if approval.reviews.iter().any(|r| r.reviewer.principal() == reviewer.principal()) {
        return Err(Refusal::new(
            Code::AlreadyDecided,
            format!("{reviewer} has already reviewed approval {}", approval.id),
        )
        .way_out("the remaining reviews must come from other people"));
    }
    if approval.expires_at.is_some_and(|at| at <= now) {
        return Err(Refusal::new(Code::ApprovalInvalid, format!("approval {} has expired", approval.id))
            .way_out("ask again with a new run"));
    }

    let mut record = approval.value.clone();
    record.reviews.push(Review { reviewer: reviewer.clone(), verdict, reason: reason.clone(), at: now });
    let approvals = record.reviews.iter().filter(|r| r.verdict == Verdict::Approve).count();
    let mut draft = RunDraft::of(run, reviewer.clone(), now);
    let told = object([("approval", json!(approval.id)), ("reason", json!(reason))]);
    if verdict == Verdict::Reject {
        record.status = ApprovalStatus::Rejected;
        record.closed_at = Some(now);
        draft.step(Command::Reject)?;
        draft.error("rejected", format!("{reviewer} rejected the run"));
        draft.event(EventKind::ApprovalRejected, told);
        draft.event(EventKind::RunCanceled, object([("reason", json!("rejected"))]));
    } else if approvals >= approval.policy.required as usize {
        record.status = ApprovalStatus::Approved;
        record.closed_at = Some(now);
        draft.step(Command::Approve)?;
        draft.enqueue(snapshot.queue_timeout_s);
        draft.event(EventKind::ApprovalApproved, told);
        draft.event(EventKind::RunQueued, Object::new());
    } else {
        super::lifecycle::step(&run.value, Command::Approve)?;
        draft.event(EventKind::ApprovalReviewed, told);
    }
    let mut changes = draft.finish();
    changes.update(approval.version, record);
    Ok(changes)
}

/// Ends a pending approval that nobody decided in time; its run is canceled. `None` if it is not due.
///
/// # Errors
/// When the run no longer waits.
pub fn expire(
    approval: &Versioned<Approval>,
    run: &Versioned<Run>,
    now: Timestamp,
) -> Result<Option<Changeset>, Refusal> {
    let due = approval.status == ApprovalStatus::Pending && approval.expires_at.is_some_and(|at| at <= now);
    if !due {
        return Ok(None);
    }
    let mut draft = RunDraft::of(run, Actor::system("sweeper"), now);
    draft.step(Command::ExpireApproval)?;
    draft.error("approval_expired", "nobody decided the approval in time");
    draft.event(EventKind::ApprovalExpired, object([("approval", json!(approval.id))]));
    draft.event(EventKind::RunCanceled, object([("reason", json!("approval_expired"))]));
    let mut changes = draft.finish();
    let record = Approval { status: ApprovalStatus::Expired, closed_at: Some(now), ..approval.value.clone() };
    changes.update(approval.version, record);
    Ok(Some(changes))
}
