//! What the passing of time does (`protocol.md` 1.5, 1.6). A lease expiry never closes a claimed attempt.

use jiff::Timestamp;
use serde_json::json;

use super::capacity::{self, elapsed};
use super::claim;
use super::lifecycle::{Command, after};
use super::schedule::job;
use super::{RunDraft, Settings, object};
use crate::id::OutboxId;
use crate::model::*;
use crate::refusal::Refusal;

/// An open attempt and what it depends on.
#[derive(Debug)]
pub struct Context<'a> {
    /// The attempt.
    pub attempt: &'a Versioned<Attempt>,
    /// Its run.
    pub run: &'a Versioned<Run>,
    /// The run's snapshot.
    pub snapshot: &'a Snapshot,
    /// Its worker, if the record still exists.
    pub worker: Option<&'a Worker>,
    /// When the worker was last heard of.
    pub contact: Option<&'a WorkerContact>,
    /// System settings.
    pub settings: &'a Settings,
}

/// What time asks of an open attempt; `None` if nothing is due.
///
/// # Errors
/// When the run does not fit the attempt, which only stale reads can cause.
pub fn attempt(context: &Context<'_>, now: Timestamp) -> Result<Option<Changeset>, Refusal> {
    match context.attempt.state {
        AttemptState::Offered => offered(context, now),
        AttemptState::Claimed => claimed(context, now),
        AttemptState::Unresolved => unresolved(context, now),
        AttemptState::Closed => Ok(None),
    }
}

fn offered(context: &Context<'_>, now: Timestamp) -> Result<Option<Changeset>, Refusal> {
    let Context { attempt, settings, .. } = context;
    let reason = if attempt.offer_expires_at <= now {
        Some("offer_expired")
    } else {
        match context.worker {
            Some(w) if w.draining || context.contact.is_some_and(|c| c.takes_nothing_new()) => {
                Some("worker_draining")
            }
            Some(w)
                if !w.disconnected
                    && w.quarantined.is_none()
                    && capacity::is_connected(context.contact, settings, now) =>
            {
                None
            }
            _ => Some("worker_offline"),
        }
    };
    reason
        .map(|reason| claim::revoke(attempt, context.run, reason, Actor::system("sweeper"), now))
        .transpose()
}

/// Publishes an offer again that nobody claimed for a while, under a new publication number; `None` if it is
/// not due. What should be in the queue follows from the attempts, so a queue that lost everything heals.
#[must_use]
pub fn republish(
    attempt: &Versioned<Attempt>,
    settings: &Settings,
    outbox: OutboxId,
    now: Timestamp,
) -> Option<Changeset> {
    let due = attempt.state == AttemptState::Offered
        && attempt.offer_expires_at > now
        && elapsed(attempt.published_at, now) >= settings.republish_after;
    due.then(|| {
        let again =
            Attempt { publications: attempt.publications + 1, published_at: now, ..attempt.value.clone() };
        let mut changes = Changeset::new();
        changes.outbox.push(OutboxMessage { id: outbox, job: job(&again) });
        changes.update(attempt.version, again);
        changes
    })
}

/// When the coordinator last heard of the attempt's claim.
fn last_news(attempt: &Attempt, contact: Option<&WorkerContact>) -> Option<Timestamp> {
    let claim = attempt.claim.as_ref()?;
    let held =
        contact.and_then(|c| c.held.iter().find(|h| h.fence == attempt.fence && h.nonce == claim.nonce));
    Some(held.map_or(claim.at, |h| h.at.max(claim.at)))
}

/// Whether the worker is missing: silent for too long, or back under a new incarnation without the claim.
fn is_missing(context: &Context<'_>, now: Timestamp) -> bool {
    let Context { attempt, contact, settings, .. } = context;
    let (Some(claim), Some(news)) = (&attempt.claim, last_news(attempt, *contact)) else { return false };
    let forgotten = contact.is_some_and(|c| {
        c.incarnation > claim.incarnation
            && !c.held.iter().any(|h| h.fence == attempt.fence && h.nonce == claim.nonce)
    });
    forgotten || elapsed(news, now) > settings.unresolved_after
}

fn claimed(context: &Context<'_>, now: Timestamp) -> Result<Option<Changeset>, Refusal> {
    let Context { attempt, run, snapshot, settings, .. } = context;
    let actor = Actor::system("sweeper");
    if is_missing(context, now) {
        let mut draft = RunDraft::of(run, actor, now);
        draft.event(
            EventKind::AttemptUnresolved,
            object([("attempt", json!(attempt.id)), ("worker", json!(attempt.worker))]),
        );
        let mut changes = draft.finish();
        let missing =
            Attempt { state: AttemptState::Unresolved, unresolved_since: Some(now), ..attempt.value.clone() };
        changes.update(attempt.version, missing);
        return Ok(Some(changes));
    }
    let late = attempt
        .deadline
        .is_some_and(|d| after(after(d, snapshot.cancel_grace()), settings.deadline_margin) <= now);
    if late && attempt.stop.is_none() {
        let mut draft = RunDraft::of(run, actor.clone(), now);
        draft.step(Command::Cancel)?;
        let reason = Some("the execution deadline passed".to_owned());
        draft.run.stop = Some(StopRequest { by: actor, at: now, cause: StopCause::Deadline, reason });
        draft.event(EventKind::RunCanceling, object([("reason", json!("deadline"))]));
        let mut changes = draft.finish();
        changes.update(attempt.version, Attempt { stop: Some(StopCause::Deadline), ..attempt.value.clone() });
        return Ok(Some(changes));
    }
    Ok(None)
}

fn unresolved(context: &Context<'_>, now: Timestamp) -> Result<Option<Changeset>, Refusal> {
    let Context { attempt, run, .. } = context;
    let heard = attempt
        .unresolved_since
        .zip(last_news(attempt, context.contact))
        .is_some_and(|(since, news)| news > since);
    if heard && !is_missing(context, now) {
        let mut draft = RunDraft::of(run, Actor::Worker { id: attempt.worker }, now);
        draft.event(EventKind::AttemptContactRestored, object([("attempt", json!(attempt.id))]));
        let mut changes = draft.finish();
        let back = Attempt {
            state: AttemptState::Claimed,
            unresolved_since: None,
            proposal: None,
            ..attempt.value.clone()
        };
        changes.update(attempt.version, back);
        return Ok(Some(changes));
    }
    // Decision on open question B: the deadline is recorded, never turned into a terminal status.
    if !attempt.deadline_exceeded && attempt.deadline.is_some_and(|d| d <= now) {
        let mut draft = RunDraft::of(run, Actor::system("sweeper"), now);
        draft.event(EventKind::AttemptDeadlineExceeded, object([("attempt", json!(attempt.id))]));
        let mut changes = draft.finish();
        changes.update(attempt.version, Attempt { deadline_exceeded: true, ..attempt.value.clone() });
        return Ok(Some(changes));
    }
    Ok(None)
}

/// Ends a queued run whose queue timeout passed; `None` if it is not due. A run with an open offer waits for
/// the offer to end first.
///
/// # Errors
/// When the run is no longer queued.
pub fn queue_timeout(
    run: &Versioned<Run>,
    offered: bool,
    now: Timestamp,
) -> Result<Option<Changeset>, Refusal> {
    if offered || run.queue_expires_at.is_none_or(|at| at > now) {
        return Ok(None);
    }
    let mut draft = RunDraft::of(run, Actor::system("sweeper"), now);
    draft.step(Command::ExpireQueue)?;
    draft.error("queue_expired", "no worker claimed the run in time");
    draft.event(EventKind::RunCanceled, object([("reason", json!("queue_expired"))]));
    Ok(Some(draft.finish()))
}
