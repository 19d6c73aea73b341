//! The local blob store keeps its contract.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use async_trait::async_trait;
use forgeplane_blobs::ObjectBlobs;
use forgeplane_core::ports::BlobStore;
use forgeplane_testkit::{BlobGuard, Builder, Reopen, blob_conformance};
use tempfile::TempDir;

/// Blobs in a temporary directory.
struct Local {
    blobs: ObjectBlobs,
    directory: TempDir,
}

#[async_trait]
impl Builder for Local {
    type Guard = Self;
    const DURABLE: bool = true;

    async fn build() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { blobs: ObjectBlobs::local(directory.path()).unwrap(), directory }
    }
}

impl BlobGuard for Local {
    fn blobs(&self) -> &dyn BlobStore {
        &self.blobs
    }
}

#[async_trait]
impl Reopen for Local {
    async fn reopen(&mut self) {
        self.blobs = ObjectBlobs::local(self.directory.path()).unwrap();
    }
}

blob_conformance!(Local, durable);
