//! A shared backend is a backend: whoever keeps an [`Arc`] of what it hands to a coordinator, such as several coordinators
//! in one process or a test, needs no wrapper.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use super::*;
use crate::id::{AttemptId, WorkerId};
use crate::model::*;

impl<C: Clock> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

impl<E: Entropy> Entropy for Arc<E> {
    fn fill(&self, bytes: &mut [u8]) {
        (**self).fill(bytes);
    }
}

#[async_trait]
impl<B: BlobStore> BlobStore for Arc<B> {
    async fn put(&self, name: &str, bytes: Bytes) -> Result<(), BlobError> {
        (**self).put(name, bytes).await
    }

    async fn get(&self, name: &str) -> Result<Option<Bytes>, BlobError> {
        (**self).get(name).await
    }

    async fn delete(&self, name: &str) -> Result<(), BlobError> {
        (**self).delete(name).await
    }
}

#[async_trait]
impl<S: Store> Store for Arc<S> {
    async fn commit(&self, batch: Vec<Changeset>) -> Result<Vec<Result<Committed, Conflict>>, StoreError> {
        (**self).commit(batch).await
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned<Record>>, StoreError> {
        (**self).get(key).await
    }

    async fn find(&self, lookup: &Lookup) -> Result<Option<Versioned<Record>>, StoreError> {
        (**self).find(lookup).await
    }

    async fn list(&self, select: &Select, page: &Page) -> Result<Vec<Versioned<Record>>, StoreError> {
        (**self).list(select, page).await
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        (**self).events(filter, after, limit).await
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        (**self).outbox(limit).await
    }

    async fn outbox_of(&self, worker: WorkerId, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        (**self).outbox_of(worker, limit).await
    }

    async fn event_head(&self) -> Result<u64, StoreError> {
        (**self).event_head().await
    }

    fn is_shared(&self) -> bool {
        (**self).is_shared()
    }

    async fn log(
        &self,
        attempt: AttemptId,
        from: u64,
        max_bytes: usize,
    ) -> Result<Vec<LogChunk>, StoreError> {
        (**self).log(attempt, from, max_bytes).await
    }

    async fn log_end(&self, attempt: AttemptId) -> Result<u64, StoreError> {
        (**self).log_end(attempt).await
    }

    async fn allocate_fence(&self) -> Result<Fence, StoreError> {
        (**self).allocate_fence().await
    }
}
