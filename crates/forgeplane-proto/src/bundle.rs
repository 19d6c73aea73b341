//! A bundle in chunks: nothing is limited by the gRPC message size.

use bytes::{Bytes, BytesMut};
use forgeplane_core::evidence::Envelope;
use forgeplane_core::ports::Bundle;

use crate::convert::InvalidMessage;
use crate::v1::{BundleChunk, BundlePart};

/// The most bytes in one chunk.
pub const CHUNK_BYTES: usize = 256 * 1024;

/// Cuts a bundle into chunks; empty parts that are present have one empty chunk.
pub fn bundle_chunks(bundle: Bundle) -> impl Iterator<Item = BundleChunk> {
    let parts = [
        (BundlePart::Manifest, Some(Bytes::from(bundle.manifest.to_json()))),
        (BundlePart::Snapshot, Some(bundle.snapshot)),
        (BundlePart::Source, Some(bundle.source)),
        (BundlePart::State, bundle.state),
        (BundlePart::Plan, bundle.plan),
        (BundlePart::LockFile, bundle.lock_file),
    ];
    parts.into_iter().filter_map(|(part, bytes)| Some((part, bytes?))).flat_map(|(part, mut bytes)| {
        let mut first = true;
        std::iter::from_fn(move || {
            if bytes.is_empty() && !first {
                return None;
            }
            first = false;
            let chunk = bytes.split_to(bytes.len().min(CHUNK_BYTES));
            Some(BundleChunk { part: part.into(), bytes: chunk })
        })
    })
}

/// Puts a bundle together again.
#[derive(Debug)]
pub struct BundleAssembly {
    parts: [Option<BytesMut>; 6],
    received: usize,
    limit: usize,
}

impl BundleAssembly {
    /// An empty assembly that takes at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { parts: [const { None }; 6], received: 0, limit }
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// For an unknown part, or more bytes than the limit.
    pub fn take(&mut self, chunk: &BundleChunk) -> Result<(), InvalidMessage> {
        let index = match BundlePart::try_from(chunk.part) {
            Ok(BundlePart::Manifest) => 0,
            Ok(BundlePart::Snapshot) => 1,
            Ok(BundlePart::Source) => 2,
            Ok(BundlePart::State) => 3,
            Ok(BundlePart::Plan) => 4,
            Ok(BundlePart::LockFile) => 5,
            _ => return Err(InvalidMessage { field: "part", rule: "is a known bundle part" }),
        };
        self.received += chunk.bytes.len();
        if self.received > self.limit {
            return Err(InvalidMessage { field: "bytes", rule: "stay below the bundle limit" });
        }
        self.parts[index].get_or_insert_with(BytesMut::new).extend_from_slice(&chunk.bytes);
        Ok(())
    }

    /// The whole bundle.
    ///
    /// # Errors
    /// When a required part is missing or the manifest is not an envelope.
    pub fn finish(self) -> Result<Bundle, InvalidMessage> {
        let [manifest, snapshot, source, state, plan, lock_file] =
            self.parts.map(|p| p.map(BytesMut::freeze));
        let missing = |field| InvalidMessage { field, rule: "is a required bundle part" };
        let manifest = manifest.ok_or_else(|| missing("manifest"))?;
        let manifest = std::str::from_utf8(&manifest)
            .ok()
            .and_then(|text| Envelope::from_json(text).ok())
            .ok_or(InvalidMessage { field: "manifest", rule: "is a signed envelope" })?;
        Ok(Bundle {
            manifest,
            snapshot: snapshot.ok_or_else(|| missing("snapshot"))?,
            source: source.ok_or_else(|| missing("source"))?,
            state,
            plan,
            lock_file,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(source: usize) -> Bundle {
        Bundle {
            manifest: Envelope { payload_type: "t".into(), payload: "cA==".into(), signatures: Vec::new() },
            snapshot: Bytes::from_static(b"{}"),
            source: Bytes::from(vec![7; source]),
            state: Some(Bytes::new()),
            plan: None,
            lock_file: Some(Bytes::from_static(b"lock")),
        }
    }

    #[test]
    fn t092_a_large_bundle_travels_in_small_messages_and_arrives_whole() {
        let sent = bundle(3 * CHUNK_BYTES + 1);
        let mut assembly = BundleAssembly::new(usize::MAX);
        let mut count = 0;
        for chunk in bundle_chunks(sent.clone()) {
            assert!(chunk.bytes.len() <= CHUNK_BYTES);
            assembly.take(&chunk).unwrap();
            count += 1;
        }
        assert_eq!(count, 1 + 1 + 4 + 1 + 1);
        let got = assembly.finish().unwrap();
        assert_eq!((got.manifest, got.source, got.state), (sent.manifest, sent.source, sent.state));
        assert_eq!((got.plan, got.lock_file), (None, sent.lock_file));
    }

    #[test]
    fn a_bundle_above_the_limit_or_without_a_part_is_refused() {
        let mut assembly = BundleAssembly::new(10);
        let refused = bundle_chunks(bundle(100)).map(|c| assembly.take(&c)).find(Result::is_err);
        assert_eq!(refused.unwrap().unwrap_err().field, "bytes");
        assert_eq!(BundleAssembly::new(10).finish().unwrap_err().field, "manifest");
        let unknown = BundleChunk { part: 99, bytes: Bytes::new() };
        assert_eq!(BundleAssembly::new(10).take(&unknown).unwrap_err().field, "part");
    }
}
