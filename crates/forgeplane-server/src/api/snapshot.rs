//! What admission froze, and what a plan published.

use std::collections::BTreeMap;

use forgeplane_core::digest::Digest;
use forgeplane_core::id::{AttemptId, TemplateId};
use forgeplane_core::model::{self, Name, Object};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ApprovalPolicy, PlanSummary};

/// A resolved secret binding, by reference and version; never the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretBinding {
    /// The input path, a JSON pointer.
    pub path: String,
    /// The secret's name.
    #[schema(value_type = String)]
    pub name: Name,
    /// The version.
    pub version: u32,
}

/// What admission froze.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its digest; approvals and signed outcomes name it.
    #[schema(value_type = String)]
    pub digest: Digest,
    /// The instance's name at admission.
    #[schema(value_type = String)]
    pub instance_name: Name,
    /// Template.
    #[schema(value_type = String)]
    pub template: TemplateId,
    /// Template version.
    pub template_version: u32,
    /// Digest of the source bundle.
    #[schema(value_type = String)]
    pub source: Digest,
    /// Entry point inside the source.
    pub entrypoint: Option<String>,
    /// Resolved non-secret inputs.
    #[schema(value_type = Object)]
    pub inputs: Object,
    /// Resolved secret bindings.
    pub secrets: Vec<SecretBinding>,
    /// Inputs that are in the tool's environment: name of the variable, and the input's path.
    pub environment: BTreeMap<String, String>,
    /// Execution timeout, seconds.
    pub execution_timeout_s: u64,
    /// Time between SIGINT and SIGKILL, seconds.
    pub cancel_grace_s: u64,
    /// How long the tool may print nothing, seconds; absent: as long as it runs.
    pub no_output_timeout_s: Option<u64>,
    /// How long the run may wait in the queue, seconds; absent: for ever.
    pub queue_timeout_s: Option<u64>,
    /// The state generation current at admission (for apply: the plan's).
    pub base_generation: u64,
    /// The approval policy in force at admission.
    pub approval: ApprovalPolicy,
}

impl From<model::Snapshot> for Snapshot {
    fn from(it: model::Snapshot) -> Self {
        let binding =
            |b: model::SecretBinding| SecretBinding { path: b.path, name: b.name, version: b.version };
        Self {
            digest: it.digest(),
            instance_name: it.instance_name,
            template: it.template,
            template_version: it.template_version,
            source: it.source,
            entrypoint: it.entrypoint,
            inputs: it.inputs,
            secrets: it.secrets.into_iter().map(binding).collect(),
            environment: it.environment,
            execution_timeout_s: it.execution_timeout_s,
            cancel_grace_s: it.cancel_grace_s,
            no_output_timeout_s: it.no_output_timeout_s,
            queue_timeout_s: it.queue_timeout_s,
            base_generation: it.base_generation,
            approval: it.approval.into(),
        }
    }
}

/// What a succeeded plan published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanArtifact {
    /// The attempt that published it.
    #[schema(value_type = String)]
    pub attempt: AttemptId,
    /// Digest of the plan file: what approval approves and apply applies.
    #[schema(value_type = String)]
    pub plan: Digest,
    /// Whether `/runs/{id}/plan` has a text.
    pub has_text: bool,
    /// Whether `/runs/{id}/plan.json` has a document.
    pub has_json: bool,
    /// The state generation it was made from.
    pub base_generation: u64,
    /// What it would do.
    pub summary: PlanSummary,
    /// When it was published.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

impl From<model::PlanArtifact> for PlanArtifact {
    fn from(it: model::PlanArtifact) -> Self {
        Self {
            attempt: it.attempt,
            plan: it.plan,
            has_text: it.text.is_some(),
            has_json: it.json.is_some(),
            base_generation: it.base_generation,
            summary: it.summary.into(),
            at: it.at,
        }
    }
}
