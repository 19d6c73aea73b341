//! The SQLite store keeps its contract.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;

use async_trait::async_trait;
use forgeplane_core::ports::Store;
use forgeplane_store_sqlite::SqliteStore;
use forgeplane_testkit::{Builder, Reopen, StoreGuard, store_conformance};
use tempfile::TempDir;

/// A store in a temporary directory.
struct Sqlite {
    /// `None` only while reopening.
    store: Option<SqliteStore>,
    directory: TempDir,
}

impl Sqlite {
    fn path(&self) -> PathBuf {
        self.directory.path().join("forgeplane.db")
    }
}

#[async_trait]
impl Builder for Sqlite {
    type Guard = Self;
    const DURABLE: bool = true;

    async fn build() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path().join("forgeplane.db")).unwrap();
        Self { store: Some(store), directory }
    }
}

impl StoreGuard for Sqlite {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }
}

#[async_trait]
impl Reopen for Sqlite {
    async fn reopen(&mut self) {
        self.store = None;
        self.store = Some(SqliteStore::open(self.path()).unwrap());
    }
}

store_conformance!(Sqlite, durable);
