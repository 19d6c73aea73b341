//! Replacing a worker's key (`protocol.md` 1.8): a retired key still counts for what is pinned to it, a compromised one
//! for nothing.

use jiff::Timestamp;
use serde_json::json;

use super::object;
use crate::digest::Digest;
use crate::model::*;
use crate::refusal::{Code, Refusal};

/// A rotation whose signatures, of the old key and of the new one, were verified.
#[derive(Debug, Clone)]
pub struct Proven {
    /// The key to retire.
    pub old_key: Digest,
    /// The key that takes its place.
    pub new_key: Digest,
    /// Its public half, hex.
    pub public_key: String,
}

/// What becomes of a rotation.
#[derive(Debug)]
pub enum Decision {
    /// The key is replaced by this commit.
    Rotate(Changeset),
    /// The same rotation was done before; nothing changes.
    Again,
}

/// Replaces a worker's key. A key is new only once, so a rotation that is sent again later cannot bring an old key back.
///
/// # Errors
/// [`Code::KeyUnusable`] when the old key is not the worker's key in force or the new one was used before.
pub fn rotate(
    worker: &Versioned<Worker>,
    old: &Versioned<WorkerKey>,
    new: Option<&WorkerKey>,
    proven: &Proven,
    now: Timestamp,
) -> Result<Decision, Refusal> {
    if old.worker == worker.id
        && worker.key == proven.new_key
        && new.is_some_and(|key| key.worker == worker.id)
    {
        return Ok(Decision::Again);
    }
    if old.worker != worker.id || worker.key != proven.old_key || old.status != KeyStatus::Active {
        return Err(Refusal::new(Code::KeyUnusable, "only the key in force can be replaced")
            .way_out("enroll anew with a new enrollment token"));
    }
    if new.is_some() {
        return Err(
            Refusal::new(Code::KeyUnusable, "the new key was used before").way_out("make another key")
        );
    }
    let mut changes = Changeset::new();
    changes.update(worker.version, Worker { key: proven.new_key, rotate_key: false, ..worker.value.clone() });
    changes.update(
        old.version,
        WorkerKey { status: KeyStatus::Retired, retired_at: Some(now), ..old.value.clone() },
    );
    changes.insert(WorkerKey {
        id: proven.new_key,
        worker: worker.id,
        public_key: proven.public_key.clone(),
        status: KeyStatus::Active,
        added_at: now,
        retired_at: None,
    });
    changes.events.push(Event::beside_runs(
        None,
        EventKind::WorkerKeyRotated,
        Actor::Worker { id: worker.id },
        now,
        object([
            ("worker", json!(worker.id)),
            ("name", json!(worker.name)),
            ("old_key", json!(proven.old_key)),
            ("new_key", json!(proven.new_key)),
        ]),
    ));
    Ok(Decision::Rotate(changes))
}

/// Ends all trust in a worker: its session and every key it ever had. What its keys still sign is kept as evidence and
/// decides nothing.
#[must_use]
pub fn distrust(
    worker: &Versioned<Worker>,
    keys: &[Versioned<WorkerKey>],
    actor: &Actor,
    now: Timestamp,
) -> Changeset {
    let mut changes = Changeset::new();
    if !worker.disconnected {
        changes.update(worker.version, Worker { disconnected: true, ..worker.value.clone() });
    }
    for key in keys.iter().filter(|key| key.status != KeyStatus::Compromised) {
        let retired_at = key.retired_at.or(Some(now));
        changes.update(
            key.version,
            WorkerKey { status: KeyStatus::Compromised, retired_at, ..key.value.clone() },
        );
    }
    if !changes.puts.is_empty() {
        changes.events.push(Event::beside_runs(
            None,
            EventKind::WorkerKeysCompromised,
            actor.clone(),
            now,
            object([("worker", json!(worker.id)), ("name", json!(worker.name))]),
        ));
    }
    changes
}
