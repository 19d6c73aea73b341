//! What admission froze.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ApprovalPolicy, Name, Object, Operation, PlanBinding, SecretBinding, Tool};
use crate::digest::Digest;
use crate::id::{InstanceId, ProjectId, RunId, StateObjectId, TemplateId};

/// The frozen context of a run: everything a worker needs to know, and nothing secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The run it belongs to.
    pub run: RunId,
    /// Tenant.
    pub project: ProjectId,
    /// Instance.
    pub instance: InstanceId,
    /// The instance's name at admission.
    pub instance_name: Name,
    /// Template.
    pub template: TemplateId,
    /// Template version.
    pub template_version: u32,
    /// Tool.
    pub tool: Tool,
    /// Operation.
    pub operation: Operation,
    /// Digest of the source bundle.
    pub source: Digest,
    /// Entry point inside the source: the playbook of an Ansible template.
    pub entrypoint: Option<String>,
    /// Resolved non-secret inputs.
    pub inputs: Object,
    /// Resolved secret bindings, by reference and version.
    pub secrets: Vec<SecretBinding>,
    /// Inputs that are in the tool's environment and are no variables of the source: name of the variable, and the
    /// input's path, a JSON pointer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Required pool.
    pub pool: Name,
    /// Execution timeout, seconds.
    pub execution_timeout_s: u64,
    /// Time between the one SIGINT and SIGKILL, seconds.
    pub cancel_grace_s: u64,
    /// How long the tool may print nothing, seconds; absent: as long as it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_output_timeout_s: Option<u64>,
    /// How long the run may wait in the queue, seconds; absent: for ever.
    pub queue_timeout_s: Option<u64>,
    /// Managed state.
    pub state_object: Option<StateObjectId>,
    /// The state generation current at admission (for apply: the plan's); 0 for a state never written.
    pub base_generation: u64,
    /// The plan to apply.
    pub plan: Option<PlanBinding>,
    /// The approval policy in force at admission.
    pub approval: ApprovalPolicy,
}

impl Snapshot {
    /// The canonical bytes: what is stored, digested and signed.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Plain structs with string keys always serialize.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The snapshot's digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&self.to_bytes())
    }

    /// Whether a run of this snapshot waits for approval before anything happens.
    #[must_use]
    pub const fn is_gated(&self) -> bool {
        self.operation.changes_infrastructure() && self.approval.required > 0
    }

    /// The execution timeout.
    #[must_use]
    pub const fn execution_timeout(&self) -> Duration {
        Duration::from_secs(self.execution_timeout_s)
    }

    /// The time between the one SIGINT and SIGKILL.
    #[must_use]
    pub const fn cancel_grace(&self) -> Duration {
        Duration::from_secs(self.cancel_grace_s)
    }
}
