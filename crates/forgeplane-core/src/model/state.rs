//! Managed Terraform/OpenTofu state: one object per instance, immutable generations.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Actor, Fence};
use crate::digest::Digest;
use crate::id::{AttemptId, InstanceId, ProjectId, RunId, StateObjectId};

/// The managed state of an instance. Its head moves only by compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateObject {
    /// Its id.
    pub id: StateObjectId,
    /// Tenant.
    pub project: ProjectId,
    /// Its instance.
    pub instance: InstanceId,
    /// Current generation; 0 before the first write.
    pub head: u64,
    /// Lineage of the current document.
    pub lineage: Option<String>,
    /// Serial of the current document.
    pub serial: u64,
    /// Digest of the current document.
    pub digest: Option<Digest>,
    /// The run whose attempts wrote the current generation.
    pub head_run: Option<RunId>,
    /// The highest fence that ever wrote.
    pub high_water: Fence,
    /// Torn down; no further writes.
    pub archived: bool,
}

/// Who wrote a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateWriter {
    /// Who.
    pub actor: Actor,
    /// The run, if a run wrote.
    pub run: Option<RunId>,
    /// The attempt, if a run wrote.
    pub attempt: Option<AttemptId>,
    /// Its fence.
    pub fence: Option<Fence>,
}

/// One accepted state document. Immutable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateGeneration {
    /// The state object.
    pub object: StateObjectId,
    /// Tenant.
    pub project: ProjectId,
    /// 1, 2, … without gaps.
    pub generation: u64,
    /// The document's serial.
    pub serial: u64,
    /// The document's lineage.
    pub lineage: String,
    /// The document's digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub bytes: u64,
    /// Managed resource instances in it.
    pub resources: u64,
    /// Who wrote it.
    pub writer: StateWriter,
    /// When.
    pub at: Timestamp,
}

/// A refused state document, kept because it may be the only record of created resources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanState {
    /// The state object it was meant for.
    pub object: StateObjectId,
    /// Tenant.
    pub project: ProjectId,
    /// The document's digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub bytes: u64,
    /// The generation the writer built on.
    pub expected_generation: u64,
    /// The generation that was current.
    pub head: u64,
    /// Who tried to write it.
    pub writer: StateWriter,
    /// The refusal's code.
    pub reason: String,
    /// When.
    pub at: Timestamp,
}
