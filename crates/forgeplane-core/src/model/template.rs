//! Templates and their immutable versions.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Actor, ApprovalPolicy, Name, Object, Tool};
use crate::digest::Digest;
use crate::id::{ProjectId, TemplateId};

/// A named, versioned template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Its id.
    pub id: TemplateId,
    /// Tenant.
    pub project: ProjectId,
    /// Unique in the project.
    pub name: Name,
    /// The newest version.
    pub latest: u32,
    /// When the first version was pushed.
    pub created_at: Timestamp,
}

/// One immutable version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateVersion {
    /// The template.
    pub template: TemplateId,
    /// Tenant.
    pub project: ProjectId,
    /// 1, 2, …
    pub version: u32,
    /// The tool.
    pub tool: Tool,
    /// Digest of the tar.gz source bundle.
    pub source: Digest,
    /// Its size in bytes.
    pub source_bytes: u64,
    /// Entry point inside the source: the playbook of an Ansible template.
    pub entrypoint: Option<String>,
    /// JSON Schema of the inputs.
    pub schema: Value,
    /// Input defaults.
    pub defaults: Object,
    /// Pool its runs need unless the instance says otherwise.
    pub pool: Name,
    /// Execution timeout, seconds.
    pub execution_timeout_s: u64,
    /// The longest timeout a run may ask for, seconds.
    pub max_execution_timeout_s: u64,
    /// How long the tool may print nothing, seconds; absent: as long as it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_output_timeout_s: Option<u64>,
    /// How long a run may wait in the queue, seconds; absent: for ever.
    pub queue_timeout_s: Option<u64>,
    /// Time between SIGINT and SIGKILL, seconds.
    pub cancel_grace_s: u64,
    /// Who must approve state-changing runs.
    pub approval: ApprovalPolicy,
    /// When it was pushed.
    pub created_at: Timestamp,
    /// Who pushed it.
    pub created_by: Actor,
}
