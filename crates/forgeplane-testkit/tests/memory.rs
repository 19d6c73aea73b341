//! The reference backends keep their contracts.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forgeplane_core::coordinator::OutboxQueue;
use forgeplane_core::memory::{MemoryBlobs, MemoryQueue, MemoryStore};
use forgeplane_core::ports::{BlobStore, JobQueue, Store};
use forgeplane_testkit::{
    BlobGuard, Builder, QueueBuilder, QueueGuard, QueueTiming, Reopen, StoreGuard, Time, blob_conformance,
    queue_conformance, store_conformance,
};

/// Builds backends of type `T`, and guards one: nothing but the backend has to be kept alive.
struct Memory<T>(T);

#[async_trait]
impl<T: Default + Send> Builder for Memory<T> {
    type Guard = Self;
    const DURABLE: bool = false;

    async fn build() -> Self {
        Self(T::default())
    }
}

impl StoreGuard for Memory<MemoryStore> {
    fn store(&self) -> &dyn Store {
        &self.0
    }
}

impl QueueGuard for Memory<MemoryQueue> {
    fn queue(&self) -> &dyn JobQueue {
        &self.0
    }
}

impl QueueBuilder for Memory<MemoryQueue> {
    const TIMING: QueueTiming = QueueTiming { time: Time::Paused, redelivery: Duration::from_secs(30) };
}

impl BlobGuard for Memory<MemoryBlobs> {
    fn blobs(&self) -> &dyn BlobStore {
        &self.0
    }
}

store_conformance!(Memory<MemoryStore>);
queue_conformance!(Memory<MemoryQueue>);

mod the_outbox_as_a_queue {
    use super::*;

    /// An outbox queue on a store in memory.
    struct Outbox {
        store: Arc<dyn Store>,
        queue: OutboxQueue,
    }

    #[async_trait]
    impl Builder for Outbox {
        type Guard = Self;
        const DURABLE: bool = true;

        async fn build() -> Self {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            Self { queue: OutboxQueue::new(Arc::clone(&store)), store }
        }
    }

    impl QueueGuard for Outbox {
        fn queue(&self) -> &dyn JobQueue {
            &self.queue
        }
    }

    impl QueueBuilder for Outbox {
        const TIMING: QueueTiming = QueueTiming { time: Time::Paused, redelivery: Duration::from_secs(30) };
    }

    #[async_trait]
    impl Reopen for Outbox {
        /// What a queue knows besides the store is forgotten.
        async fn reopen(&mut self) {
            self.queue = OutboxQueue::new(Arc::clone(&self.store));
        }
    }

    queue_conformance!(Outbox, durable);
}
blob_conformance!(Memory<MemoryBlobs>);
