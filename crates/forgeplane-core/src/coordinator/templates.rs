//! Templates: push, list, show.

use bytes::Bytes;
use serde_json::{Value, json};

use super::transact::Step;
use super::{Coordinator, Result};
use crate::id::{ProjectId, TemplateId};
use crate::model::*;
use crate::ports::{Lookup, Page, Permission, Select, StoreExt as _};
use crate::refusal::{Code, Refusal};
use crate::rules::{environment, inputs, object};

/// The longest execution timeout a template may allow: seven days, in seconds.
const MAX_TIMEOUT_S: u64 = 7 * 24 * 3600;

/// A template version to push.
#[derive(Debug, Clone)]
pub struct PushTemplate {
    /// The template's name; a new template is made for a new name.
    pub name: Name,
    /// The tool; the same for all versions.
    pub tool: Tool,
    /// The tar.gz source.
    pub source: Bytes,
    /// Entry point inside the source: the playbook of an Ansible template.
    pub entrypoint: Option<String>,
    /// JSON Schema of the inputs; absent: any object.
    pub schema: Option<Value>,
    /// Input defaults.
    pub defaults: Object,
    /// Required pool.
    pub pool: Name,
    /// Execution timeout, seconds.
    pub execution_timeout_s: u64,
    /// The longest timeout a run may ask for, seconds; absent: the execution timeout.
    pub max_execution_timeout_s: Option<u64>,
    /// How long the tool may print nothing, seconds; absent: as long as it runs.
    pub no_output_timeout_s: Option<u64>,
    /// How long a run may wait in the queue, seconds.
    pub queue_timeout_s: Option<u64>,
    /// Time between SIGINT and SIGKILL, seconds.
    pub cancel_grace_s: u64,
    /// Who must approve.
    pub approval: ApprovalPolicy,
}

/// A template and one of its versions.
#[derive(Debug, Clone)]
pub struct TemplateView {
    /// The template.
    pub template: Template,
    /// The version.
    pub version: TemplateVersion,
}

impl Coordinator {
    /// Pushes a template version. The same content pushed again makes a further version.
    ///
    /// # Errors
    /// Without the permission; a tool without executor, an unusable schema, inline secrets in the defaults, a
    /// source that is too large or not acceptable, timeouts out of range.
    pub async fn push_template(&self, caller: &Caller, push: PushTemplate) -> Result<TemplateView> {
        self.authorize(caller, Permission::TemplateWrite)?;
        let settings = self.settings();
        let first_operation =
            if push.tool.has_managed_state() { Operation::PlanOnly } else { Operation::Execute };
        crate::rules::admission::check_operation(push.tool, &first_operation, settings)?;
        let schema = push.schema.clone().unwrap_or_else(|| json!({"type": "object"}));
        inputs::check_schema(&schema)?;
        environment::check(&schema)?;
        inputs::refuse_inline_secrets(&schema, &push.defaults)?;
        check_figures(&push)?;
        if push.source.len() > settings.max_source_bytes {
            return Err(Refusal::new(
                Code::TooLarge,
                format!(
                    "the source has {} bytes; at most {} are allowed",
                    push.source.len(),
                    settings.max_source_bytes
                ),
            )
            .field("source")
            .into());
        }
        (self.inner.source_check)(&push.source)?;
        let source = self.inner.vault.put_content("source", &push.source).await?;
        let fresh = TemplateId::new(self.now(), self.random());
        let (push, schema) = (&push, &schema);
        self.transact(|| async move {
            let named = Lookup::TemplateNamed(caller.project, push.name.clone());
            let existing = self.store().find_as::<Template>(&named).await?;
            let now = self.now();
            let mut changes = Changeset::new();
            let template = match existing {
                None => {
                    let template = Template {
                        id: fresh,
                        project: caller.project,
                        name: push.name.clone(),
                        latest: 1,
                        created_at: now,
                    };
                    changes.insert(template.clone());
                    template
                }
                Some(found) => {
                    let first = self.template_version(found.id, found.latest).await?;
                    if first.tool != push.tool {
                        return Err(Refusal::new(
                            Code::InvalidField,
                            format!(
                                "template `{}` is for tool `{}`; its tool cannot change",
                                push.name, first.tool
                            ),
                        )
                        .field("tool")
                        .way_out("push under another name")
                        .into());
                    }
                    let template = Template { latest: found.latest + 1, ..found.value.clone() };
                    changes.update(found.version, template.clone());
                    template
                }
            };
            let version = TemplateVersion {
                template: template.id,
                project: caller.project,
                version: template.latest,
                tool: push.tool,
                source,
                source_bytes: push.source.len() as u64,
                entrypoint: push.entrypoint.clone(),
                schema: schema.clone(),
                defaults: push.defaults.clone(),
                pool: push.pool.clone(),
                execution_timeout_s: push.execution_timeout_s,
                max_execution_timeout_s: push.max_execution_timeout_s.unwrap_or(push.execution_timeout_s),
                no_output_timeout_s: push.no_output_timeout_s,
                queue_timeout_s: push.queue_timeout_s,
                cancel_grace_s: push.cancel_grace_s,
                approval: push.approval.clone(),
                created_at: now,
                created_by: caller.actor(),
            };
            changes.insert(version.clone());
            changes.events.push(Event::beside_runs(
                Some(caller.project),
                EventKind::TemplatePushed,
                caller.actor(),
                now,
                object([
                    ("template", json!(template.name)),
                    ("version", json!(version.version)),
                    ("source", json!(source)),
                ]),
            ));
            Ok(Step::Commit(changes, TemplateView { template, version }))
        })
        .await
    }

    /// The project's templates.
    ///
    /// # Errors
    /// Without the permission; when the store cannot answer.
    pub async fn templates(&self, caller: &Caller, page: &Page) -> Result<Vec<Template>> {
        self.authorize(caller, Permission::Read)?;
        let found = self.store().list_as::<Template>(&Select::Templates(caller.project), page).await?;
        Ok(found.into_iter().map(|t| t.value).collect())
    }

    /// A template by name or id, with its newest or a given version.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn template(
        &self,
        caller: &Caller,
        name_or_id: &str,
        version: Option<u32>,
    ) -> Result<TemplateView> {
        self.authorize(caller, Permission::Read)?;
        let template = self.find_template(caller.project, name_or_id).await?;
        let wanted = version.unwrap_or(template.latest);
        let version = self.template_version(template.id, wanted).await?;
        Ok(TemplateView { template, version })
    }

    pub(super) async fn find_template(&self, project: ProjectId, name_or_id: &str) -> Result<Template> {
        let found = match (name_or_id.parse::<TemplateId>(), name_or_id.parse::<Name>()) {
            (Ok(id), _) => self.store().get_as::<Template>(id).await?,
            (_, Ok(name)) => self.store().find_as::<Template>(&Lookup::TemplateNamed(project, name)).await?,
            _ => None,
        };
        match found {
            Some(template) if template.project == project => Ok(template.value),
            _ => Err(Refusal::not_found("template", name_or_id).into()),
        }
    }

    pub(super) async fn template_version(
        &self,
        template: TemplateId,
        version: u32,
    ) -> Result<TemplateVersion> {
        match self.store().get_as::<TemplateVersion>(format!("{template}/{version}")).await? {
            Some(found) => Ok(found.value),
            None => Err(Refusal::not_found("template version", format!("{template}/{version}")).into()),
        }
    }
}

fn check_figures(push: &PushTemplate) -> std::result::Result<(), Refusal> {
    let seconds = |field: &str, value: u64, max: u64| {
        if (1..=max).contains(&value) {
            Ok(())
        } else {
            Err(Refusal::new(Code::InvalidField, format!("`{field}` is 1 to {max} seconds")).field(field))
        }
    };
    let longest = push.max_execution_timeout_s.unwrap_or(push.execution_timeout_s);
    seconds("max_execution_timeout_s", longest, MAX_TIMEOUT_S)?;
    seconds("execution_timeout_s", push.execution_timeout_s, longest)?;
    seconds("cancel_grace_s", push.cancel_grace_s, 3600)?;
    if let Some(value) = push.queue_timeout_s {
        seconds("queue_timeout_s", value, MAX_TIMEOUT_S)?;
    }
    if let Some(value) = push.no_output_timeout_s {
        seconds("no_output_timeout_s", value, longest)?;
    }
    if push.approval.required > 16 {
        return Err(Refusal::new(Code::InvalidField, "at most 16 reviewers can be required")
            .field("approval.required"));
    }
    match (&push.entrypoint, push.tool) {
        (None, Tool::Ansible) => {
            Err(Refusal::new(Code::InvalidField, "an ansible template names its playbook")
                .field("entrypoint"))
        }
        (Some(path), _)
            if path.starts_with('/')
                || path.starts_with('-')
                || path.split('/').any(|s| s == ".." || s.is_empty()) =>
        {
            Err(Refusal::new(Code::InvalidField, "the entry point is a relative path inside the source")
                .field("entrypoint"))
        }
        _ => Ok(()),
    }
}
