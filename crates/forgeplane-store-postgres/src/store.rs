//! [`PostgresStore`].

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use forgeplane_core::id::{AttemptId, WorkerId};
use forgeplane_core::model::*;
use forgeplane_core::ports::{
    Clock as _, Committed, Conflict, EventFilter, Lookup, Page, Select, Store, StoreError,
};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{Connection as _, Row as _};
use tokio::task::AbortHandle;

use crate::blobs::PostgresBlobs;
use crate::clock::{COMPARE, DatabaseClock};
use crate::error::OpenError;
use crate::options::PostgresOptions;
use crate::partition::{self, Month};
use crate::read::{Reader, is_about_the_connection, unavailable};
use crate::write::{self, Decided, Failure, Mode};
use crate::{migrate, open, select};

/// A commit that takes longer is given up; whether it happened is then unknown.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a batch that lost a deadlock or met a dead connection is tried again; nothing was committed then.
const TRIES: usize = 5;

/// A store in a PostgreSQL database, for any number of coordinators.
pub struct PostgresStore {
    inner: Arc<Inner>,
    clock: DatabaseClock,
    comparing: AbortHandle,
}

struct Inner {
    pool: PgPool,
    reader: Reader,
    read_only: bool,
    /// Months whose log partitions are known to be there.
    months: Mutex<BTreeSet<Month>>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects, checks what the server promises, and brings the schema up to date.
    ///
    /// # Errors
    /// [`OpenError`]: the server cannot be reached, is too old or may lose data, or the schema does not fit.
    pub async fn open(options: &PostgresOptions) -> Result<Self, OpenError> {
        let pool = open::pool(options)?;
        let clock = {
            let mut connection = pool.acquire().await.map_err(OpenError::Unreachable)?;
            // What is only read cannot be lost by it.
            open::check(&mut connection, options.unsafe_durability || options.read_only).await?;
            migrate::migrate(&mut connection, options.migrate && !options.read_only).await?;
            DatabaseClock::read(&mut connection).await.map_err(OpenError::Unreachable)?
        };
        let reader = Reader { pool: pool.clone(), persistent: options.prepared_statements };
        let inner = Arc::new(Inner { pool, reader, read_only: options.read_only, months: Mutex::default() });
        if !options.read_only {
            let now = Month::of(clock.now());
            inner.ensure_logs(&BTreeSet::from([now, now.next()])).await.map_err(OpenError::Unreachable)?;
            inner.ensure_events().await.map_err(OpenError::Unreachable)?;
        }
        let comparing = tokio::spawn(compare(clock.clone(), inner.pool.clone())).abort_handle();
        Ok(Self { inner, clock, comparing })
    }

    /// The database's clock: what coordinators on one database should go by.
    #[must_use]
    pub fn clock(&self) -> DatabaseClock {
        self.clock.clone()
    }

    /// The same database as a place for sealed bytes.
    #[must_use]
    pub fn blobs(&self) -> PostgresBlobs {
        PostgresBlobs::new(self.inner.reader.clone())
    }

    /// Closes every connection, after the statements under way.
    pub async fn close(&self) {
        self.comparing.abort();
        self.inner.pool.close().await;
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.comparing.abort();
    }
}

/// Keeps the clock right. A comparison that fails is made again; until then time runs on by itself.
async fn compare(clock: DatabaseClock, pool: PgPool) {
    loop {
        tokio::time::sleep(COMPARE).await;
        let result = async { clock.compare(&mut *pool.acquire().await?).await };
        if let Err(error) = result.await {
            tracing::debug!(%error, "the database's clock could not be read");
        }
    }
}

/// Whether a batch failed in a way that leaves nothing behind and may succeed at once.
fn is_transient(error: &sqlx::Error) -> bool {
    // Serialization failure and deadlock: somebody else was first.
    let lost = error.as_database_error().and_then(|e| e.code()).is_some_and(|c| c == "40001" || c == "40P01");
    lost || matches!(error, sqlx::Error::RowNotFound) || is_about_the_connection(error)
}

/// Whether a row had no partition to go to.
fn lacks_partition(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|e| e.code().is_some_and(|c| c == "23514") && e.constraint().is_none())
}

impl Inner {
    /// Makes log partitions that are not known to be there.
    async fn ensure_logs(&self, months: &BTreeSet<Month>) -> Result<(), sqlx::Error> {
        let missing: BTreeSet<Month> = {
            let known = self.months.lock().unwrap_or_else(PoisonError::into_inner);
            months.difference(&known).copied().collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        // Not in the batch's own transaction: a new partition locks the whole table.
        let mut transaction = self.pool.begin().await?;
        partition::ensure_logs(&mut transaction, &missing).await?;
        transaction.commit().await?;
        self.months.lock().unwrap_or_else(PoisonError::into_inner).extend(missing);
        Ok(())
    }

    /// Makes the event partitions that come next.
    async fn ensure_events(&self) -> Result<(), sqlx::Error> {
        let mut transaction = self.pool.begin().await?;
        let head = sqlx::query("SELECT seq FROM event_head")
            .persistent(false)
            .fetch_one(&mut *transaction)
            .await?
            .try_get(0)?;
        partition::ensure_events(&mut transaction, head).await?;
        transaction.commit().await
    }

    fn writable(&self) -> Result<(), StoreError> {
        if self.read_only {
            return Err(StoreError::Unavailable("the store was opened to be read".into()));
        }
        Ok(())
    }

    async fn commit(&self, batch: &[Changeset]) -> Result<Decided, StoreError> {
        self.writable()?;
        let months: BTreeSet<Month> = batch
            .iter()
            .flat_map(|changes| &changes.puts)
            .filter_map(|put| match &put.record {
                Record::LogChunk(chunk) => Some(Month::of_attempt(chunk.attempt)),
                _ => None,
            })
            .collect();
        self.ensure_logs(&months).await.map_err(unavailable)?;
        let mut mode = Mode::Together;
        let mut tries = 1;
        loop {
            let error = match self.try_commit(batch, mode).await? {
                Ok(decided) => return Ok(decided),
                Err(Failure::Guard) => {
                    mode = Mode::Careful;
                    continue;
                }
                Err(Failure::Store(error)) => return Err(error),
                Err(Failure::Sql(error)) => error,
            };
            if tries == TRIES {
                return Err(unavailable(error));
            }
            tries += 1;
            if lacks_partition(&error) {
                self.ensure_events().await.map_err(unavailable)?;
            } else if !is_transient(&error) {
                return Err(unavailable(error));
            }
            tracing::debug!(%error, tries, "a batch that was not committed is tried again");
        }
    }

    /// Tries a batch once. The outer error is final; nothing was committed if the inner one is returned.
    async fn try_commit(
        &self,
        batch: &[Changeset],
        mode: Mode,
    ) -> Result<Result<Decided, Failure>, StoreError> {
        let mut connection = match self.pool.acquire().await {
            Ok(connection) => connection,
            // The pool has tried for as long as a caller may wait.
            Err(error) => return Err(unavailable(error)),
        };
        let committing = AtomicBool::new(false);
        let working = work(&mut connection, batch, mode, self.reader.persistent, &committing);
        let result = tokio::time::timeout(PATIENCE, working).await;
        let sent = committing.load(Ordering::SeqCst);
        match result {
            Ok(Ok(decided)) => Ok(Ok(decided)),
            Ok(Err(Failure::Sql(error))) => {
                if is_about_the_connection(&error) || sent {
                    connection.close_on_drop();
                }
                // An error of COMMIT says nothing about what was committed: not even one of the server's own, which
                // may only be that it shut down while it waited for a standby.
                if sent { Err(StoreError::Unknown(Box::new(error))) } else { Ok(Err(Failure::Sql(error))) }
            }
            Ok(Err(failure)) => Ok(Err(failure)),
            Err(elapsed) => {
                connection.close_on_drop();
                Err(if sent { StoreError::Unknown(Box::new(elapsed)) } else { unavailable(elapsed) })
            }
        }
    }
}

/// One transaction. `committing` is set before COMMIT is sent.
async fn work(
    connection: &mut PgConnection,
    batch: &[Changeset],
    mode: Mode,
    persistent: bool,
    committing: &AtomicBool,
) -> Result<Decided, Failure> {
    let mut transaction = connection.begin().await.map_err(Failure::Sql)?;
    match write::apply(&mut transaction, batch, mode, persistent).await {
        Ok(decided) => {
            committing.store(true, Ordering::SeqCst);
            transaction.commit().await.map_err(Failure::Sql)?;
            Ok(decided)
        }
        Err(failure) => {
            // Done now, so that the next transaction on this connection does not begin with it. If it fails, the
            // server does it when it notices that we are gone.
            let _ = transaction.rollback().await;
            Err(failure)
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn commit(&self, batch: Vec<Changeset>) -> Result<Vec<Result<Committed, Conflict>>, StoreError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        // A caller that goes away must not leave half a conversation on the connection.
        let inner = Arc::clone(&self.inner);
        let committing = tokio::spawn(async move { inner.commit(&batch).await });
        committing.await.map_err(|e| StoreError::Unknown(Box::new(e)))?
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned<Record>>, StoreError> {
        if key.kind == Kind::LogChunk {
            return self.inner.reader.chunk(&key.id).await;
        }
        Ok(self.inner.reader.records(&select::one(key.kind, &key.id)).await?.into_iter().next())
    }

    async fn find(&self, lookup: &Lookup) -> Result<Option<Versioned<Record>>, StoreError> {
        Ok(self.inner.reader.records(&select::lookup(lookup)).await?.into_iter().next())
    }

    async fn list(&self, select: &Select, page: &Page) -> Result<Vec<Versioned<Record>>, StoreError> {
        match select::select(select, page) {
            Some(query) => self.inner.reader.records(&query).await,
            None => Ok(Vec::new()),
        }
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        self.inner.reader.events(filter, after, limit).await
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.inner.reader.outbox(None, limit).await
    }

    async fn outbox_of(&self, worker: WorkerId, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.inner.reader.outbox(Some(worker), limit).await
    }

    async fn event_head(&self) -> Result<u64, StoreError> {
        self.inner.reader.event_head().await
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
        self.inner.reader.log(attempt, from, max_bytes).await
    }

    async fn log_end(&self, attempt: AttemptId) -> Result<u64, StoreError> {
        self.inner.reader.log_end(attempt).await
    }

    async fn allocate_fence(&self) -> Result<Fence, StoreError> {
        self.inner.writable()?;
        self.inner.reader.fence().await
    }
}
