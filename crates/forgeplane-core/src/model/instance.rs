//! One deployment of a template version.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Actor, Name, Object, Tool};
use crate::id::{InstanceId, ProjectId, RunId, StateObjectId, TemplateId};

/// One deployment of a template version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Its id.
    pub id: InstanceId,
    /// Tenant.
    pub project: ProjectId,
    /// Unique in the project.
    pub name: Name,
    /// The template.
    pub template: TemplateId,
    /// The version it deploys.
    pub template_version: u32,
    /// The template's tool.
    pub tool: Tool,
    /// Non-secret inputs, over the template's defaults.
    pub inputs: Object,
    /// Secret bindings: input path (JSON pointer) to catalog secret name.
    pub secrets: BTreeMap<String, Name>,
    /// Pool override.
    pub pool: Option<Name>,
    /// Managed state, for tools that have it.
    pub state_object: Option<StateObjectId>,
    /// When it was created.
    pub created_at: Timestamp,
    /// Who created it.
    pub created_by: Actor,
    /// The run that tore it down.
    pub torn_down_by: Option<RunId>,
}
