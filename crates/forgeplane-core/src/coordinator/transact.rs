//! Optimistic transactions: load, decide, commit; on a conflict start over with fresh state.

use super::{Coordinator, CoordinatorError, Result};
use crate::model::{Changeset, Entity, Versioned};
use crate::ports::{Conflict, StoreError, StoreExt as _};
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
    pub(super) async fn transact<T, F, Fut>(&self, pass: F) -> Result<T>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<Step<T>>>,
    {
        let mut last = None;
        for _ in 0..TRIES {
            let (changes, answer) = match pass().await? {
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
