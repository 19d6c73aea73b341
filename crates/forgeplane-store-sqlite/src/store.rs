//! [`SqliteStore`].

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use async_trait::async_trait;
use forgeplane_core::id::{AttemptId, WorkerId};
use forgeplane_core::model::*;
use forgeplane_core::ports::{Committed, Conflict, EventFilter, Lookup, Page, Select, Store, StoreError};
use tokio::sync::{mpsc, oneshot};

use crate::error::OpenError;
use crate::open;
use crate::read::{self, Readers};
use crate::select;
use crate::write::{self, Request};

/// A store in one SQLite file. Dropping it waits for the commits under way.
pub struct SqliteStore {
    /// `None` if the store is only read, and while dropping.
    requests: Option<mpsc::Sender<Request>>,
    writer: Option<JoinHandle<()>>,
    readers: Readers,
    last_fence: AtomicU64,
    /// Held as long as the store lives, if it writes.
    _lock: Option<File>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the store file, making it (and its directory) if need be, and brings it to the current schema.
    ///
    /// # Errors
    /// [`OpenError`]: another process has the file, it is newer than this version, or it cannot be used.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let lock = open::take_ownership(path)?;
        let connection = open::writer(path)?;
        // The file belongs to this process, so the newest stored fence is the newest there is.
        let last: i64 = connection
            .query_row("SELECT coalesce(max(fence), 0) FROM attempt", [], |row| row.get(0))
            .map_err(OpenError::from_sqlite)?;
        let (requests, inbox) = mpsc::channel(1024);
        let writer = std::thread::Builder::new()
            .name("sqlite-writer".into())
            .spawn(move || write::serve(connection, inbox))
            .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        Ok(Self {
            requests: Some(requests),
            writer: Some(writer),
            readers: Readers::new(path.to_owned()),
            last_fence: AtomicU64::new(u64::try_from(last).unwrap_or(0)),
            _lock: Some(lock),
        })
    }

    /// Opens a store file only to read it, also while another process works with it. Commits are refused.
    ///
    /// # Errors
    /// [`OpenError`]: there is no such file, it has another schema than this version's, or it cannot be used.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        open::check_readable(path)?;
        Ok(Self {
            requests: None,
            writer: None,
            readers: Readers::new(path.to_owned()),
            last_fence: AtomicU64::new(0),
            _lock: None,
        })
    }

    fn requests(&self) -> Result<&mpsc::Sender<Request>, StoreError> {
        self.requests
            .as_ref()
            .ok_or_else(|| StoreError::Unavailable("the store was opened to be read".into()))
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(writer) = self.writer.take() {
            // It ends when the last request is served; a panic in it has been reported by the thread itself.
            let _ = writer.join();
        }
    }
}

fn stopped() -> StoreError {
    StoreError::Unavailable("the writer thread has ended".into())
}

#[async_trait]
impl Store for SqliteStore {
    async fn commit(&self, batch: Vec<Changeset>) -> Result<Vec<Result<Committed, Conflict>>, StoreError> {
        let (reply, result) = oneshot::channel();
        self.requests()?.send(Request { batch, reply }).await.map_err(|_| stopped())?;
        // A writer that vanished while it held the batch may have committed it.
        result.await.map_err(|e| StoreError::Unknown(Box::new(e)))?
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned<Record>>, StoreError> {
        let key = key.clone();
        self.readers.run(move |connection| read::get(connection, &key)).await
    }

    async fn find(&self, lookup: &Lookup) -> Result<Option<Versioned<Record>>, StoreError> {
        let query = select::lookup(lookup);
        self.readers.run(move |connection| Ok(read::records(connection, &query)?.into_iter().next())).await
    }

    async fn list(&self, select: &Select, page: &Page) -> Result<Vec<Versioned<Record>>, StoreError> {
        match select::select(select, page) {
            Some(query) => self.readers.run(move |connection| read::records(connection, &query)).await,
            None => Ok(Vec::new()),
        }
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        let filter = filter.clone();
        self.readers.run(move |connection| read::events(connection, &filter, after, limit)).await
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.readers.run(move |connection| read::outbox(connection, None, limit)).await
    }

    async fn outbox_of(&self, worker: WorkerId, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.readers.run(move |connection| read::outbox(connection, Some(worker), limit)).await
    }

    async fn event_head(&self) -> Result<u64, StoreError> {
        self.readers.run(read::event_head).await
    }

    async fn log(
        &self,
        attempt: AttemptId,
        from: u64,
        max_bytes: usize,
    ) -> Result<Vec<LogChunk>, StoreError> {
        self.readers.run(move |connection| read::log(connection, attempt, from, max_bytes)).await
    }

    async fn log_end(&self, attempt: AttemptId) -> Result<u64, StoreError> {
        self.readers.run(move |connection| read::log_end(connection, attempt)).await
    }

    async fn allocate_fence(&self) -> Result<Fence, StoreError> {
        self.requests()?;
        Ok(Fence(self.last_fence.fetch_add(1, Ordering::Relaxed) + 1))
    }
}
