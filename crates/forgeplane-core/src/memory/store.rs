//! [`MemoryStore`]: the store contract in code.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use async_trait::async_trait;

use super::constraints::{Claim, claims};
use super::{lock, queries};
use crate::id::{AttemptId, OutboxId, WorkerId};
use crate::model::*;
use crate::ports::{Committed, Conflict, EventFilter, Lookup, Page, Select, Store, StoreError};

/// Keeps every record in memory. Every guarantee of [`Store`] but durability: it ends with the process.
#[derive(Default)]
pub struct MemoryStore {
    content: Mutex<Content>,
}

/// All that is stored. One lock around it makes each batch isolated and each read consistent.
#[derive(Default)]
pub(super) struct Content {
    records: BTreeMap<Kind, BTreeMap<String, Versioned<Record>>>,
    /// Which record holds a unique value.
    claimed: HashMap<Claim, Key>,
    /// Event `n` is at `n - 1`.
    events: Vec<Event>,
    outbox: BTreeMap<OutboxId, OutboxMessage>,
    /// Log chunks again, in the order of their bytes.
    logs: BTreeMap<(AttemptId, u64), LogChunk>,
    last_fence: u64,
}

/// A replaced record, so that a changeset that fails half-way leaves nothing behind.
type Undo = (Key, Option<Versioned<Record>>);

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Content {
    pub(super) fn get(&self, key: &Key) -> Option<&Versioned<Record>> {
        self.records.get(&key.kind)?.get(&key.id)
    }

    /// Every record of a kind, in the order of their keys.
    pub(super) fn of_kind(&self, kind: Kind) -> impl DoubleEndedIterator<Item = (&str, &Versioned<Record>)> {
        self.records.get(&kind).into_iter().flatten().map(|(id, record)| (id.as_str(), record))
    }

    fn apply(&mut self, changes: Changeset) -> Result<Committed, Conflict> {
        for (key, version) in changes.checks {
            if self.get(&key).map(|it| it.version) != Some(version) {
                return Err(Conflict::Version { key });
            }
        }
        let mut undo = Vec::with_capacity(changes.puts.len());
        for put in changes.puts {
            if let Err(conflict) = self.put(put, &mut undo) {
                for (key, before) in undo.into_iter().rev() {
                    self.set(&key, before);
                }
                return Err(conflict);
            }
        }
        let mut committed = Committed::default();
        for mut event in changes.events {
            event.seq = self.events.len() as u64 + 1;
            committed.events.push(event.seq);
            self.events.push(event);
        }
        self.outbox.extend(changes.outbox.into_iter().map(|message| (message.id, message)));
        for id in changes.published {
            self.outbox.remove(&id);
        }
        Ok(committed)
    }

    fn put(&mut self, put: Put, undo: &mut Vec<Undo>) -> Result<(), Conflict> {
        let key = put.record.key();
        let before = self.get(&key);
        let found = before.map_or(0, |it| it.version);
        let expected = match put.expect {
            Expect::Absent => found == 0,
            _ if key.kind.is_immutable() => false,
            Expect::Version(version) => found == version && found > 0,
            Expect::Any => true,
        };
        if !expected {
            return Err(Conflict::Version { key });
        }
        for claim in claims(&put.record) {
            if self.claimed.get(&claim).is_some_and(|holder| *holder != key) {
                return Err(Conflict::Constraint(claim.0));
            }
        }
        undo.push((key.clone(), before.cloned()));
        self.set(&key, Some(Versioned { value: put.record, version: found + 1 }));
        Ok(())
    }

    /// Makes `record` what is stored under `key`, and everything derived from it.
    fn set(&mut self, key: &Key, record: Option<Versioned<Record>>) {
        let of_kind = self.records.entry(key.kind).or_default();
        if let Some(before) = of_kind.remove(&key.id) {
            for claim in claims(&before.value) {
                self.claimed.remove(&claim);
            }
            if let Record::LogChunk(chunk) = before.value {
                self.logs.remove(&(chunk.attempt, chunk.offset));
            }
        }
        let Some(record) = record else { return };
        for claim in claims(&record.value) {
            self.claimed.insert(claim, key.clone());
        }
        if let Record::LogChunk(chunk) = &record.value {
            self.logs.insert((chunk.attempt, chunk.offset), chunk.clone());
        }
        if let Record::Attempt(attempt) = &record.value {
            self.last_fence = self.last_fence.max(attempt.fence.0);
        }
        of_kind.insert(key.id.clone(), record);
    }

    fn log_end(&self, attempt: AttemptId) -> u64 {
        self.logs.range((attempt, 0)..=(attempt, u64::MAX)).next_back().map_or(0, |(_, last)| last.end())
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn commit(&self, batch: Vec<Changeset>) -> Result<Vec<Result<Committed, Conflict>>, StoreError> {
        let mut content = lock(&self.content);
        Ok(batch.into_iter().map(|changes| content.apply(changes)).collect())
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned<Record>>, StoreError> {
        Ok(lock(&self.content).get(key).cloned())
    }

    async fn find(&self, lookup: &Lookup) -> Result<Option<Versioned<Record>>, StoreError> {
        Ok(queries::find(&lock(&self.content), lookup))
    }

    async fn list(&self, select: &Select, page: &Page) -> Result<Vec<Versioned<Record>>, StoreError> {
        Ok(queries::list(&lock(&self.content), select, page))
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        let content = lock(&self.content);
        let first = usize::try_from(after).unwrap_or(usize::MAX).min(content.events.len());
        Ok(content.events[first..]
            .iter()
            .filter(|it| filter.project.is_none() || it.project == filter.project)
            .filter(|it| filter.run.is_none() || it.run == filter.run)
            .take(limit)
            .cloned()
            .collect())
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        Ok(lock(&self.content).outbox.values().take(limit).cloned().collect())
    }

    async fn outbox_of(&self, worker: WorkerId, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        let content = lock(&self.content);
        Ok(content.outbox.values().filter(|it| it.job.worker == worker).take(limit).cloned().collect())
    }

    async fn event_head(&self) -> Result<u64, StoreError> {
        Ok(lock(&self.content).events.len() as u64)
    }

    async fn log(
        &self,
        attempt: AttemptId,
        from: u64,
        max_bytes: usize,
    ) -> Result<Vec<LogChunk>, StoreError> {
        let content = lock(&self.content);
        // The chunk that contains `from` is the last one that starts at or before it.
        let first =
            content.logs.range((attempt, 0)..=(attempt, from)).next_back().map_or(from, |(at, _)| at.1);
        let mut chunks = Vec::new();
        let mut bytes = 0;
        for chunk in content.logs.range((attempt, first)..=(attempt, u64::MAX)).map(|(_, chunk)| chunk) {
            if chunk.end() <= from {
                continue;
            }
            bytes += chunk.frame.bytes.len();
            if bytes > max_bytes && !chunks.is_empty() {
                break;
            }
            chunks.push(chunk.clone());
        }
        Ok(chunks)
    }

    async fn log_end(&self, attempt: AttemptId) -> Result<u64, StoreError> {
        Ok(lock(&self.content).log_end(attempt))
    }

    async fn allocate_fence(&self) -> Result<Fence, StoreError> {
        let mut content = lock(&self.content);
        content.last_fence += 1;
        Ok(Fence(content.last_fence))
    }
}
