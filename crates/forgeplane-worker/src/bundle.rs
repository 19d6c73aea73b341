//! A bundle is believed only after its signature and every digest were checked (faults G5).

use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::BundleManifest;
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::{Job, RunError, Snapshot};
use forgeplane_core::ports::Bundle;

/// A bundle that is what the coordinator signed, for this worker and this job.
pub(crate) struct Verified {
    pub(crate) manifest: BundleManifest,
    pub(crate) snapshot: Snapshot,
    /// Digest of the signed manifest.
    pub(crate) digest: Digest,
    pub(crate) bundle: Bundle,
}

/// Why an attempt does not get as far as a claim.
#[derive(Debug)]
pub(crate) struct NoStart {
    pub(crate) reason: RunError,
    pub(crate) retryable: bool,
}

impl NoStart {
    pub(crate) fn new(code: &str, message: impl Into<String>, retryable: bool) -> Self {
        Self { reason: RunError { code: code.to_owned(), message: message.into() }, retryable }
    }
}

/// Signature under the pinned key first, then every digest.
pub(crate) fn verify(
    coordinator_key: &[u8; 32],
    worker: WorkerId,
    job: &Job,
    bundle: Bundle,
) -> Result<Verified, NoStart> {
    let bad =
        |what: &str| NoStart::new("bundle_refused", format!("the bundle does not verify: {what}"), true);
    let other_plan =
        || NoStart::new("artifact_digest_mismatch", "the plan file is not the one that was approved", false);
    let manifest: BundleManifest =
        bundle.manifest.verify(coordinator_key).map_err(|e| bad(&e.to_string()))?;
    if manifest.attempt != job.attempt || manifest.fence != job.fence || manifest.run != job.run {
        return Err(bad("it is for another attempt"));
    }
    if manifest.worker != worker {
        return Err(bad("it is for another worker"));
    }
    if Digest::of(&bundle.snapshot) != manifest.snapshot {
        return Err(bad("the snapshot has another digest"));
    }
    if Digest::of(&bundle.source) != manifest.source {
        return Err(bad("the source has another digest"));
    }
    let digest = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map(|b| Digest::of(b));
    if digest(&bundle.state) != manifest.state.as_ref().and_then(|s| s.digest) {
        return Err(bad("the state has another digest"));
    }
    if digest(&bundle.lock_file) != manifest.lock_file {
        return Err(bad("the lock file has another digest"));
    }
    if digest(&bundle.plan) != manifest.plan {
        return Err(other_plan());
    }
    let snapshot: Snapshot = serde_json::from_slice(&bundle.snapshot).map_err(|e| bad(&e.to_string()))?;
    if snapshot.run != job.run || snapshot.source != manifest.source {
        return Err(bad("the snapshot is another run's"));
    }
    if snapshot.plan.as_ref().map(|p| p.digest) != manifest.plan {
        return Err(other_plan());
    }
    Ok(Verified { manifest, snapshot, digest: bundle.manifest.digest(), bundle })
}
