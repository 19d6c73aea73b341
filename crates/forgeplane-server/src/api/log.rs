//! Logs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forgeplane_core::coordinator;
use forgeplane_core::model;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Attempt, LogStream};

/// Log bytes of one stream, read together. On `/runs/{id}/log/stream` each is one SSE event named `log`
/// whose `id:` is [`LogFrame::end`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogFrame {
    /// Number of the attempt that wrote them. Offsets count per attempt: who resumes passes `?attempt=` too.
    pub attempt: u32,
    /// Bytes of the attempt's log before these.
    pub offset: u64,
    /// The offset just after these: where to resume.
    pub end: u64,
    /// Where they came from.
    pub stream: LogStream,
    /// When the worker read them (its wall clock).
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The bytes as text; what is not UTF-8 is replaced.
    pub text: String,
    /// The very bytes, base64.
    pub base64: String,
}

impl LogFrame {
    /// The part of a stored chunk from byte `from` on; `None` if nothing of it is left.
    #[must_use]
    pub fn from_chunk(chunk: &model::LogChunk, attempt: u32, from: u64) -> Option<Self> {
        let skip = from.saturating_sub(chunk.offset);
        let bytes = chunk.frame.bytes.get(usize::try_from(skip).ok()?..).filter(|b| !b.is_empty())?;
        Some(Self {
            attempt,
            offset: chunk.offset + skip,
            end: chunk.end(),
            stream: chunk.frame.stream.into(),
            at: chunk.frame.at,
            text: String::from_utf8_lossy(bytes).into_owned(),
            base64: STANDARD.encode(bytes),
        })
    }
}

/// Part of an attempt's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogSlice {
    /// The attempt; absent while the run has none.
    pub attempt: Option<Attempt>,
    /// Frames in order, without gaps.
    pub frames: Vec<LogFrame>,
    /// Give this as `?from=` to read on.
    pub next: u64,
    /// Nothing will follow: the attempt is closed and everything was read.
    pub complete: bool,
}

impl LogSlice {
    /// What the coordinator read for `from`.
    #[must_use]
    pub fn new(slice: coordinator::LogSlice, from: u64) -> Self {
        let number = slice.attempt.as_ref().map_or(0, |a| a.number);
        Self {
            frames: slice.chunks.iter().filter_map(|c| LogFrame::from_chunk(c, number, from)).collect(),
            attempt: slice.attempt.map(Attempt::from),
            next: slice.next,
            complete: slice.complete,
        }
    }
}

/// The last SSE event of a log stream, named `end`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogEnd {
    /// The attempt; absent for a run that ended without one.
    pub attempt: Option<Attempt>,
    /// The length of its log.
    pub next: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_cut_at_the_byte_that_was_asked_for_and_keeps_any_bytes() {
        let now = Timestamp::UNIX_EPOCH;
        let chunk = model::LogChunk {
            attempt: forgeplane_core::id::AttemptId::new(now, [1; 10]),
            run: forgeplane_core::id::RunId::new(now, [1; 10]),
            project: forgeplane_core::id::ProjectId::new(now, [1; 10]),
            offset: 10,
            frame: model::LogFrame {
                stream: model::LogStream::Stderr,
                at: now,
                bytes: bytes::Bytes::from_static(b"ab\xffcd"),
            },
        };
        let whole = LogFrame::from_chunk(&chunk, 1, 0).unwrap();
        assert_eq!((whole.offset, whole.end, whole.text.as_str()), (10, 15, "ab\u{fffd}cd"));
        assert_eq!(STANDARD.decode(&whole.base64).unwrap(), b"ab\xffcd");
        let rest = LogFrame::from_chunk(&chunk, 1, 13).unwrap();
        assert_eq!((rest.offset, rest.end, rest.text.as_str()), (13, 15, "cd"));
        assert_eq!(LogFrame::from_chunk(&chunk, 1, 15), None);
        assert_eq!(LogFrame::from_chunk(&chunk, 1, u64::MAX), None);
    }
}
