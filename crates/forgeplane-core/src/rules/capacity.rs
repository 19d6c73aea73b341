//! What a worker can take (`spec.md` §6).

use jiff::Timestamp;

use super::Settings;
use crate::model::{Worker, WorkerContact, WorkerStatus};

/// How many jobs the worker may run at once: the lower of what it reports and the system setting.
#[must_use]
pub fn effective(worker: &Worker, settings: &Settings) -> u32 {
    worker.max_jobs.min(settings.worker_max_concurrent_jobs)
}

/// Whether the worker was heard of recently enough.
#[must_use]
pub fn is_connected(contact: Option<&WorkerContact>, settings: &Settings, now: Timestamp) -> bool {
    contact.is_some_and(|c| elapsed(c.last_seen, now) <= settings.worker_offline_after)
}

/// Where the worker is, given how many open attempts it has.
#[must_use]
pub fn status(
    worker: &Worker,
    contact: Option<&WorkerContact>,
    open_attempts: usize,
    settings: &Settings,
    now: Timestamp,
) -> WorkerStatus {
    if worker.disconnected || worker.quarantined.is_some() || !is_connected(contact, settings, now) {
        WorkerStatus::Offline
    } else if worker.draining || contact.is_some_and(WorkerContact::takes_nothing_new) {
        WorkerStatus::Draining
    } else if open_attempts >= effective(worker, settings) as usize {
        WorkerStatus::Busy
    } else {
        WorkerStatus::Idle
    }
}

/// Time from `earlier` to `now`; zero if the clock went back.
pub(crate) fn elapsed(earlier: Timestamp, now: Timestamp) -> std::time::Duration {
    now.duration_since(earlier).try_into().unwrap_or_default()
}
