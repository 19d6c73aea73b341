//! Runs: create, list, show, cancel, requeue, promote, explain.

use jiff::Timestamp;

use super::instances::check_input_size;
use super::transact::Step;
use super::{Coordinator, Result};
use crate::digest::Digest;
use crate::failpoint::{self, Failpoint};
use crate::id::{ApprovalId, InstanceId, RunId};
use crate::model::*;
use crate::ports::{ApprovalQuestion, Lookup, Page, Permission, Select, StoreExt as _};
use crate::refusal::{Code, Refusal};
use crate::rules::admission::{self, RunRequest};
use crate::rules::schedule::{self, WaitReason};
use crate::rules::{cancel, promotion, requeue};

/// A run to create.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Instance name or id.
    pub instance: String,
    /// What to do.
    pub request: RunRequest,
    /// The same key with the same request returns the same run.
    pub idempotency_key: Option<String>,
}

/// A run with what belongs to it.
#[derive(Debug, Clone)]
pub struct RunView {
    /// The run.
    pub run: Run,
    /// Its frozen snapshot.
    pub snapshot: Snapshot,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// Its approval record.
    pub approval: Option<Approval>,
    /// The plan artifact it published.
    pub plan: Option<PlanArtifact>,
}

impl RunView {
    /// Whether its current attempt's worker is missing.
    #[must_use]
    pub fn is_unresolved(&self) -> bool {
        self.attempts.iter().any(|a| a.state == AttemptState::Unresolved)
    }
}

/// Why a run is where it is.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The run.
    pub run: Run,
    /// Why it waits, if it waits for something.
    pub waiting: Option<WaitReason>,
    /// Since when the worker of its claimed attempt is missing.
    pub unresolved_since: Option<Timestamp>,
    /// What may be asked of it now.
    pub allowed: Vec<&'static str>,
}

impl Coordinator {
    /// Admits a run.
    ///
    /// # Errors
    /// Without the permission; everything [`admission::admit`] refuses; a reused idempotency key.
    pub async fn create_run(&self, caller: &Caller, new: NewRun) -> Result<Run> {
        self.authorize(caller, Permission::RunWrite)?;
        check_input_size(&new.request.inputs, self.settings().max_input_bytes)?;
        let idempotency = new.idempotency_key.as_ref().map(|key| idempotency_key(key)).transpose()?;
        let request_digest = Digest::of(format!("{}\n{:?}", new.instance, new.request).as_bytes());
        let now = self.now();
        let ids = admission::FreshIds {
            run: RunId::new(now, self.random()),
            approval: ApprovalId::new(now, self.random()),
        };
        let (new, idempotency) = (&new, &idempotency);
        self.transact(|| async move {
            if let Some(run) = self.store().get_as::<Run>(ids.run).await? {
                return Ok(Step::Done(run.value));
            }
            if let Some(key) = idempotency
                && let Some(earlier) =
                    self.store().get_as::<Idempotency>(format!("{}/{key}", caller.project)).await?
            {
                if earlier.request != request_digest {
                    return Err(Refusal::new(
                        Code::IdempotencyMismatch,
                        "this idempotency key was used with another request",
                    )
                    .field("idempotency-key")
                    .way_out("use a new key for a new request")
                    .into());
                }
                return Ok(Step::Done(self.load::<Run>("run", earlier.run).await?.value));
            }
            let instance = self.find_instance(caller.project, &new.instance).await?;
            let template = self.template_version(instance.template, instance.template_version).await?;
            let state = self.state_of(instance.state_object).await?;
            let approval = self.approval_policy(caller, &new.request.operation, &instance, &template);
            let context = admission::Context {
                requester: caller.actor(),
                instance: &instance,
                template: &template,
                state: state.as_ref(),
                secrets: self.resolve_secrets(&instance).await?,
                approval,
                settings: self.settings(),
            };
            let (mut changes, run) = admission::admit(&context, &new.request, ids, self.now())?;
            if let Some(key) = idempotency {
                changes.insert(Idempotency {
                    project: caller.project,
                    key: key.clone(),
                    request: request_digest,
                    run: run.id,
                    at: self.now(),
                });
            }
            Ok(Step::Commit(changes, run))
        })
        .await
        .inspect(|_| failpoint::reach(Failpoint::Admitted))
    }

    fn approval_policy(
        &self,
        caller: &Caller,
        operation: &Operation,
        instance: &Instance,
        template: &TemplateVersion,
    ) -> ApprovalPolicy {
        if !operation.changes_infrastructure() {
            return ApprovalPolicy { required: 0, ..ApprovalPolicy::default() };
        }
        self.inner.policy.approval(&ApprovalQuestion { requester: caller, operation, instance, template })
    }

    async fn resolve_secrets(&self, instance: &Instance) -> Result<Vec<SecretBinding>> {
        let mut bindings = Vec::with_capacity(instance.secrets.len());
        for (path, name) in &instance.secrets {
            let found =
                self.store().find_as::<Secret>(&Lookup::SecretNamed(instance.project, name.clone())).await?;
            let usable = found.filter(|s| s.approved_for.contains(&instance.name));
            let Some(secret) = usable else {
                return Err(Refusal::new(
                    Code::SecretUnavailable,
                    format!("`{path}` is bound to secret `{name}`, which does not exist or is not approved for instance `{}`", instance.name),
                )
                .field(format!("secrets{path}"))
                .way_out("store the secret and approve it for the instance")
                .into());
            };
            bindings.push(SecretBinding {
                path: path.clone(),
                name: name.clone(),
                secret: secret.id,
                version: secret.latest,
                payload: secret.payload.clone(),
            });
        }
        Ok(bindings)
    }

    /// The project's runs, newest first.
    ///
    /// # Errors
    /// Without the permission; when the store cannot answer.
    pub async fn runs(
        &self,
        caller: &Caller,
        status: Option<RunStatus>,
        instance: Option<InstanceId>,
        page: &Page,
    ) -> Result<Vec<Run>> {
        self.authorize(caller, Permission::Read)?;
        let select = Select::Runs { project: caller.project, status, instance };
        Ok(self.store().list_as::<Run>(&select, page).await?.into_iter().map(|r| r.value).collect())
    }

    /// A run with what belongs to it.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn run(&self, caller: &Caller, id: RunId) -> Result<RunView> {
        self.authorize(caller, Permission::Read)?;
        let run = self.own_run(caller, id).await?.value;
        let attempts = self.attempts_of(id).await?;
        let approval = match run.approval {
            Some(approval) => self.store().get_as::<Approval>(approval).await?.map(|a| a.value),
            None => None,
        };
        Ok(RunView {
            snapshot: self.load::<Snapshot>("snapshot", id).await?.value,
            attempts: attempts.into_iter().map(|a| a.value).collect(),
            approval,
            plan: self.store().get_as::<PlanArtifact>(id).await?.map(|p| p.value),
            run,
        })
    }

    /// The caller's own project's run.
    pub(super) async fn own_run(&self, caller: &Caller, id: RunId) -> Result<Versioned<Run>> {
        match self.store().get_as::<Run>(id).await? {
            Some(run) if run.project == caller.project => Ok(run),
            _ => Err(Refusal::not_found("run", id).into()),
        }
    }

    /// Cancels a run.
    ///
    /// # Errors
    /// Without the permission; a terminal run.
    pub async fn cancel(&self, caller: &Caller, id: RunId, reason: Option<String>) -> Result<Run> {
        self.authorize(caller, Permission::RunWrite)?;
        let (actor, reason) = (&caller.actor(), &reason);
        self.transact(|| async move {
            let run = self.own_run(caller, id).await?;
            let attempt = self.current_attempt(&run).await?;
            let approval = match run.approval {
                Some(approval) => self.store().get_as::<Approval>(approval).await?,
                None => None,
            };
            match cancel::cancel(
                &run,
                attempt.as_ref(),
                approval.as_ref(),
                actor,
                reason.clone(),
                self.now(),
            )? {
                None => Ok(Step::Done(())),
                Some(changes) => Ok(Step::Commit(changes, ())),
            }
        })
        .await?;
        Ok(self.own_run(caller, id).await?.value)
    }

    pub(super) async fn current_attempt(&self, run: &Run) -> Result<Option<Versioned<Attempt>>> {
        match run.current_attempt {
            Some(attempt) => Ok(self.store().get_as::<Attempt>(attempt).await?),
            None => Ok(None),
        }
    }

    /// Requeues an eligible run under the same id.
    ///
    /// # Errors
    /// Without the permission; everything [`requeue::requeue`] refuses.
    pub async fn requeue(&self, caller: &Caller, id: RunId) -> Result<Run> {
        self.authorize(caller, Permission::RunWrite)?;
        let actor = &caller.actor();
        self.transact(|| async move {
            let run = self.own_run(caller, id).await?;
            let snapshot = self.load::<Snapshot>("snapshot", id).await?;
            let attempt = self.current_attempt(&run).await?;
            let instance = self.load::<Instance>("instance", run.instance).await?;
            let state = self.state_of(run.state_object).await?;
            let (source, artifact, promoted) = match &run.plan {
                None => (None, None, None),
                Some(plan) => {
                    let source = self.load::<Run>("run", plan.run).await?;
                    let promoted = match source.promoted_to {
                        Some(other) => self.store().get_as::<Run>(other).await?,
                        None => None,
                    };
                    let artifact = self.plan_artifact(plan.run).await?;
                    (Some(source), artifact, promoted)
                }
            };
            let approval = match run.approval {
                Some(approval) => self.store().get_as::<Approval>(approval).await?,
                None => None,
            };
            let context = requeue::Context {
                run: &run,
                snapshot: &snapshot,
                attempt: attempt.as_deref(),
                instance: &instance,
                state: state.as_ref(),
                source: source.as_ref(),
                artifact: artifact.as_ref(),
                promoted: promoted.as_deref(),
                approval: approval.as_deref(),
            };
            Ok(Step::Commit(requeue::requeue(&context, actor, self.now())?, ()))
        })
        .await?;
        Ok(self.own_run(caller, id).await?.value)
    }

    /// The plan artifact of a run, if its plan file can still be had.
    pub(super) async fn plan_artifact(&self, run: RunId) -> Result<Option<PlanArtifact>> {
        let Some(artifact) = self.store().get_as::<PlanArtifact>(run).await? else { return Ok(None) };
        let there = self.inner.vault.get_content("artifact", artifact.plan).await?.is_some();
        Ok(there.then_some(artifact.value))
    }

    /// Promotes a succeeded plan to a new apply run.
    ///
    /// # Errors
    /// Without the permission; everything [`promotion::promote`] refuses.
    pub async fn promote(&self, caller: &Caller, plan: RunId) -> Result<Run> {
        self.authorize(caller, Permission::RunWrite)?;
        let now = self.now();
        let ids = admission::FreshIds {
            run: RunId::new(now, self.random()),
            approval: ApprovalId::new(now, self.random()),
        };
        self.transact(|| async move {
            if let Some(run) = self.store().get_as::<Run>(ids.run).await? {
                return Ok(Step::Done(run.value));
            }
            let source = self.own_run(caller, plan).await?;
            let snapshot = self.load::<Snapshot>("snapshot", plan).await?;
            let instance = self.load::<Instance>("instance", source.instance).await?;
            let Some(state) = self.state_of(source.state_object).await? else {
                return Err(Refusal::new(
                    Code::NotPromotable,
                    format!("run {plan} is a `{}`: only a plan can be promoted", source.operation.label()),
                )
                .into());
            };
            let template = self.template_version(instance.template, snapshot.template_version).await?;
            let artifact = self.plan_artifact(plan).await?;
            let promoted = match source.promoted_to {
                Some(other) => self.store().get_as::<Run>(other).await?,
                None => None,
            };
            let context = promotion::Context {
                requester: caller.actor(),
                plan: &source,
                snapshot: &snapshot,
                artifact: artifact.as_ref(),
                promoted: promoted.as_deref(),
                approval: self.approval_policy(caller, &Operation::Apply, &instance, &template),
                instance: &instance,
                state: &state,
            };
            let (changes, run) = promotion::promote(&context, ids, self.now())?;
            Ok(Step::Commit(changes, run))
        })
        .await
    }

    /// Why a run is where it is, decided by the scheduler's own rule.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn explain(&self, caller: &Caller, id: RunId) -> Result<Explanation> {
        self.authorize(caller, Permission::Read)?;
        let run = self.own_run(caller, id).await?.value;
        let view = self.schedule_view_with(&run).await?;
        let waiting = schedule::explain(&view.as_view(self.settings(), self.now()), &run);
        let unresolved_since = view
            .open
            .iter()
            .find(|a| a.run == id && a.state == AttemptState::Unresolved)
            .and_then(|a| a.unresolved_since);
        let mut allowed: Vec<_> = ["approve", "reject", "cancel", "requeue", "promote"]
            .into_iter()
            .filter(|command| {
                use crate::rules::lifecycle::{Command, next};
                let command = match *command {
                    "approve" => Command::Approve,
                    "reject" => Command::Reject,
                    "cancel" => Command::Cancel,
                    "requeue" => Command::Requeue,
                    _ if !run.operation.publishes_plan() => return false,
                    _ => Command::Promote,
                };
                next(run.status, command).is_some()
            })
            .collect();
        if unresolved_since.is_some() {
            allowed.push("resolve");
        }
        Ok(Explanation { run, waiting, unresolved_since, allowed })
    }

    /// Events of the caller's project (or of one run), oldest first.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn events(
        &self,
        caller: &Caller,
        run: Option<RunId>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Event>> {
        self.authorize(caller, Permission::Read)?;
        if let Some(run) = run {
            self.own_run(caller, run).await?;
        }
        let filter = crate::ports::EventFilter { project: Some(caller.project), run };
        Ok(self.store().events(&filter, after, limit).await?)
    }
}

fn idempotency_key(key: &str) -> std::result::Result<String, Refusal> {
    if (1..=128).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic() && b != b'/') {
        Ok(key.to_owned())
    } else {
        Err(Refusal::new(
            Code::InvalidField,
            "an idempotency key has 1 to 128 visible ASCII characters without `/`",
        )
        .field("idempotency-key"))
    }
}
