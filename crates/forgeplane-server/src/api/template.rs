//! Templates.

use forgeplane_core::coordinator;
use forgeplane_core::digest::Digest;
use forgeplane_core::id::TemplateId;
use forgeplane_core::model::{self, Name, Object};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{Actor, ApprovalPolicy, Tool};

/// A template version to push: the `metadata` part of the upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushTemplate {
    /// The template's name; a new name makes a new template.
    #[schema(value_type = String, example = "network")]
    pub name: Name,
    /// The tool; the same for all versions.
    pub tool: Tool,
    /// Entry point inside the source: the playbook of an Ansible template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
    /// JSON Schema of the inputs; absent: any object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Input defaults.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    #[schema(value_type = Object)]
    pub defaults: Object,
    /// Required pool; `default` unless given.
    #[serde(default = "default_pool")]
    #[schema(value_type = String)]
    pub pool: Name,
    /// Execution timeout, seconds; one hour unless given.
    #[serde(default = "default_execution_timeout_s")]
    pub execution_timeout_s: u64,
    /// The longest timeout a run may ask for, seconds; absent: the execution timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_execution_timeout_s: Option<u64>,
    /// How long the tool may print nothing, seconds; absent: as long as it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_output_timeout_s: Option<u64>,
    /// How long a run may wait in the queue, seconds; absent: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_timeout_s: Option<u64>,
    /// Time between SIGINT and SIGKILL, seconds; 60 unless given.
    #[serde(default = "default_cancel_grace_s")]
    pub cancel_grace_s: u64,
    /// Who must approve runs that change infrastructure; absent: one reviewer who is not the requester.
    #[serde(default)]
    pub approval: ApprovalPolicy,
}

/// The pool of a template that names none.
///
/// # Panics
/// Never: the literal is a valid name.
#[allow(clippy::expect_used)]
fn default_pool() -> Name {
    // The literal satisfies the name's alphabet; a test holds it.
    "default".parse().expect("`default` is a valid name")
}

const fn default_execution_timeout_s() -> u64 {
    3600
}

const fn default_cancel_grace_s() -> u64 {
    60
}

/// The upload of a template version. Parts may come in either order.
#[derive(Debug, ToSchema)]
#[allow(dead_code)] // Only the shape of the form in the OpenAPI document.
pub struct PushTemplateForm {
    /// What to push, as `application/json`.
    metadata: PushTemplate,
    /// The tar.gz source, as `application/gzip`.
    #[schema(value_type = String, format = Binary, content_media_type = "application/gzip")]
    source: Vec<u8>,
}

impl PushTemplate {
    /// The coordinator's command.
    #[must_use]
    pub fn with_source(self, source: bytes::Bytes) -> coordinator::PushTemplate {
        coordinator::PushTemplate {
            name: self.name,
            tool: self.tool.into(),
            source,
            entrypoint: self.entrypoint,
            schema: self.schema,
            defaults: self.defaults,
            pool: self.pool,
            execution_timeout_s: self.execution_timeout_s,
            max_execution_timeout_s: self.max_execution_timeout_s,
            no_output_timeout_s: self.no_output_timeout_s,
            queue_timeout_s: self.queue_timeout_s,
            cancel_grace_s: self.cancel_grace_s,
            approval: self.approval.into(),
        }
    }
}

/// A template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// Its id.
    #[schema(value_type = String)]
    pub id: TemplateId,
    /// Unique in the project.
    #[schema(value_type = String)]
    pub name: Name,
    /// The newest version.
    pub latest: u32,
    /// When the first version was pushed.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

impl From<model::Template> for Template {
    fn from(it: model::Template) -> Self {
        Self { id: it.id, name: it.name, latest: it.latest, created_at: it.created_at }
    }
}

/// One immutable version of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateVersion {
    /// 1, 2, …
    pub version: u32,
    /// The tool.
    pub tool: Tool,
    /// Digest of the source bundle.
    #[schema(value_type = String)]
    pub source: Digest,
    /// Its size in bytes.
    pub source_bytes: u64,
    /// Entry point inside the source.
    pub entrypoint: Option<String>,
    /// JSON Schema of the inputs.
    #[schema(value_type = Object)]
    pub schema: Value,
    /// Input defaults.
    #[schema(value_type = Object)]
    pub defaults: Object,
    /// Required pool.
    #[schema(value_type = String)]
    pub pool: Name,
    /// Execution timeout, seconds.
    pub execution_timeout_s: u64,
    /// The longest timeout a run may ask for, seconds.
    pub max_execution_timeout_s: u64,
    /// How long the tool may print nothing, seconds; absent: as long as it runs.
    pub no_output_timeout_s: Option<u64>,
    /// How long a run may wait in the queue, seconds; absent: for ever.
    pub queue_timeout_s: Option<u64>,
    /// Time between SIGINT and SIGKILL, seconds.
    pub cancel_grace_s: u64,
    /// Who must approve runs that change infrastructure.
    pub approval: ApprovalPolicy,
    /// When it was pushed.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Who pushed it.
    pub created_by: Actor,
}

impl From<model::TemplateVersion> for TemplateVersion {
    fn from(it: model::TemplateVersion) -> Self {
        Self {
            version: it.version,
            tool: it.tool.into(),
            source: it.source,
            source_bytes: it.source_bytes,
            entrypoint: it.entrypoint,
            schema: it.schema,
            defaults: it.defaults,
            pool: it.pool,
            execution_timeout_s: it.execution_timeout_s,
            max_execution_timeout_s: it.max_execution_timeout_s,
            no_output_timeout_s: it.no_output_timeout_s,
            queue_timeout_s: it.queue_timeout_s,
            cancel_grace_s: it.cancel_grace_s,
            approval: it.approval.into(),
            created_at: it.created_at,
            created_by: it.created_by.into(),
        }
    }
}

/// A template and one of its versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateDetail {
    /// The template.
    pub template: Template,
    /// The version that was asked for, the newest one otherwise.
    pub version: TemplateVersion,
}

impl From<coordinator::TemplateView> for TemplateDetail {
    fn from(view: coordinator::TemplateView) -> Self {
        Self { template: view.template.into(), version: view.version.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimal_push_gets_the_documented_defaults() {
        let push: PushTemplate = serde_json::from_str(r#"{"name":"net","tool":"opentofu"}"#).unwrap();
        assert_eq!(
            (push.pool.as_str(), push.execution_timeout_s, push.cancel_grace_s),
            ("default", 3600, 60)
        );
        assert_eq!(push.approval.required, 1);
        assert!(serde_json::from_str::<PushTemplate>(r#"{"name":"net","tool":"tofu","id":"x"}"#).is_err());
    }
}
