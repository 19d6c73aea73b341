//! Why a worker cannot start or go on.

use std::io;
use std::path::PathBuf;

use forgeplane_core::model::Tool;
use forgeplane_core::ports::{ControlError, QueueError};

use crate::sandbox::SandboxError;
use crate::uid_lock::UidLockError;

/// Why a worker cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Tools cannot be isolated here.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Another worker of this host uses the IaC user id.
    #[error(transparent)]
    UidLock(#[from] UidLockError),
    /// Processes of the IaC user id survive every kill.
    #[error(
        "processes of the IaC user id cannot be killed; restart the machine before this worker takes work"
    )]
    DirtyUid,
    /// A tool that was configured is not there.
    #[error("tool `{tool}` is configured as {}, which is not an executable file", .path.display())]
    ToolMissing {
        /// Which tool.
        tool: Tool,
        /// Where it should be.
        path: PathBuf,
    },
    /// A tool that was configured does not tell its version.
    #[error("tool `{tool}` at {} does not answer a version check: {reason}", .path.display())]
    ToolCheckFailed {
        /// Which tool.
        tool: Tool,
        /// Where it is.
        path: PathBuf,
        /// What it did instead.
        reason: String,
    },
    /// A tool was configured that nothing here can run.
    #[error("tool `{tool}` is configured, but this worker has no executor for it")]
    NoExecutor {
        /// Which tool.
        tool: Tool,
    },
    /// A directory or file of the worker cannot be used.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another worker uses the same state directory.
    #[error("{} is in use by another worker; give each worker a state directory of its own", .path.display())]
    StateDirInUse {
        /// Which one.
        path: PathBuf,
    },
    /// A file of the worker's state does not hold what it should.
    #[error("{}: {reason}", .path.display())]
    StateCorrupt {
        /// Which one.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The coordinator signs with another key than the one pinned at enrollment.
    #[error("the coordinator's key is not the one pinned at enrollment: this is another coordinator, or somebody between; to accept it, remove {}", .pin.display())]
    CoordinatorChanged {
        /// The file with the pinned key.
        pin: PathBuf,
    },
    /// The coordinator refuses this worker.
    #[error("the coordinator refuses this worker: {0}")]
    Control(#[from] ControlError),
    /// The queue cannot be used.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl WorkerError {
    /// Stable machine code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Sandbox(error) => error.code(),
            Self::UidLock(error) => error.code(),
            Self::DirtyUid => "dirty_uid",
            Self::ToolMissing { .. } => "tool_missing",
            Self::NoExecutor { .. } => "no_executor",
            Self::ToolCheckFailed { .. } => "tool_check_failed",
            Self::Io { .. } => "worker_io",
            Self::StateDirInUse { .. } => "state_dir_in_use",
            Self::StateCorrupt { .. } => "worker_state_corrupt",
            Self::CoordinatorChanged { .. } => "coordinator_changed",
            Self::Control(ControlError::Refused(refusal)) => refusal.code.as_str(),
            Self::Control(ControlError::Unavailable(_)) => "coordinator_unavailable",
            Self::Queue(_) => "queue_unavailable",
        }
    }
}

/// Says which path an IO error is about.
pub(crate) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> WorkerError {
    let path = path.into();
    move |source| WorkerError::Io { path, source }
}
