//! A store that has gone back in time: restored from a backup, or a replica that had not received everything
//! (faults B13).
//!
//! Workers remember what such a store has forgotten: attempts that it leased and they claimed. A fence that a worker names
//! and the store does not know proves the loss. Nothing is scheduled from then on, because an execution that the store
//! knows nothing of may be changing what the next one would change, until an administrator has looked and accepts it.

use jiff::Timestamp;
use serde_json::json;

use super::object;
use crate::id::WorkerId;
use crate::model::*;
use crate::refusal::{Code, Refusal};

/// How far fences may have to be raised. A worker that names a fence further ahead is not believed.
pub const LARGEST_GAP: u64 = 1_000_000;

/// A worker, not out of service, that holds an attempt the store does not know.
pub fn found<'a>(workers: impl IntoIterator<Item = &'a Worker>) -> Option<(WorkerId, Fence)> {
    workers.into_iter().filter(|w| !w.disconnected).find_map(|w| Some((w.id, w.lost?)))
}

/// The newest of the fences a worker names that the store does not know as that worker's. `known` is the newest that was
/// found earlier: what is not newer was looked at then.
#[must_use]
pub fn unknown(worker: WorkerId, known: Fence, named: &[(Fence, Option<Attempt>)]) -> Option<Fence> {
    named
        .iter()
        .filter(|(fence, attempt)| *fence > known && attempt.as_ref().is_none_or(|a| a.worker != worker))
        .map(|(fence, _)| *fence)
        .max()
}

/// Marks the worker whose attempt is missing; `None` if that is known already.
#[must_use]
pub fn mark(worker: &Versioned<Worker>, fence: Fence, now: Timestamp) -> Option<Changeset> {
    if worker.lost >= Some(fence) {
        return None;
    }
    let mut changes = Changeset::new();
    changes.update(worker.version, Worker { lost: Some(fence), ..worker.value.clone() });
    changes.events.push(Event::beside_runs(
        None,
        EventKind::StoreCommitsLost,
        Actor::Worker { id: worker.id },
        now,
        object([("worker", json!(worker.id)), ("name", json!(worker.name)), ("fence", json!(fence))]),
    ));
    Some(changes)
}

/// An administrator has looked at what the worker did and accepts that the store knows nothing of it. Fences must have been
/// raised above the lost one before.
///
/// # Errors
/// [`Code::InvalidState`] when nothing is known to be lost; [`Code::InvalidField`] without a reason.
pub fn accept(
    worker: &Versioned<Worker>,
    reason: &str,
    by: &Actor,
    now: Timestamp,
) -> Result<Changeset, Refusal> {
    let fence = lost(worker)?;
    if reason.trim().is_empty() {
        return Err(Refusal::new(Code::InvalidField, "accepting a loss needs a reason").field("reason"));
    }
    let mut changes = Changeset::new();
    changes.update(worker.version, Worker { lost: None, ..worker.value.clone() });
    changes.events.push(Event::beside_runs(
        None,
        EventKind::StoreLossAccepted,
        by.clone(),
        now,
        object([
            ("worker", json!(worker.id)),
            ("name", json!(worker.name)),
            ("fence", json!(fence)),
            ("reason", json!(reason)),
        ]),
    ));
    Ok(changes)
}

/// The fence that the store does not know.
///
/// # Errors
/// [`Code::InvalidState`] when there is none.
pub fn lost(worker: &Worker) -> Result<Fence, Refusal> {
    worker.lost.ok_or_else(|| {
        Refusal::new(
            Code::InvalidState,
            format!("worker `{}` names no attempt that the store does not know", worker.name),
        )
    })
}

/// Whether fences can be raised above a lost one, given the newest that was allocated.
///
/// # Errors
/// [`Code::InvalidState`] when the gap is too large to be a loss.
pub fn is_plausible(lost: Fence, allocated: Fence) -> Result<(), Refusal> {
    if lost.0.saturating_sub(allocated.0) <= LARGEST_GAP {
        return Ok(());
    }
    Err(Refusal::new(
        Code::InvalidState,
        format!("the worker names fence {lost}, and the newest one is {allocated}: no loss is that large"),
    )
    .way_out("disconnect the worker, and look at who controls it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b13_a_fence_that_is_far_ahead_is_not_believed() {
        assert!(is_plausible(Fence(LARGEST_GAP + 5), Fence(5)).is_ok());
        assert!(is_plausible(Fence(3), Fence(5)).is_ok());
        let refusal = is_plausible(Fence(u64::MAX), Fence(5)).unwrap_err();
        assert_eq!(refusal.code, Code::InvalidState);
        assert!(refusal.to_string().contains("no loss is that large"));
    }

    #[test]
    fn b13_only_what_is_newer_than_what_was_found_is_looked_at() {
        let worker = WorkerId::new(Timestamp::UNIX_EPOCH, [1; 10]);
        let named = [(Fence(4), None), (Fence(7), None), (Fence(9), None)];
        assert_eq!(unknown(worker, Fence(0), &named), Some(Fence(9)));
        assert_eq!(unknown(worker, Fence(8), &named), Some(Fence(9)));
        assert_eq!(unknown(worker, Fence(9), &named), None);
    }
}
