//! State documents that could not be delivered. They may be the only record of what was created.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forgeplane_core::model::Fence;

use crate::durable;
use crate::error::{WorkerError, at};
use crate::host::Disk;

/// The directory they are kept in, for an operator to push from.
#[derive(Clone)]
pub(crate) struct Unsaved {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
}

impl Unsaved {
    pub(crate) fn open(disk: Arc<dyn Disk>, state_dir: &Path) -> Result<Self, WorkerError> {
        let directory = state_dir.join("unsaved");
        durable::private_dir(&*disk, &directory).map_err(at(&directory))?;
        Ok(Self { disk, directory })
    }

    /// Where the document of an attempt is, if there is one.
    pub(crate) fn state_of(&self, fence: Fence) -> PathBuf {
        self.directory.join(format!("{fence}.tfstate"))
    }

    /// Keeps an attempt's document; on disk when this returns.
    pub(crate) fn keep(&self, fence: Fence, document: &[u8]) -> Result<PathBuf, WorkerError> {
        let path = self.state_of(fence);
        durable::replace(&*self.disk, &path, document).map_err(at(&path))?;
        Ok(path)
    }

    /// It was delivered after all.
    pub(crate) fn forget(&self, fence: Fence) -> Result<(), WorkerError> {
        let path = self.state_of(fence);
        durable::remove(&*self.disk, &path).map_err(at(&path))
    }
}
