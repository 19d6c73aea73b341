//! State documents that could not be delivered. They may be the only record of what was created.

use std::path::{Path, PathBuf};

use forgeplane_core::model::Fence;

use crate::durable;
use crate::error::{WorkerError, at};

/// The directory they are kept in, for an operator to push from.
#[derive(Debug, Clone)]
pub(crate) struct Unsaved(PathBuf);

impl Unsaved {
    pub(crate) fn open(state_dir: &Path) -> Result<Self, WorkerError> {
        let directory = state_dir.join("unsaved");
        durable::private_dir(&directory).map_err(at(&directory))?;
        Ok(Self(directory))
    }

    /// Where the document of an attempt is, if there is one.
    pub(crate) fn state_of(&self, fence: Fence) -> PathBuf {
        self.0.join(format!("{fence}.tfstate"))
    }

    /// Keeps an attempt's document; on disk when this returns.
    pub(crate) fn keep(&self, fence: Fence, document: &[u8]) -> Result<PathBuf, WorkerError> {
        let path = self.state_of(fence);
        durable::replace(&path, document).map_err(at(&path))?;
        Ok(path)
    }

    /// It was delivered after all.
    pub(crate) fn forget(&self, fence: Fence) -> Result<(), WorkerError> {
        let path = self.state_of(fence);
        durable::remove(&path).map_err(at(&path))
    }
}
