//! Managed state and plans, as people see them.

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::{Coordinator, Result};
use crate::id::RunId;
use crate::model::*;
use crate::ports::{Page, Permission, Select, StoreExt as _};
use crate::refusal::{Code, Refusal};

/// An output value of the current state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Whether the configuration marks it as sensitive.
    pub sensitive: bool,
    /// The value; absent if it is sensitive.
    pub value: Option<Value>,
}

impl Coordinator {
    /// The generations of an instance's state, newest first.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn state_generations(
        &self,
        caller: &Caller,
        instance: &str,
        page: &Page,
    ) -> Result<Vec<StateGeneration>> {
        self.authorize(caller, Permission::Read)?;
        let state = self.instance_state(caller, instance).await?;
        let found = self.store().list_as::<StateGeneration>(&Select::Generations(state.id), page).await?;
        Ok(found.into_iter().map(|g| g.value).collect())
    }

    /// State documents that were refused and kept aside.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn orphan_states(&self, caller: &Caller, instance: &str) -> Result<Vec<OrphanState>> {
        self.authorize(caller, Permission::Read)?;
        let state = self.instance_state(caller, instance).await?;
        let found =
            self.store().list_as::<OrphanState>(&Select::OrphanStates(state.id), &Page::all()).await?;
        Ok(found.into_iter().map(|o| o.value).collect())
    }

    /// The state document of the current (or an older) generation. It contains secrets.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`] also for a state never written.
    pub async fn pull_state(
        &self,
        caller: &Caller,
        instance: &str,
        generation: Option<u64>,
    ) -> Result<(StateGeneration, Bytes)> {
        self.authorize(caller, Permission::StateRead)?;
        let state = self.instance_state(caller, instance).await?;
        let wanted = generation.unwrap_or(state.head);
        let found = self.store().get_as::<StateGeneration>(format!("{}/{wanted}", state.id)).await?;
        let Some(found) = found else {
            return Err(Refusal::not_found("state generation", wanted)
                .way_out("list the generations with `forgeplane state list`")
                .into());
        };
        let document = self.content("state", found.digest).await?;
        Ok((found.value, document))
    }

    /// The outputs of an instance's current state; sensitive values are left out.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn outputs(&self, caller: &Caller, instance: &str) -> Result<Vec<Output>> {
        self.authorize(caller, Permission::Read)?;
        let state = self.instance_state(caller, instance).await?;
        let Some(digest) = state.digest else { return Ok(Vec::new()) };
        let document = self.content("state", digest).await?;
        let document: Value = serde_json::from_slice(&document)
            .map_err(|e| Refusal::new(Code::InvalidState, format!("the stored state cannot be read: {e}")))?;
        let outputs = document.get("outputs").and_then(Value::as_object).cloned().unwrap_or_default();
        Ok(outputs
            .into_iter()
            .map(|(name, output)| {
                let sensitive = output.get("sensitive").and_then(Value::as_bool).unwrap_or(false);
                let value = if sensitive { None } else { output.get("value").cloned() };
                Output { name, sensitive, value }
            })
            .collect())
    }

    /// The plan of a run for people. Terraform masks sensitive values in it.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`] for a run without a plan artifact.
    pub async fn plan_text(&self, caller: &Caller, run: RunId) -> Result<(PlanArtifact, Bytes)> {
        self.authorize(caller, Permission::Read)?;
        let plan = self.own_plan(caller, run).await?;
        let text = plan.text.ok_or_else(|| Refusal::not_found("plan text", run))?;
        let text = self.content("artifact", text).await?;
        Ok((plan, text))
    }

    /// The plan of a run as JSON, with sensitive values in clear.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`] for a run without a plan artifact.
    pub async fn plan_json(&self, caller: &Caller, run: RunId) -> Result<(PlanArtifact, Bytes)> {
        self.authorize(caller, Permission::PlanReadSensitive)?;
        let plan = self.own_plan(caller, run).await?;
        let json = plan.json.ok_or_else(|| Refusal::not_found("plan JSON", run))?;
        let json = self.content("artifact", json).await?;
        Ok((plan, json))
    }

    async fn own_plan(&self, caller: &Caller, run: RunId) -> Result<PlanArtifact> {
        let run = self.own_run(caller, run).await?;
        match self.store().get_as::<PlanArtifact>(run.id).await? {
            Some(plan) => Ok(plan.value),
            None => Err(Refusal::not_found("plan artifact of run", run.id)
                .way_out("only a succeeded `plan` (or destroy plan) publishes one")
                .into()),
        }
    }

    async fn instance_state(&self, caller: &Caller, instance: &str) -> Result<StateObject> {
        let instance = self.find_instance(caller.project, instance).await?;
        match self.state_of(instance.state_object).await? {
            Some(state) => Ok(state.value),
            None => Err(Refusal::not_found("managed state of instance", &instance.name)
                .way_out(format!("tool `{}` has no managed state", instance.tool))
                .into()),
        }
    }

    pub(super) async fn content(&self, area: &str, digest: crate::digest::Digest) -> Result<Bytes> {
        match self.inner.vault.get_content(area, digest).await? {
            Some(bytes) => Ok(bytes),
            None => {
                Err(Refusal::new(Code::ArtifactMissing, format!("the stored {area} {digest} is gone")).into())
            }
        }
    }
}
