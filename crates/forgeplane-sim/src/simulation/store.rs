//! A database behind a connection that breaks.

use std::sync::Arc;

use async_trait::async_trait;
use forgeplane_core::id::{AttemptId, WorkerId};
use forgeplane_core::memory::MemoryStore;
use forgeplane_core::model::*;
use forgeplane_core::ports::*;

use super::life::Life;
use super::world::{Planted, World};

/// One coordinator's connection to the database they share.
pub(super) struct StoreEnd {
    pub(super) store: Arc<MemoryStore>,
    pub(super) world: Arc<World>,
    pub(super) life: Life,
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("the simulated database does not answer".into())
}

impl StoreEnd {
    /// The way there, and what can go wrong on it.
    async fn ask(&self) -> Result<(), StoreError> {
        self.life.pass().await;
        let latency = self.world.fate.latency();
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        self.life.alive().await;
        if self.world.is_store_down() || self.world.fate.fails(3) {
            self.world.count(|c| c.losses += 1);
            return Err(unavailable());
        }
        Ok(())
    }

    fn unknown(&self) -> StoreError {
        self.world.count(|c| c.unknown_commits += 1);
        StoreError::Unknown("the connection was lost before the answer".into())
    }
}

/// Makes a changeset overwrite whatever is there.
fn uncheck(changes: &mut Changeset) {
    changes.checks.clear();
    for put in &mut changes.puts {
        if let Expect::Version(_) = put.expect {
            put.expect = Expect::Any;
        }
    }
}

#[async_trait]
impl Store for StoreEnd {
    async fn commit(
        &self,
        mut batch: Vec<Changeset>,
    ) -> Result<Vec<Result<Committed, Conflict>>, StoreError> {
        self.ask().await?;
        if self.world.planted == Some(Planted::UncheckedStore) {
            batch.iter_mut().for_each(uncheck);
        }
        if self.world.fate.fails(30) {
            match self.world.fate.below(3) {
                0 => {}
                1 => drop(self.store.commit(batch).await),
                // The server goes on with it for a while after the connection is gone.
                _ => {
                    let (store, after) = (Arc::clone(&self.store), self.world.fate.millis(3_000));
                    tokio::spawn(async move {
                        tokio::time::sleep(after).await;
                        let _ = store.commit(batch).await;
                    });
                }
            }
            return Err(self.unknown());
        }
        let committed = self.store.commit(batch).await;
        // Killed after the commit, before anybody here has heard of it.
        self.life.pass().await;
        committed
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned<Record>>, StoreError> {
        self.ask().await?;
        self.store.get(key).await
    }

    async fn find(&self, lookup: &Lookup) -> Result<Option<Versioned<Record>>, StoreError> {
        self.ask().await?;
        self.store.find(lookup).await
    }

    async fn list(&self, select: &Select, page: &Page) -> Result<Vec<Versioned<Record>>, StoreError> {
        self.ask().await?;
        self.store.list(select, page).await
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        self.ask().await?;
        self.store.events(filter, after, limit).await
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.ask().await?;
        self.store.outbox(limit).await
    }

    async fn outbox_of(&self, worker: WorkerId, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.ask().await?;
        self.store.outbox_of(worker, limit).await
    }

    async fn event_head(&self) -> Result<u64, StoreError> {
        self.life.alive().await;
        self.store.event_head().await
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn log(
        &self,
        attempt: AttemptId,
        from: u64,
        max_bytes: usize,
    ) -> Result<Vec<LogChunk>, StoreError> {
        self.ask().await?;
        self.store.log(attempt, from, max_bytes).await
    }

    async fn log_end(&self, attempt: AttemptId) -> Result<u64, StoreError> {
        self.ask().await?;
        self.store.log_end(attempt).await
    }

    async fn allocate_fence(&self) -> Result<Fence, StoreError> {
        self.ask().await?;
        self.store.allocate_fence().await
    }
}
