//! Blob stores on top of [`object_store`]: a local directory, or anything that crate speaks to.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use forgeplane_blobs::ObjectBlobs;
//! use forgeplane_core::ports::BlobStore;
//!
//! let dir = tempfile::tempdir().unwrap();
//! let blobs = ObjectBlobs::local(dir.path().join("blobs")).unwrap();
//! blobs.put("source/abc", "sealed".into()).await.unwrap();
//! assert_eq!(blobs.get("source/abc").await.unwrap().unwrap(), "sealed");
//! # });
//! ```
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forgeplane_core::ports::{BlobError, BlobStore};
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt as _};

/// Sealed bytes in an object store.
#[derive(Debug, Clone)]
pub struct ObjectBlobs {
    objects: Arc<dyn ObjectStore>,
    /// For local files: where they are, so that they can be made durable.
    directory: Option<PathBuf>,
}

fn error(source: impl std::error::Error + Send + Sync + 'static) -> BlobError {
    BlobError(Box::new(source))
}

impl ObjectBlobs {
    /// A directory, made (0700) if need be.
    ///
    /// # Errors
    /// When it cannot be made or used.
    pub fn local(directory: impl AsRef<Path>) -> Result<Self, BlobError> {
        use std::os::unix::fs::DirBuilderExt as _;
        let directory = directory.as_ref();
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(error)?;
        let directory = directory.canonicalize().map_err(error)?;
        let objects = LocalFileSystem::new_with_prefix(&directory).map_err(error)?;
        Ok(Self { objects: Arc::new(objects), directory: Some(directory) })
    }

    /// Any object store whose `put` is durable when it returns.
    #[must_use]
    pub fn new(objects: Arc<dyn ObjectStore>) -> Self {
        Self { objects, directory: None }
    }

    /// The local file system answers `put` after a rename, which a power loss can undo: sync the file and
    /// every directory up to the root.
    async fn make_durable(&self, name: &str) -> Result<(), BlobError> {
        let Some(root) = self.directory.clone() else { return Ok(()) };
        let file = root.join(name);
        let synced = tokio::task::spawn_blocking(move || {
            std::fs::File::open(&file)?.sync_all()?;
            for directory in file.ancestors().skip(1).take_while(|d| d.starts_with(&root)) {
                std::fs::File::open(directory)?.sync_all()?;
            }
            Ok::<_, std::io::Error>(())
        });
        synced.await.map_err(error)?.map_err(error)
    }
}

#[async_trait]
impl BlobStore for ObjectBlobs {
    async fn put(&self, name: &str, bytes: Bytes) -> Result<(), BlobError> {
        self.objects.put(&ObjectPath::parse(name).map_err(error)?, bytes.into()).await.map_err(error)?;
        self.make_durable(name).await
    }

    async fn get(&self, name: &str) -> Result<Option<Bytes>, BlobError> {
        match self.objects.get(&ObjectPath::parse(name).map_err(error)?).await {
            Ok(found) => found.bytes().await.map(Some).map_err(error),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(other) => Err(error(other)),
        }
    }

    async fn delete(&self, name: &str) -> Result<(), BlobError> {
        match self.objects.delete(&ObjectPath::parse(name).map_err(error)?).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(other) => Err(error(other)),
        }
    }
}
