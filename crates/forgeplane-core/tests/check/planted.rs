//! A store in which one record is another than was ever committed; its guards would not let it in.

use std::sync::Arc;

use async_trait::async_trait;
use forgeplane_core::id::{AttemptId, WorkerId};
use forgeplane_core::model::*;
use forgeplane_core::ports::*;

use crate::support::Spy;

pub struct Planted {
    pub store: Arc<Spy>,
    pub record: Record,
}

impl Planted {
    fn change(&self, record: &mut Versioned<Record>) {
        if record.value.key() == self.record.key() {
            record.value = self.record.clone();
        }
    }
}

#[async_trait]
impl Store for Planted {
    async fn commit(&self, _: Vec<Changeset>) -> Result<Vec<Result<Committed, Conflict>>, StoreError> {
        panic!("a check changes nothing");
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned<Record>>, StoreError> {
        let mut found = self.store.get(key).await?;
        found.iter_mut().for_each(|record| self.change(record));
        Ok(found)
    }

    async fn find(&self, lookup: &Lookup) -> Result<Option<Versioned<Record>>, StoreError> {
        self.store.find(lookup).await
    }

    async fn list(&self, select: &Select, page: &Page) -> Result<Vec<Versioned<Record>>, StoreError> {
        let mut found = self.store.list(select, page).await?;
        found.iter_mut().for_each(|record| self.change(record));
        if let (Select::OpenAttempts, Record::Attempt(attempt)) = (select, &self.record) {
            found.retain(|record| record.value.key() != self.record.key());
            if attempt.is_open() {
                found.push(Versioned { value: self.record.clone(), version: 1 });
            }
        }
        Ok(found)
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        self.store.events(filter, after, limit).await
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.store.outbox(limit).await
    }

    async fn outbox_of(&self, worker: WorkerId, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.store.outbox_of(worker, limit).await
    }

    async fn event_head(&self) -> Result<u64, StoreError> {
        self.store.event_head().await
    }

    async fn log(&self, attempt: AttemptId, from: u64, max: usize) -> Result<Vec<LogChunk>, StoreError> {
        self.store.log(attempt, from, max).await
    }

    async fn log_end(&self, attempt: AttemptId) -> Result<u64, StoreError> {
        self.store.log_end(attempt).await
    }

    async fn allocate_fence(&self) -> Result<Fence, StoreError> {
        panic!("a check changes nothing");
    }
}
