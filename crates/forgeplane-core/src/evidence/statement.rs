//! The statements that get signed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Statement;
use super::dsse::pre_authentication_encoding;
use crate::digest::Digest;
use crate::id::{AttemptId, ProjectId, RunId, StateObjectId, WorkerId};
use crate::model::{ArtifactKind, Fence, Nonce, OutcomeKind, PlanSummary, RunError, StopCause, Tool};

/// What the coordinator hands to a worker, by digest. Signed by the coordinator. It has no timestamp, so
/// the same attempt always has the same manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleManifest {
    /// Tenant.
    pub project: ProjectId,
    /// The run.
    pub run: RunId,
    /// The attempt.
    pub attempt: AttemptId,
    /// Its number.
    pub number: u32,
    /// Its fence.
    pub fence: Fence,
    /// The worker it is for.
    pub worker: WorkerId,
    /// Digest of the snapshot's canonical bytes.
    pub snapshot: Digest,
    /// Digest of the source.
    pub source: Digest,
    /// The state object, its generation and the digest of the document (absent while there is none).
    pub state: Option<StateRef>,
    /// Digest of the plan file to apply.
    pub plan: Option<Digest>,
    /// Digest of the lock file.
    pub lock_file: Option<Digest>,
}

/// A state generation, by digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateRef {
    /// The state object.
    pub object: StateObjectId,
    /// The generation; 0 before the first write.
    pub generation: u64,
    /// The document's digest.
    pub digest: Option<Digest>,
}

impl Statement for BundleManifest {
    const PAYLOAD_TYPE: &'static str = "application/vnd.forgeplane.bundle.v1+json";
}

/// The tool that ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolIdentity {
    /// Which tool.
    pub tool: Tool,
    /// Its version as it reports it.
    pub version: String,
    /// Digest of the executable.
    pub digest: Digest,
}

/// Whether every process of the run is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cleanup {
    /// None is left.
    Clean,
    /// At least one could not be killed; the worker takes no more work.
    Dirty,
    /// The worker ran in the explicit local development mode, which cannot tell.
    Unverified,
}

/// The terminal statement of an attempt. Signed by the worker; holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Tenant.
    pub project: ProjectId,
    /// The run.
    pub run: RunId,
    /// The attempt.
    pub attempt: AttemptId,
    /// Its number.
    pub number: u32,
    /// Its fence.
    pub fence: Fence,
    /// The claim's nonce.
    pub nonce: Nonce,
    /// The worker.
    pub worker: WorkerId,
    /// The snapshot it executed.
    pub snapshot: Digest,
    /// Digest of the signed bundle manifest it executed.
    pub bundle: Digest,
    /// The plan file it applied.
    pub plan: Option<Digest>,
    /// What happened.
    pub outcome: OutcomeKind,
    /// Whether the tool was started.
    pub started: bool,
    /// The deciding command's exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The stop the worker acted on first.
    pub stop: Option<StopCause>,
    /// The tool was killed.
    pub forced: bool,
    /// The worker cannot tell what the tool changed.
    pub effects_unknown: bool,
    /// The tool that ran.
    pub tool: Option<ToolIdentity>,
    /// How long it ran, milliseconds of a monotonic clock.
    pub duration_ms: u64,
    /// The last state generation it wrote.
    pub generation: Option<u64>,
    /// Digest of that document.
    pub state: Option<Digest>,
    /// Length of the log.
    pub log_bytes: u64,
    /// Digest of the log.
    pub log: Digest,
    /// The log is not complete at the coordinator.
    pub log_incomplete: bool,
    /// Published files.
    pub artifacts: BTreeMap<ArtifactKind, Digest>,
    /// What was planned or applied.
    pub summary: Option<PlanSummary>,
    /// Whether anything was left behind.
    pub cleanup: Cleanup,
    /// Why it did not succeed.
    pub error: Option<RunError>,
}

impl Statement for Outcome {
    const PAYLOAD_TYPE: &'static str = "application/vnd.forgeplane.outcome.v1+json";
}

/// "The tool never ran for this fence, and never will for this nonce."
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotStarted {
    /// Tenant.
    pub project: ProjectId,
    /// The run.
    pub run: RunId,
    /// The attempt.
    pub attempt: AttemptId,
    /// Its fence.
    pub fence: Fence,
    /// The intent's nonce; absent if no intent was journaled. A claim by another nonce is not affected
    /// (rule H1 of `protocol.md`).
    pub nonce: Option<Nonce>,
    /// The worker.
    pub worker: WorkerId,
    /// Why: `worker_restarted`, `dirty_uid`, `bundle_refused`, `tool_missing`, `workspace_failed`.
    pub reason: RunError,
    /// Another attempt may do better.
    pub retryable: bool,
}

impl Statement for NotStarted {
    const PAYLOAD_TYPE: &'static str = "application/vnd.forgeplane.not-started.v1+json";
}

/// A worker replaces its key. Signed by both keys, the old one first: the old one says who, the new one that it is
/// possessed (`protocol.md` 1.8).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRotation {
    /// The worker.
    pub worker: WorkerId,
    /// The key to retire.
    pub old_key: Digest,
    /// The public key that takes its place, hex.
    pub new_key: String,
}

impl Statement for KeyRotation {
    const PAYLOAD_TYPE: &'static str = "application/vnd.forgeplane.key-rotation.v1+json";
}

/// What a registering worker signs: the challenge, bound to its name and pool.
#[must_use]
pub fn registration_message(challenge: &str, name: &str, pool: &str) -> Vec<u8> {
    let payload = format!("{challenge}\n{name}\n{pool}");
    pre_authentication_encoding("application/vnd.forgeplane.registration.v1", payload.as_bytes())
}
