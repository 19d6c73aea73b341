//! Wake-ups. A missed or spurious wake-up costs time, never correctness.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use crate::model::{Changeset, Record};

/// Wakes loops and followers when something they care about was committed.
#[derive(Debug, Clone)]
pub struct Signals {
    pub(super) schedule: Arc<Notify>,
    pub(super) outbox: Arc<Notify>,
    events: watch::Sender<u64>,
    logs: watch::Sender<u64>,
    jobs: watch::Sender<u64>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            schedule: Arc::default(),
            outbox: Arc::default(),
            events: watch::Sender::new(0),
            logs: watch::Sender::new(0),
            jobs: watch::Sender::new(0),
        }
    }
}

impl Signals {
    /// Changes whenever events were committed.
    #[must_use]
    pub fn events(&self) -> watch::Receiver<u64> {
        self.events.subscribe()
    }

    /// Changes whenever log chunks were committed.
    #[must_use]
    pub fn logs(&self) -> watch::Receiver<u64> {
        self.logs.subscribe()
    }

    /// Changes whenever something was written to the outbox.
    pub(super) fn jobs(&self) -> watch::Receiver<u64> {
        self.jobs.subscribe()
    }

    pub(super) fn wake_jobs(&self) {
        self.jobs.send_modify(|n| *n += 1);
    }

    /// Whether somebody follows a log.
    pub(super) fn has_log_followers(&self) -> bool {
        self.logs.receiver_count() > 0
    }

    pub(super) fn wake_log_followers(&self) {
        self.logs.send_modify(|n| *n += 1);
    }

    /// Another coordinator committed events. It wakes its own loops; followers, and workers that wait for orders or
    /// jobs, may be connected here.
    pub(super) fn observe_foreign(&self) {
        self.events.send_modify(|n| *n += 1);
        self.wake_jobs();
    }

    /// What a commit announces.
    pub(super) fn observe(&self, changes: &Observed) {
        if changes.outbox {
            self.outbox.notify_one();
            self.wake_jobs();
        }
        if changes.schedule {
            self.schedule.notify_one();
        }
        if changes.events {
            self.events.send_modify(|n| *n += 1);
        }
        if changes.logs {
            self.logs.send_modify(|n| *n += 1);
        }
    }
}

/// What a changeset would announce once committed.
pub(super) struct Observed {
    outbox: bool,
    schedule: bool,
    events: bool,
    logs: bool,
}

impl Observed {
    pub(super) fn of(changes: &Changeset) -> Self {
        let any = |wanted: fn(&Record) -> bool| changes.puts.iter().any(|p| wanted(&p.record));
        Self {
            outbox: !changes.outbox.is_empty(),
            schedule: any(|r| matches!(r, Record::Run(_) | Record::Worker(_) | Record::Attempt(_))),
            events: !changes.events.is_empty(),
            logs: any(|r| matches!(r, Record::LogChunk(_))),
        }
    }
}
