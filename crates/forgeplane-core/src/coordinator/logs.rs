//! Logs: appended by workers, read by people.

use super::{Coordinator, Result};
use crate::id::{AttemptId, RunId};
use crate::model::*;
use crate::ports::{LogAppend, Permission};
use crate::refusal::{Code, Refusal};
use crate::rules::log;

/// Part of an attempt's log.
#[derive(Debug, Clone)]
pub struct LogSlice {
    /// The attempt, if the run has one.
    pub attempt: Option<Attempt>,
    /// Chunks in order. The first may begin before the byte that was asked for.
    pub chunks: Vec<LogChunk>,
    /// Where to go on reading.
    pub next: u64,
    /// Nothing will follow: the attempt is closed and everything was read.
    pub complete: bool,
}

impl Coordinator {
    /// Reads the log of a run's newest (or a numbered) attempt from byte `from`, about `max_bytes` of it.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn log(
        &self,
        caller: &Caller,
        run: RunId,
        number: Option<u32>,
        from: u64,
        max_bytes: usize,
    ) -> Result<LogSlice> {
        self.authorize(caller, Permission::Read)?;
        let run = self.own_run(caller, run).await?;
        let attempts = self.attempts_of(run.id).await?;
        let attempt = match number {
            None => attempts.into_iter().next_back(),
            Some(number) => match attempts.into_iter().find(|a| a.number == number) {
                Some(attempt) => Some(attempt),
                None => return Err(Refusal::not_found("attempt", number).into()),
            },
        };
        let Some(attempt) = attempt.map(|a| a.value) else {
            return Ok(LogSlice {
                attempt: None,
                chunks: Vec::new(),
                next: from,
                complete: run.status.is_terminal(),
            });
        };
        // The attempt was read before its log: if it was closed then, the log is final now.
        let chunks = self.store().log(attempt.id, from, max_bytes).await?;
        let next = chunks.last().map_or(from, LogChunk::end);
        let complete = !attempt.is_open() && next >= self.store().log_end(attempt.id).await?;
        Ok(LogSlice { attempt: Some(attempt), chunks, next, complete })
    }

    /// Stores log frames for an attempt; answers with the end of the stored log.
    pub(super) async fn store_log(&self, worker: crate::id::WorkerId, append: LogAppend) -> Result<u64> {
        let mut attempt = self.load::<Attempt>("attempt", append.claim.attempt).await?;
        // One refresh from the store is enough: only another coordinator can have moved the end, and the worker
        // sends again from the end it is told.
        let mut stored = self.log_end(attempt.id, false).await?;
        for fresh in [false, true] {
            if fresh {
                attempt = self.load::<Attempt>("attempt", append.claim.attempt).await?;
                stored = self.log_end(attempt.id, true).await?;
            }
            let chunks = match log::append(&attempt, worker, append.clone(), stored) {
                Err(refusal) if refusal.code == Code::LogGap && !fresh => continue,
                other => other?,
            };
            let Some(end) = chunks.last().map(LogChunk::end) else { return Ok(stored) };
            let mut changes = Changeset::new();
            // The outcome signs the log: a closed attempt's does not grow.
            changes.check(&attempt);
            for chunk in chunks {
                changes.insert(chunk);
            }
            if self.commit(changes).await?.is_ok() {
                self.remember_log_end(&attempt, end);
                return Ok(end);
            }
        }
        self.log_end(attempt.id, true).await
    }

    async fn log_end(&self, attempt: AttemptId, fresh: bool) -> Result<u64> {
        if !fresh && let Some(end) = self.log_ends().get(&attempt).copied() {
            return Ok(end);
        }
        Ok(self.store().log_end(attempt).await?)
    }

    fn remember_log_end(&self, attempt: &Attempt, end: u64) {
        self.log_ends().insert(attempt.id, end);
    }

    /// Forgets the end of a log that will not grow.
    pub(super) fn forget_log_end(&self, attempt: AttemptId) {
        self.log_ends().remove(&attempt);
    }

    fn log_ends(&self) -> std::sync::MutexGuard<'_, std::collections::BTreeMap<AttemptId, u64>> {
        // A panic while holding the lock cannot leave the map wrong: entries are replaced whole.
        self.inner.log_ends.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
