//! Why a command could not be started or watched.

use std::io;
use std::path::PathBuf;

/// What went wrong around a sandboxed command. A command that ran and failed is not an error: see
/// [`Exit`](super::Exit).
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// UID isolation was asked for by a process that is not root.
    #[error("UID isolation needs root; start the worker as root, or choose the unsafe local mode explicitly")]
    NotRoot,
    /// The IaC or reaper ids cannot be used.
    #[error("the isolation ids cannot be used: {reason}")]
    InvalidIds {
        /// Which rule the ids break.
        reason: &'static str,
    },
    /// No helper was named and this program never called [`run_if_helper`](super::run_if_helper).
    #[error(
        "no sandbox helper: call forgeplane_worker::sandbox::run_if_helper() first thing in main, or name a helper executable"
    )]
    HelperUnavailable,
    /// The helper executable cannot be used.
    #[error("the sandbox helper {path} cannot be used: {source}")]
    HelperMissing {
        /// Where it was looked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The command itself is malformed.
    #[error("the command cannot be run: {reason}")]
    InvalidCommand {
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// A step of the setup failed; the tool never ran.
    #[error("the sandbox could not be set up, step {step}: {}", io::Error::from_raw_os_error(*.errno))]
    HelperFailed {
        /// The step, e.g. `chdir`, `setresuid` or `execve`.
        step: String,
        /// The system's error number.
        errno: i32,
    },
    /// The helper ended without a word; the tool never ran.
    #[error("the sandbox helper ended before it could start the tool; was it killed?")]
    HelperDied,
    /// The helper process could not be started.
    #[error("the sandbox helper could not be started: {0}")]
    Spawn(#[source] io::Error),
    /// The command was started, but its end cannot be observed.
    #[error("the command cannot be waited for ({0}); does something else in this process reap children?")]
    Lost(#[source] io::Error),
}

impl SandboxError {
    /// The stable machine code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotRoot => "not_root",
            Self::InvalidIds { .. } => "invalid_ids",
            Self::HelperUnavailable => "helper_unavailable",
            Self::HelperMissing { .. } => "helper_missing",
            Self::InvalidCommand { .. } => "invalid_command",
            Self::HelperFailed { .. } => "helper_failed",
            Self::HelperDied => "helper_died",
            Self::Spawn(_) => "spawn_failed",
            Self::Lost(_) => "lost",
        }
    }

    /// Whether the same call may succeed later without a change to the command or the configuration.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::HelperDied | Self::Spawn(_))
    }
}
