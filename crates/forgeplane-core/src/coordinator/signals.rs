//! Wake-ups. A missed or spurious wake-up costs time, never correctness.

use std::sync::Arc;

use tokio::sync::{Notify, broadcast};

use crate::model::{Changeset, Record};

/// Wakes loops and followers when something they care about was committed.
#[derive(Debug, Clone)]
pub struct Signals {
    pub(super) schedule: Arc<Notify>,
    pub(super) outbox: Arc<Notify>,
    events: broadcast::Sender<()>,
    logs: broadcast::Sender<()>,
    jobs: broadcast::Sender<()>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            schedule: Arc::default(),
            outbox: Arc::default(),
            events: broadcast::Sender::new(1),
            logs: broadcast::Sender::new(1),
            jobs: broadcast::Sender::new(1),
        }
    }
}

/// Waits for wake-ups of one kind. Listeners are woken in the order in which they began to wait.
#[derive(Debug)]
pub struct Listener(broadcast::Receiver<()>);

impl Listener {
    /// Waits until there was a wake-up since the last one that was seen. Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        match self.0.recv().await {
            Ok(()) | Err(broadcast::error::RecvError::Lagged(_)) => self.mark_unchanged(),
            // Whoever would wake is gone.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }

    /// Whatever came until now is seen.
    pub fn mark_unchanged(&mut self) {
        self.0 = self.0.resubscribe();
    }
}

fn wake(listeners: &broadcast::Sender<()>) {
    // An error says that nobody listens.
    let _ = listeners.send(());
}

impl Signals {
    /// Changes whenever events were committed.
    #[must_use]
    pub fn events(&self) -> Listener {
        Listener(self.events.subscribe())
    }

    /// Changes whenever log chunks were committed.
    #[must_use]
    pub fn logs(&self) -> Listener {
        Listener(self.logs.subscribe())
    }

    /// Changes whenever something was written to the outbox.
    pub(super) fn jobs(&self) -> Listener {
        Listener(self.jobs.subscribe())
    }

    pub(super) fn wake_jobs(&self) {
        wake(&self.jobs);
    }

    /// Whether somebody follows a log.
    pub(super) fn has_log_followers(&self) -> bool {
        self.logs.receiver_count() > 0
    }

    pub(super) fn wake_log_followers(&self) {
        wake(&self.logs);
    }

    /// Another coordinator committed events. It wakes its own loops; followers, and workers that wait for orders or
    /// jobs, may be connected here.
    pub(super) fn observe_foreign(&self) {
        wake(&self.events);
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
            wake(&self.events);
        }
        if changes.logs {
            wake(&self.logs);
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
