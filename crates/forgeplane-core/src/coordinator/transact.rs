//! Optimistic transactions: load, decide, commit; on a conflict start over with fresh state.

use super::{Coordinator, CoordinatorError, Result};
use crate::id::RunId;
use crate::model::{Attempt, Changeset, Entity, Versioned};
use crate::ports::{Conflict, Page, Select, StoreError, StoreExt as _};
use crate::refusal::Refusal;

/// How often a transaction starts over before it gives up.
const TRIES: usize = 16;

/// What one pass of a transaction decided.
pub(super) enum Step<T> {
    /// Nothing to commit.
    Done(T),
    /// Commit this, then answer.
    Commit(Changeset, T),
}

impl Coordinator {
    /// Runs `pass` (load and decide) until its changeset commits.
    ///
    /// A commit whose result is unknown is treated like a conflict: the next pass reads what really is there,
    /// and every rule answers a repeated command with "already so".
    ///
    /// A refusal is believed when two passes in a row give it: the records of one pass are read one by one, and a
    /// commit in between can make them contradict each other. A changeset from such reads would not commit; a
    /// refusal has nothing to conflict with.
    pub(super) async fn transact<T, F, Fut>(&self, pass: F) -> Result<T>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<Step<T>>>,
    {
        let mut last = None;
        let mut refused = None;
        for _ in 0..TRIES {
            let step = match pass().await {
                Err(CoordinatorError::Refused(refusal)) if refused.as_ref() != Some(&refusal) => {
                    last = Some(refusal.clone().into());
                    refused = Some(refusal);
                    continue;
                }
                other => other?,
            };
            refused = None;
            let (changes, answer) = match step {
                Step::Done(answer) => return Ok(answer),
                Step::Commit(changes, answer) if changes.is_empty() => return Ok(answer),
                Step::Commit(changes, answer) => (changes, answer),
            };
            match self.inner.committer.commit(changes).await {
                Ok(Ok(_)) => return Ok(answer),
                Ok(Err(conflict)) => {
                    tracing::debug!(%conflict, "starting over with fresh state");
                    last = Some(CoordinatorError::Contention(conflict));
                }
                Err(CoordinatorError::Store(error @ StoreError::Unknown(_))) => {
                    tracing::warn!(%error, "reading again after a commit whose result is unknown");
                    last = Some(error.into());
                }
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or(CoordinatorError::Stopped))
    }

    /// Commits one changeset; the caller deals with the conflict.
    pub(super) async fn commit(&self, changes: Changeset) -> Result<std::result::Result<(), Conflict>> {
        Ok(self.inner.committer.commit(changes).await?.map(|_| ()))
    }

    /// A run's attempts in their order. Ids made in one millisecond (or under clocks that differ) do not say
    /// which attempt came first; numbers do.
    pub(super) async fn attempts_of(&self, run: RunId) -> Result<Vec<Versioned<Attempt>>> {
        let mut attempts = self.store().list_as::<Attempt>(&Select::Attempts(run), &Page::all()).await?;
        attempts.sort_by_key(|a| a.number);
        Ok(attempts)
    }

    /// Loads an entity that must exist; missing ones read like those of other projects.
    pub(super) async fn load<T: Entity>(
        &self,
        what: &str,
        id: impl ToString + Send + Sync,
    ) -> Result<Versioned<T>> {
        let text = id.to_string();
        match self.store().get_as::<T>(&text).await? {
            Some(found) => Ok(found),
            None => Err(Refusal::not_found(what, text).into()),
        }
    }
}
