//! Figures of the whole installation, for metrics.

use std::collections::BTreeMap;

use super::{Coordinator, Result};
use crate::model::*;
use crate::ports::{Page, Select, StoreExt as _};
use crate::rules::capacity;

/// The most queued runs that are counted.
const QUEUED: usize = 10_000;

/// How much there is to do, and who does it. Names no project.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Queued runs; counted up to 10,000.
    pub queued: usize,
    /// Open attempts by state: `offered`, `claimed`, `unresolved`.
    pub attempts: BTreeMap<&'static str, usize>,
    /// Workers by status: `idle`, `busy`, `draining`, `offline`.
    pub workers: BTreeMap<&'static str, usize>,
}

impl Coordinator {
    /// Counts. For the process that owns the coordinator.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn figures(&self) -> Result<Figures> {
        // What has gone to zero is told as zero.
        let states = [AttemptState::Offered, AttemptState::Claimed, AttemptState::Unresolved];
        let statuses =
            [WorkerStatus::Idle, WorkerStatus::Busy, WorkerStatus::Draining, WorkerStatus::Offline];
        let mut figures = Figures {
            queued: self.store().list(&Select::QueuedRuns, &Page::first(QUEUED)).await?.len(),
            attempts: states.iter().map(|state| (state.as_str(), 0)).collect(),
            workers: statuses.iter().map(|status| (status.as_str(), 0)).collect(),
        };
        let open = self.store().list_as::<Attempt>(&Select::OpenAttempts, &Page::all()).await?;
        for attempt in &open {
            *figures.attempts.entry(attempt.state.as_str()).or_default() += 1;
        }
        let now = self.now();
        for candidate in self.candidates().await? {
            let on_worker = open.iter().filter(|a| a.worker == candidate.worker.id).count();
            let contact = candidate.contact.as_ref();
            let status = capacity::status(&candidate.worker, contact, on_worker, self.settings(), now);
            *figures.workers.entry(status.as_str()).or_default() += 1;
        }
        Ok(figures)
    }
}
