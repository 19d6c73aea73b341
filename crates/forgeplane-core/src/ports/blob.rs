//! The blob store port: large immutable bytes.

use async_trait::async_trait;
use bytes::Bytes;

use super::BoxError;

/// A blob store that could not answer; the call may be repeated.
#[derive(Debug, thiserror::Error)]
#[error("the blob store is not available: {0}")]
pub struct BlobError(#[source] pub BoxError);

/// Keeps sealed bytes under names of `a-z 0-9 - _ /`.
///
/// # What an implementation guarantees
///
/// - When [`put`](BlobStore::put) returns, the bytes survive a power loss, and a reader sees all or nothing.
/// - Putting the same name again replaces the bytes; callers only do so with equivalent content.
#[async_trait]
pub trait BlobStore: Send + Sync + 'static {
    /// Stores bytes under a name.
    ///
    /// # Errors
    /// When they could not be stored.
    async fn put(&self, name: &str, bytes: Bytes) -> Result<(), BlobError>;

    /// Reads the bytes under a name; `None` if there are none.
    ///
    /// # Errors
    /// When they could not be read.
    async fn get(&self, name: &str) -> Result<Option<Bytes>, BlobError>;

    /// Removes the bytes under a name; removing nothing is not an error.
    ///
    /// # Errors
    /// When they could not be removed.
    async fn delete(&self, name: &str) -> Result<(), BlobError>;
}
