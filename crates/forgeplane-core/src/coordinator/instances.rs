//! Instances: create, list, show.

use std::collections::BTreeMap;

use serde_json::json;

use super::transact::Step;
use super::{Coordinator, Result};
use crate::id::{InstanceId, ProjectId, StateObjectId};
use crate::model::*;
use crate::ports::{Lookup, Page, Permission, Select, StoreExt as _};
use crate::refusal::{Code, Refusal};
use crate::rules::{inputs, object};

/// An instance to create.
#[derive(Debug, Clone)]
pub struct NewInstance {
    /// Its name.
    pub name: Name,
    /// Template name or id.
    pub template: String,
    /// Template version; absent: the newest.
    pub template_version: Option<u32>,
    /// Inputs over the template's defaults.
    pub inputs: Object,
    /// Secret bindings: input path (JSON pointer) to secret name.
    pub secrets: BTreeMap<String, Name>,
    /// Pool override.
    pub pool: Option<Name>,
}

/// An instance and its managed state's head.
#[derive(Debug, Clone)]
pub struct InstanceView {
    /// The instance.
    pub instance: Instance,
    /// The name of its template.
    pub template_name: Name,
    /// Its managed state.
    pub state: Option<StateObject>,
}

impl Coordinator {
    /// Creates an instance.
    ///
    /// # Errors
    /// Without the permission; [`Code::NameTaken`], an unknown template, inline secrets, oversize inputs.
    pub async fn create_instance(&self, caller: &Caller, new: NewInstance) -> Result<InstanceView> {
        self.authorize(caller, Permission::InstanceWrite)?;
        check_input_size(&new.inputs, self.settings().max_input_bytes)?;
        let template = self.find_template(caller.project, &new.template).await?;
        let version =
            self.template_version(template.id, new.template_version.unwrap_or(template.latest)).await?;
        inputs::refuse_inline_secrets(&version.schema, &new.inputs)?;
        let now = self.now();
        let id = InstanceId::new(now, self.random());
        let state_object = version.tool.has_managed_state().then(|| StateObjectId::new(now, self.random()));
        let (new, version, template) = (&new, &version, &template);
        self.transact(|| async move {
            let named = Lookup::InstanceNamed(caller.project, new.name.clone());
            if let Some(taken) = self.store().find_as::<Instance>(&named).await? {
                if taken.id == id {
                    return Ok(Step::Done(self.instance_view(taken.value).await?));
                }
                return Err(Refusal::new(
                    Code::NameTaken,
                    format!("there is already an instance named `{}`", new.name),
                )
                .field("name")
                .way_out("choose another name")
                .into());
            }
            let instance = Instance {
                id,
                project: caller.project,
                name: new.name.clone(),
                template: template.id,
                template_version: version.version,
                tool: version.tool,
                inputs: new.inputs.clone(),
                secrets: new.secrets.clone(),
                pool: new.pool.clone(),
                state_object,
                created_at: now,
                created_by: caller.actor(),
                torn_down_by: None,
            };
            let mut changes = Changeset::new();
            let state = state_object.map(|state| StateObject {
                id: state,
                project: caller.project,
                instance: id,
                head: 0,
                lineage: None,
                serial: 0,
                digest: None,
                head_run: None,
                high_water: Fence(0),
                archived: false,
            });
            if let Some(state) = &state {
                changes.insert(state.clone());
            }
            changes.insert(instance.clone());
            changes.events.push(Event::beside_runs(
                Some(caller.project),
                EventKind::InstanceCreated,
                caller.actor(),
                now,
                object([
                    ("instance", json!(id)),
                    ("name", json!(new.name)),
                    ("template", json!(template.name)),
                ]),
            ));
            Ok(Step::Commit(changes, InstanceView { instance, template_name: template.name.clone(), state }))
        })
        .await
    }

    /// The project's instances.
    ///
    /// # Errors
    /// Without the permission; when the store cannot answer.
    pub async fn instances(&self, caller: &Caller, page: &Page) -> Result<Vec<InstanceView>> {
        self.authorize(caller, Permission::Read)?;
        let found = self.store().list_as::<Instance>(&Select::Instances(caller.project), page).await?;
        let mut views = Vec::with_capacity(found.len());
        for instance in found {
            views.push(self.instance_view(instance.value).await?);
        }
        Ok(views)
    }

    /// An instance by name or id.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn instance(&self, caller: &Caller, name_or_id: &str) -> Result<InstanceView> {
        self.authorize(caller, Permission::Read)?;
        let instance = self.find_instance(caller.project, name_or_id).await?;
        self.instance_view(instance.value).await
    }

    async fn instance_view(&self, instance: Instance) -> Result<InstanceView> {
        let template = self.load::<Template>("template", instance.template).await?;
        let state = match instance.state_object {
            Some(id) => self.store().get_as::<StateObject>(id).await?.map(|s| s.value),
            None => None,
        };
        Ok(InstanceView { instance, template_name: template.value.name, state })
    }

    pub(super) async fn find_instance(
        &self,
        project: ProjectId,
        name_or_id: &str,
    ) -> Result<Versioned<Instance>> {
        let found = match (name_or_id.parse::<InstanceId>(), name_or_id.parse::<Name>()) {
            (Ok(id), _) => self.store().get_as::<Instance>(id).await?,
            (_, Ok(name)) => self.store().find_as::<Instance>(&Lookup::InstanceNamed(project, name)).await?,
            _ => None,
        };
        match found {
            Some(instance) if instance.project == project => Ok(instance),
            _ => Err(Refusal::not_found("instance", name_or_id).into()),
        }
    }

    pub(super) async fn state_of(
        &self,
        object: Option<StateObjectId>,
    ) -> Result<Option<Versioned<StateObject>>> {
        match object {
            Some(id) => Ok(Some(self.load::<StateObject>("state object", id).await?)),
            None => Ok(None),
        }
    }
}

/// Refuses input documents above the limit.
pub(super) fn check_input_size(inputs: &Object, max: usize) -> Result<()> {
    let size = serde_json::to_vec(inputs).map_or(usize::MAX, |bytes| bytes.len());
    if size > max {
        return Err(Refusal::new(
            Code::TooLarge,
            format!("the inputs have {size} bytes; at most {max} are allowed"),
        )
        .field("inputs")
        .into());
    }
    Ok(())
}
