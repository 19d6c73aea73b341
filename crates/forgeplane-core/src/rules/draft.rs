//! A run being changed: keeps record, version, events and event numbering together.

use jiff::Timestamp;
use serde_json::Value;

use crate::model::*;

/// A JSON object from pairs; the data of an event.
#[must_use]
pub fn object<const N: usize>(pairs: [(&str, Value); N]) -> Object {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A run being changed by one decision.
pub(crate) struct RunDraft {
    pub(crate) run: Run,
    version: u64,
    pub(crate) changes: Changeset,
    pub(crate) now: Timestamp,
    pub(crate) actor: Actor,
}

impl RunDraft {
    pub(crate) fn of(run: &Versioned<Run>, actor: Actor, now: Timestamp) -> Self {
        Self { run: run.value.clone(), version: run.version, changes: Changeset::new(), now, actor }
    }

    /// Appends the run's next event; a run's history has no gaps because the counter is part of the record.
    pub(crate) fn event(&mut self, kind: EventKind, data: Object) {
        self.run.last_event += 1;
        self.changes.events.push(Event {
            seq: 0,
            project: Some(self.run.project),
            run: Some(self.run.id),
            run_seq: self.run.last_event,
            kind,
            actor: self.actor.clone(),
            at: self.now,
            data,
        });
    }

    pub(crate) fn finish(self) -> Changeset {
        let Self { run, version, mut changes, .. } = self;
        changes.update(version, run);
        changes
    }
}
