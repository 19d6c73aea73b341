//! Memory adapters that remember everything they were given.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use forgeplane_core::id::{AttemptId, WorkerId};
use forgeplane_core::memory::{MemoryBlobs, MemoryStore};
use forgeplane_core::model::*;
use forgeplane_core::ports::*;

/// A memory store that remembers what was committed, in order.
#[derive(Default)]
pub struct Spy {
    inner: MemoryStore,
    committed: Mutex<Vec<Changeset>>,
    /// The next commit is made, but its result is reported as unknown.
    pub lose_next_result: AtomicBool,
    /// The next commit is not made yet, its result is reported as unknown, and this happens.
    pub hold_next: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    held: Mutex<Option<Vec<Changeset>>>,
    /// Every call gives way to other tasks a few times, differently each time.
    pub jitter: AtomicBool,
    calls: AtomicUsize,
}

impl Spy {
    /// How many changesets were committed.
    pub fn commits(&self) -> usize {
        self.committed.lock().unwrap().len()
    }

    /// The changesets committed after the first `seen`.
    pub fn since(&self, seen: usize) -> Vec<Changeset> {
        self.committed.lock().unwrap()[seen..].to_vec()
    }

    /// Every record as it is now.
    pub fn records(&self) -> BTreeMap<Key, Record> {
        let committed = self.committed.lock().unwrap();
        committed.iter().flat_map(|c| &c.puts).map(|p| (p.record.key(), p.record.clone())).collect()
    }

    /// Puts a record without any rule, as an administrator of the database could.
    pub async fn force(&self, record: impl Into<Record>) {
        let record = record.into();
        let key = record.key();
        let expect = match self.inner.get(&key).await.unwrap() {
            Some(found) => Expect::Version(found.version),
            None => Expect::Absent,
        };
        let changes = Changeset { puts: vec![Put { record, expect }], ..Changeset::new() };
        self.commit(vec![changes]).await.unwrap()[0].as_ref().unwrap();
    }

    /// What was held happens now.
    pub async fn release(&self) -> Vec<Result<Committed, Conflict>> {
        let held = self.held.lock().unwrap().take().expect("a commit was held");
        self.commit(held).await.unwrap()
    }

    async fn give_way(&self) {
        if self.jitter.load(Ordering::Relaxed) {
            let n = self.calls.fetch_add(1, Ordering::Relaxed);
            // A cheap hash of the call number: 0 to 3 times.
            for _ in 0..(n.wrapping_mul(0x9e37_79b9) >> 7) % 4 {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[async_trait]
impl Store for Spy {
    async fn commit(&self, batch: Vec<Changeset>) -> Result<Vec<Result<Committed, Conflict>>, StoreError> {
        self.give_way().await;
        let held = self.hold_next.lock().unwrap().take();
        if let Some(meanwhile) = held {
            *self.held.lock().unwrap() = Some(batch);
            meanwhile();
            return Err(StoreError::Unknown("the connection broke before COMMIT arrived".into()));
        }
        let results = self.inner.commit(batch.clone()).await?;
        {
            let mut committed = self.committed.lock().unwrap();
            committed.extend(batch.into_iter().zip(&results).filter(|(_, r)| r.is_ok()).map(|(c, _)| c));
        }
        if self.lose_next_result.swap(false, Ordering::Relaxed) {
            return Err(StoreError::Unknown("the connection broke during COMMIT".into()));
        }
        Ok(results)
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned<Record>>, StoreError> {
        self.give_way().await;
        self.inner.get(key).await
    }

    async fn find(&self, lookup: &Lookup) -> Result<Option<Versioned<Record>>, StoreError> {
        self.give_way().await;
        self.inner.find(lookup).await
    }

    async fn list(&self, select: &Select, page: &Page) -> Result<Vec<Versioned<Record>>, StoreError> {
        self.give_way().await;
        self.inner.list(select, page).await
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        self.inner.events(filter, after, limit).await
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.inner.outbox(limit).await
    }

    async fn outbox_of(&self, worker: WorkerId, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.inner.outbox_of(worker, limit).await
    }

    async fn event_head(&self) -> Result<u64, StoreError> {
        self.inner.event_head().await
    }

    async fn log(&self, attempt: AttemptId, from: u64, max: usize) -> Result<Vec<LogChunk>, StoreError> {
        self.inner.log(attempt, from, max).await
    }

    async fn log_end(&self, attempt: AttemptId) -> Result<u64, StoreError> {
        self.inner.log_end(attempt).await
    }

    async fn allocate_fence(&self) -> Result<Fence, StoreError> {
        self.inner.allocate_fence().await
    }
}

/// Memory blobs that remember every byte they were given.
#[derive(Default)]
pub struct SpyBlobs {
    inner: MemoryBlobs,
    pub given: Mutex<Vec<(String, Bytes)>>,
}

impl SpyBlobs {
    /// The names that were stored under a prefix.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let given = self.given.lock().unwrap();
        given.iter().map(|(name, _)| name.clone()).filter(|name| name.starts_with(prefix)).collect()
    }

    /// Loses everything under a prefix, as a wrong retention rule would.
    pub async fn lose(&self, prefix: &str) {
        for name in self.names(prefix) {
            self.inner.delete(&name).await.unwrap();
        }
    }
}

#[async_trait]
impl BlobStore for SpyBlobs {
    async fn put(&self, name: &str, bytes: Bytes) -> Result<(), BlobError> {
        self.given.lock().unwrap().push((name.to_owned(), bytes.clone()));
        self.inner.put(name, bytes).await
    }

    async fn get(&self, name: &str) -> Result<Option<Bytes>, BlobError> {
        self.inner.get(name).await
    }

    async fn delete(&self, name: &str) -> Result<(), BlobError> {
        self.inner.delete(name).await
    }
}
