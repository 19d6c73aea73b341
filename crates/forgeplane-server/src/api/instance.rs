//! Instances.

use std::collections::BTreeMap;

use forgeplane_core::coordinator;
use forgeplane_core::digest::Digest;
use forgeplane_core::id::{InstanceId, RunId, StateObjectId, TemplateId};
use forgeplane_core::model::{self, Name, Object};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{Actor, Tool};

/// An instance to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewInstance {
    /// Its name.
    #[schema(value_type = String, example = "prod-network")]
    pub name: Name,
    /// Template name or id.
    pub template: String,
    /// Template version; absent: the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_version: Option<u32>,
    /// Inputs over the template's defaults.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    #[schema(value_type = Object)]
    pub inputs: Object,
    /// Secret bindings: input path (JSON pointer) to catalog secret name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub secrets: BTreeMap<String, Name>,
    /// Pool override.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub pool: Option<Name>,
}

impl From<NewInstance> for coordinator::NewInstance {
    fn from(new: NewInstance) -> Self {
        Self {
            name: new.name,
            template: new.template,
            template_version: new.template_version,
            inputs: new.inputs,
            secrets: new.secrets,
            pool: new.pool,
        }
    }
}

/// The head of an instance's managed state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StateHead {
    /// The state object.
    #[schema(value_type = String)]
    pub id: StateObjectId,
    /// Current generation; 0 before the first write.
    pub generation: u64,
    /// Serial of the current document.
    pub serial: u64,
    /// Lineage of the current document.
    pub lineage: Option<String>,
    /// Digest of the current document.
    #[schema(value_type = Option<String>)]
    pub digest: Option<Digest>,
    /// The run that wrote it.
    #[schema(value_type = Option<String>)]
    pub run: Option<RunId>,
    /// Torn down; no further writes.
    pub archived: bool,
}

impl From<model::StateObject> for StateHead {
    fn from(it: model::StateObject) -> Self {
        Self {
            id: it.id,
            generation: it.head,
            serial: it.serial,
            lineage: it.lineage,
            digest: it.digest,
            run: it.head_run,
            archived: it.archived,
        }
    }
}

/// One deployment of a template version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Instance {
    /// Its id.
    #[schema(value_type = String)]
    pub id: InstanceId,
    /// Unique in the project.
    #[schema(value_type = String)]
    pub name: Name,
    /// The template's id.
    #[schema(value_type = String)]
    pub template: TemplateId,
    /// The template's name.
    #[schema(value_type = String)]
    pub template_name: Name,
    /// The version it deploys.
    pub template_version: u32,
    /// The tool.
    pub tool: Tool,
    /// Non-secret inputs, over the template's defaults.
    #[schema(value_type = Object)]
    pub inputs: Object,
    /// Secret bindings: input path to catalog secret name.
    #[schema(value_type = BTreeMap<String, String>)]
    pub secrets: BTreeMap<String, Name>,
    /// Pool override.
    #[schema(value_type = Option<String>)]
    pub pool: Option<Name>,
    /// Managed state, for tools that have it.
    pub state: Option<StateHead>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Who created it.
    pub created_by: Actor,
    /// The run that tore it down.
    #[schema(value_type = Option<String>)]
    pub torn_down_by: Option<RunId>,
}

impl From<coordinator::InstanceView> for Instance {
    fn from(view: coordinator::InstanceView) -> Self {
        let it = view.instance;
        Self {
            id: it.id,
            name: it.name,
            template: it.template,
            template_name: view.template_name,
            template_version: it.template_version,
            tool: it.tool.into(),
            inputs: it.inputs,
            secrets: it.secrets,
            pool: it.pool,
            state: view.state.map(StateHead::from),
            created_at: it.created_at,
            created_by: it.created_by.into(),
            torn_down_by: it.torn_down_by,
        }
    }
}

/// An output value of the current state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Whether the configuration marks it as sensitive.
    pub sensitive: bool,
    /// The value; absent if it is sensitive.
    pub value: Option<Value>,
}

impl From<coordinator::Output> for Output {
    fn from(it: coordinator::Output) -> Self {
        Self { name: it.name, sensitive: it.sensitive, value: it.value }
    }
}
