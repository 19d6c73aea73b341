//! Managed state.

use forgeplane_core::digest::Digest;
use forgeplane_core::id::{AttemptId, RunId};
use forgeplane_core::model;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Actor;

/// Who wrote (or tried to write) a state document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StateWriter {
    /// Who.
    pub actor: Actor,
    /// The run, if a run wrote.
    #[schema(value_type = Option<String>)]
    pub run: Option<RunId>,
    /// The attempt, if a run wrote.
    #[schema(value_type = Option<String>)]
    pub attempt: Option<AttemptId>,
    /// Its fence.
    pub fence: Option<u64>,
}

impl From<model::StateWriter> for StateWriter {
    fn from(it: model::StateWriter) -> Self {
        Self { actor: it.actor.into(), run: it.run, attempt: it.attempt, fence: it.fence.map(|f| f.0) }
    }
}

/// One accepted state document. Immutable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StateGeneration {
    /// 1, 2, … without gaps.
    pub generation: u64,
    /// The document's serial.
    pub serial: u64,
    /// The document's lineage.
    pub lineage: String,
    /// The document's digest.
    #[schema(value_type = String)]
    pub digest: Digest,
    /// Its size in bytes.
    pub bytes: u64,
    /// Managed resource instances in it.
    pub resources: u64,
    /// Who wrote it.
    pub writer: StateWriter,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

impl From<model::StateGeneration> for StateGeneration {
    fn from(it: model::StateGeneration) -> Self {
        Self {
            generation: it.generation,
            serial: it.serial,
            lineage: it.lineage,
            digest: it.digest,
            bytes: it.bytes,
            resources: it.resources,
            writer: it.writer.into(),
            at: it.at,
        }
    }
}

/// A refused state document, kept because it may be the only record of created resources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrphanState {
    /// The document's digest.
    #[schema(value_type = String)]
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
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

impl From<model::OrphanState> for OrphanState {
    fn from(it: model::OrphanState) -> Self {
        Self {
            digest: it.digest,
            bytes: it.bytes,
            expected_generation: it.expected_generation,
            head: it.head,
            writer: it.writer.into(),
            reason: it.reason,
            at: it.at,
        }
    }
}
