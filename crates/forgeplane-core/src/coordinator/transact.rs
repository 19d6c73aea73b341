//! Optimistic transactions: load, decide, commit; on a conflict start over with fresh state.

use super::{Coordinator, CoordinatorError, Result};
use crate::id::RunId;
use crate::model::{Attempt, Changeset, Entity, Expect, Key, Put, Versioned};
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
    /// A commit in doubt may still happen after its connection was lost. So a refusal that follows one is given only after
    /// that commit can no longer happen ([`Coordinator::forestall`]): whoever is refused relies on nothing having been done.
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
        let mut doubt = None;
        for _ in 0..TRIES {
            let step = match pass().await {
                Err(CoordinatorError::Refused(refusal)) if refused.as_ref() != Some(&refusal) => {
                    last = Some(refusal.clone().into());
                    refused = Some(refusal);
                    continue;
                }
                Err(CoordinatorError::Refused(_)) if doubt.is_some() => {
                    if let Some((key, version)) = doubt.take()
                        && !self.forestall(&key, version).await?
                    {
                        doubt = Some((key, version));
                    }
                    refused = None;
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
            let rests_on = rests_on(&changes);
            match self.inner.committer.commit(changes).await {
                Ok(Ok(_)) => return Ok(answer),
                Ok(Err(conflict)) => {
                    tracing::debug!(%conflict, "starting over with fresh state");
                    last = Some(CoordinatorError::Contention(conflict));
                }
                Err(CoordinatorError::Store(error @ StoreError::Unknown(_))) => {
                    tracing::warn!(%error, "reading again after a commit whose result is unknown");
                    last = Some(error.into());
                    doubt = rests_on.or(doubt);
                }
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or(CoordinatorError::Stopped))
    }

    /// Makes sure that a commit in doubt, which rests on this version of this record, cannot happen any more; `false`
    /// while that is not known. If the record has moved on, either it has happened or it never can; if not, the record is
    /// written as it is, and its version moves on.
    async fn forestall(&self, key: &Key, version: u64) -> Result<bool> {
        let Some(found) = self.store().get(key).await?.filter(|found| found.version == version) else {
            return Ok(true);
        };
        let put = Put { record: found.value, expect: Expect::Version(version) };
        let changes = Changeset { puts: vec![put], ..Changeset::new() };
        match self.inner.committer.commit(changes).await {
            // A conflict: it moved on meanwhile.
            Ok(_) => Ok(true),
            Err(CoordinatorError::Store(StoreError::Unknown(_))) => Ok(false),
            Err(error) => Err(error),
        }
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

/// A record without whose present version a changeset does not commit, and that can be written again.
fn rests_on(changes: &Changeset) -> Option<(Key, u64)> {
    let replaced = changes.puts.iter().filter_map(|put| match put.expect {
        Expect::Version(version) => Some((put.record.key(), version)),
        Expect::Absent | Expect::Any => None,
    });
    replaced.chain(changes.checks.iter().cloned()).find(|(key, _)| !key.kind.is_immutable())
}
