//! [`MemoryBlobs`].

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;

use super::lock;
use crate::ports::{BlobError, BlobStore};

/// Keeps blobs in memory; they end with the process.
#[derive(Default)]
pub struct MemoryBlobs {
    blobs: Mutex<BTreeMap<String, Bytes>>,
}

impl MemoryBlobs {
    /// An empty blob store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl BlobStore for MemoryBlobs {
    async fn put(&self, name: &str, bytes: Bytes) -> Result<(), BlobError> {
        lock(&self.blobs).insert(name.to_owned(), bytes);
        Ok(())
    }

    async fn get(&self, name: &str) -> Result<Option<Bytes>, BlobError> {
        Ok(lock(&self.blobs).get(name).cloned())
    }

    async fn delete(&self, name: &str) -> Result<(), BlobError> {
        lock(&self.blobs).remove(name);
        Ok(())
    }
}
