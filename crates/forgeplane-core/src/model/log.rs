//! Run logs: ordered bytes of two streams.

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{AttemptId, ProjectId, RunId};

/// Where log bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogStream {
    /// The tool's standard output.
    Stdout,
    /// The tool's standard error.
    Stderr,
    /// The worker itself: which step runs, why it stopped.
    Worker,
}

impl LogStream {
    /// The stream as it travels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Worker => "worker",
        }
    }
}

/// Log bytes of one stream, read together. Any bytes: logs are not always UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFrame {
    /// Where they came from.
    pub stream: LogStream,
    /// When the worker read them (its wall clock, for display).
    pub at: Timestamp,
    /// The bytes, redacted.
    pub bytes: Bytes,
}

/// A stored frame and its place in the attempt's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChunk {
    /// The attempt.
    pub attempt: AttemptId,
    /// The run.
    pub run: RunId,
    /// Tenant.
    pub project: ProjectId,
    /// Bytes of the attempt's log before this chunk.
    pub offset: u64,
    /// The frame.
    pub frame: LogFrame,
}

impl LogChunk {
    /// The offset just after this chunk.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.frame.bytes.len() as u64
    }
}
