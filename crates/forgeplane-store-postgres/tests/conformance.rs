//! The PostgreSQL store keeps its contract, also behind a pooler.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use async_trait::async_trait;
use forgeplane_core::ports::{BlobStore, Store};
use forgeplane_store_postgres::{PostgresBlobs, PostgresOptions, PostgresStore};
use forgeplane_testkit::pgbouncer::PgBouncer;
use forgeplane_testkit::postgres_server::PostgresServer;
use forgeplane_testkit::{BlobGuard, Builder, Reopen, StoreGuard, blob_conformance, store_conformance};

/// A store on a server of its own.
struct Postgres {
    store: PostgresStore,
    server: PostgresServer,
}

#[async_trait]
impl Builder for Postgres {
    type Guard = Self;
    const DURABLE: bool = true;

    async fn build() -> Self {
        let server = PostgresServer::start();
        let store = PostgresStore::open(&PostgresOptions::new(server.url())).await.unwrap();
        Self { store, server }
    }
}

impl StoreGuard for Postgres {
    fn store(&self) -> &dyn Store {
        &self.store
    }
}

#[async_trait]
impl Reopen for Postgres {
    /// The server is killed as a crash would do it; what was committed must be there afterwards.
    async fn reopen(&mut self) {
        self.server.kill();
        self.server.resume();
        self.store = PostgresStore::open(&PostgresOptions::new(self.server.url())).await.unwrap();
    }
}

store_conformance!(Postgres, durable);

mod in_the_database {
    use super::*;

    /// Blobs in a database of their own.
    struct Blobs {
        blobs: PostgresBlobs,
        inner: Postgres,
    }

    #[async_trait]
    impl Builder for Blobs {
        type Guard = Self;
        const DURABLE: bool = true;

        async fn build() -> Self {
            let inner = Postgres::build().await;
            Self { blobs: inner.store.blobs(), inner }
        }
    }

    impl BlobGuard for Blobs {
        fn blobs(&self) -> &dyn BlobStore {
            &self.blobs
        }
    }

    #[async_trait]
    impl Reopen for Blobs {
        async fn reopen(&mut self) {
            self.inner.reopen().await;
            self.blobs = self.inner.store.blobs();
        }
    }

    blob_conformance!(Blobs, durable);
}

mod b14_behind_a_transaction_pooler {
    use super::*;

    /// A store behind a pooler of its own.
    struct Pooled {
        store: PostgresStore,
        pooler: PgBouncer,
        server: PostgresServer,
    }

    fn options(pooler: &PgBouncer) -> PostgresOptions {
        PostgresOptions { prepared_statements: false, ..PostgresOptions::new(pooler.url()) }
    }

    #[async_trait]
    impl Builder for Pooled {
        type Guard = Self;
        const DURABLE: bool = true;

        async fn build() -> Self {
            let server = PostgresServer::start();
            let pooler = PgBouncer::start(&server);
            let store = PostgresStore::open(&options(&pooler)).await.unwrap();
            Self { store, pooler, server }
        }
    }

    impl StoreGuard for Pooled {
        fn store(&self) -> &dyn Store {
            &self.store
        }
    }

    #[async_trait]
    impl Reopen for Pooled {
        async fn reopen(&mut self) {
            self.server.stop();
            self.server.resume();
            self.pooler = PgBouncer::start(&self.server);
            self.store = PostgresStore::open(&options(&self.pooler)).await.unwrap();
        }
    }

    store_conformance!(Pooled, durable);
}
