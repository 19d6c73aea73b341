//! Uploads in chunks, bounded in size and in how long they may stand still.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forgeplane_core::{Code, Refusal};
use forgeplane_proto::{InvalidMessage, into_status, invalid, v1};
use tonic::{Status, Streaming};

/// How long the next chunk may take.
const IDLE: Duration = Duration::from_secs(60);

/// A chunk of an upload: a header in the first one, bytes in all.
pub(super) trait Chunk {
    type Header;

    fn open(self) -> (Option<Self::Header>, Bytes);
}

impl Chunk for v1::StateChunk {
    type Header = v1::StateHeader;

    fn open(self) -> (Option<Self::Header>, Bytes) {
        (self.header, self.bytes)
    }
}

impl Chunk for v1::ArtifactChunk {
    type Header = v1::ArtifactHeader;

    fn open(self) -> (Option<Self::Header>, Bytes) {
        (self.header, self.bytes)
    }
}

/// Receives an upload whole.
pub(super) async fn receive<C: Chunk>(
    what: &str,
    chunks: &mut Streaming<C>,
    limit: usize,
) -> Result<(C::Header, Bytes), Status> {
    let misplaced = |rule| invalid(&InvalidMessage { field: "header", rule });
    let mut header = None;
    let mut bytes = BytesMut::new();
    while let Some(chunk) = tokio::time::timeout(IDLE, chunks.message())
        .await
        .map_err(|_| Status::deadline_exceeded("the next chunk did not come in time"))??
    {
        let (head, part) = chunk.open();
        match (&header, head) {
            (None, None) => return Err(misplaced("is required in the first chunk")),
            (None, head) => header = head,
            (Some(_), None) => {}
            (Some(_), Some(_)) => return Err(misplaced("is only in the first chunk")),
        }
        if bytes.len() + part.len() > limit {
            let refusal = Refusal::new(
                Code::TooLarge,
                format!("the {what} is larger than the {limit} bytes that are allowed"),
            );
            return Err(into_status(&refusal.into()));
        }
        bytes.extend_from_slice(&part);
    }
    let header = header.ok_or_else(|| misplaced("is required in the first chunk"))?;
    Ok((header, bytes.freeze()))
}
