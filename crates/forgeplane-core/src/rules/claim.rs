//! Whether the execution fence may be crossed (`protocol.md` S6).

use jiff::Timestamp;
use serde_json::json;

use super::lifecycle::{Command, after};
use super::{RunDraft, object};
use crate::id::WorkerId;
use crate::model::*;
use crate::ports::ClaimRequest;
use crate::refusal::{Code, Refusal};

/// What the rule looks at.
#[derive(Debug)]
pub struct Context<'a> {
    /// The worker of the authenticated session.
    pub worker: &'a Versioned<Worker>,
    /// The attempt.
    pub attempt: &'a Versioned<Attempt>,
    /// Its run.
    pub run: &'a Versioned<Run>,
    /// The run's snapshot.
    pub snapshot: &'a Snapshot,
    /// The managed state.
    pub state: Option<&'a Versioned<StateObject>>,
    /// The approval the run is gated by.
    pub approval: Option<&'a Approval>,
}

/// What becomes of a claim.
#[derive(Debug)]
pub enum Decision {
    /// The fence is crossed by this commit.
    Grant(Changeset),
    /// The same claim was granted before; nothing changes.
    Again,
    /// The claim is refused once this is committed: the run can never start and fails, or the offer has expired and is
    /// withdrawn. A worker forgets its intent on a refusal, so no earlier claim of it may be granted any more, neither
    /// one that is still under way nor one whose commit is in doubt.
    Refuse(Changeset, Refusal),
}

/// Decides a claim. The refusals that change nothing are of attempts that can never be claimed again, or of the worker
/// itself.
///
/// # Errors
/// [`Code::NotFound`] for another worker's attempt, [`Code::FenceMismatch`], [`Code::AlreadyClaimed`] for
/// another nonce, [`Code::AttemptClosed`], [`Code::WorkerDisabled`].
pub fn claim(context: &Context<'_>, request: &ClaimRequest, now: Timestamp) -> Result<Decision, Refusal> {
    let Context { worker, attempt, run, snapshot, .. } = context;
    own(attempt, worker.id, request.attempt.fence)?;
    match (attempt.state, &attempt.claim) {
        (AttemptState::Closed, _) => {
            return Err(Refusal::new(Code::AttemptClosed, format!("attempt {} is closed", attempt.id)));
        }
        (AttemptState::Claimed | AttemptState::Unresolved, Some(held)) if held.nonce == request.nonce => {
            return Ok(Decision::Again);
        }
        (AttemptState::Claimed | AttemptState::Unresolved, _) => {
            return Err(Refusal::new(
                Code::AlreadyClaimed,
                format!("attempt {} was claimed with another nonce", attempt.id),
            ));
        }
        (AttemptState::Offered, _) => {}
    }
    if worker.disconnected || worker.quarantined.is_some() {
        return Err(Refusal::new(Code::WorkerDisabled, "this worker was taken out of service"));
    }
    if run.current_attempt != Some(attempt.id) {
        return Err(Refusal::new(
            Code::AttemptClosed,
            format!("attempt {} is not the run's current attempt", attempt.id),
        ));
    }
    if attempt.offer_expires_at <= now {
        let refusal =
            Refusal::new(Code::OfferExpired, format!("the offer of attempt {} has expired", attempt.id));
        let changes = revoke(attempt, run, "offer_expired", Actor::system("claim"), now)?;
        return Ok(Decision::Refuse(changes, refusal));
    }
    if let Some(refusal) = cannot_start(context) {
        return Ok(Decision::Refuse(fail_to_start(attempt, run, &refusal, now)?, refusal));
    }

    let mut draft = RunDraft::of(run, Actor::Worker { id: worker.id }, now);
    draft.step(Command::Claim)?;
    draft.event(
        EventKind::RunRunning,
        object([
            ("attempt", json!(attempt.id)),
            ("number", json!(attempt.number)),
            ("fence", json!(attempt.fence)),
            ("worker", json!(worker.id)),
        ]),
    );
    let mut changes = draft.finish();
    let claimed = Attempt {
        state: AttemptState::Claimed,
        // The key that is in force now: the worker may have replaced the one of the offer.
        key: worker.key,
        claim: Some(Claim { nonce: request.nonce, at: now, incarnation: worker.incarnation }),
        deadline: Some(after(now, snapshot.execution_timeout())),
        ..attempt.value.clone()
    };
    changes.update(attempt.version, claimed);
    changes.check(worker);
    if let Some(state) = context.state.filter(|_| run.operation.writes_state()) {
        // From here on no older fence may write.
        changes.update(state.version, StateObject { high_water: attempt.fence, ..state.value.clone() });
    }
    Ok(Decision::Grant(changes))
}

/// Object-level authorization of a worker's call: the attempt is leased to this worker under this fence.
///
/// # Errors
/// [`Code::NotFound`] for another worker's attempt, [`Code::FenceMismatch`].
pub fn own(attempt: &Attempt, worker: WorkerId, fence: Fence) -> Result<(), Refusal> {
    if attempt.worker != worker {
        return Err(Refusal::new(
            Code::NotFound,
            format!("there is no attempt `{}` for this worker", attempt.id),
        ));
    }
    if attempt.fence != fence {
        return Err(Refusal::new(Code::FenceMismatch, format!("attempt {} has another fence", attempt.id)));
    }
    Ok(())
}

/// As [`own`], and the attempt is claimed with this nonce and not closed.
///
/// # Errors
/// As [`own`]; [`Code::FenceMismatch`] for another nonce, [`Code::AttemptClosed`].
pub fn own_claim(attempt: &Attempt, worker: WorkerId, claim: crate::ports::ClaimRef) -> Result<(), Refusal> {
    own(attempt, worker, claim.fence)?;
    match &attempt.claim {
        Some(held) if held.nonce == claim.nonce => {}
        _ => {
            return Err(Refusal::new(
                Code::FenceMismatch,
                format!("attempt {} is not claimed with this nonce", attempt.id),
            ));
        }
    }
    if attempt.state == AttemptState::Closed {
        return Err(Refusal::new(Code::AttemptClosed, format!("attempt {} is closed", attempt.id)));
    }
    Ok(())
}

/// Reasons known before the tool starts that make the run pointless or wrong.
fn cannot_start(context: &Context<'_>) -> Option<Refusal> {
    let Context { attempt, run, snapshot, state, approval, .. } = context;
    if let Some(state) = state.filter(|_| run.operation.writes_state())
        && (state.head != attempt.base_generation || state.archived)
    {
        return Some(Refusal::new(
            Code::StaleState,
            format!(
                "the state is at generation {}, but the run is based on {}",
                state.head, attempt.base_generation
            ),
        ));
    }
    if run.approval.is_some() {
        let holds = approval.is_some_and(|a| {
            a.status == ApprovalStatus::Approved
                && a.run == run.id
                && a.snapshot == run.snapshot
                && a.plan_digest == snapshot.plan.as_ref().map(|p| p.digest)
        });
        if !holds {
            return Some(Refusal::new(
                Code::ApprovalInvalid,
                "the run's approval does not cover what it would execute",
            ));
        }
    }
    None
}

/// Ends a run that turned out, before the fence was crossed, not to be able to start.
///
/// # Errors
/// When the run is past the fence or over.
pub fn fail_to_start(
    attempt: &Versioned<Attempt>,
    run: &Versioned<Run>,
    refusal: &Refusal,
    now: Timestamp,
) -> Result<Changeset, Refusal> {
    let mut draft = RunDraft::of(run, Actor::system("claim"), now);
    draft.step(Command::FailToStart)?;
    draft.error(refusal.code.as_str(), refusal.detail.clone());
    draft.event(
        EventKind::AttemptRevoked,
        object([("attempt", json!(attempt.id)), ("reason", json!(refusal.code))]),
    );
    draft.event(EventKind::RunFailed, object([("code", json!(refusal.code))]));
    let mut changes = draft.finish();
    changes.update(attempt.version, revoked(&attempt.value, refusal.code.as_str(), now));
    Ok(changes)
}

/// Withdraws an offer: the attempt is closed, and the run waits for the next one.
///
/// # Errors
/// When the run is past the fence or over.
pub(crate) fn revoke(
    attempt: &Versioned<Attempt>,
    run: &Versioned<Run>,
    reason: &str,
    by: Actor,
    now: Timestamp,
) -> Result<Changeset, Refusal> {
    let mut draft = RunDraft::of(run, by, now);
    draft.step(Command::Release)?;
    draft.run.current_attempt = None;
    draft.event(
        EventKind::AttemptRevoked,
        object([("attempt", json!(attempt.id)), ("reason", json!(reason))]),
    );
    let mut changes = draft.finish();
    changes.update(attempt.version, revoked(&attempt.value, reason, now));
    Ok(changes)
}

/// The attempt with its offer withdrawn.
pub(crate) fn revoked(attempt: &Attempt, reason: &str, now: Timestamp) -> Attempt {
    Attempt {
        state: AttemptState::Closed,
        closed_at: Some(now),
        closing: Some(Closing::Revoked { reason: reason.to_owned() }),
        ..attempt.clone()
    }
}
