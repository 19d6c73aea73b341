//! The people: they ask for plans, promote, approve, cancel, and look after what is unresolved.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use forgeplane_core::coordinator::{
    Coordinator, CoordinatorError, NewInstance, NewRun, PushTemplate, RunView,
};
use forgeplane_core::id::RunId;
use forgeplane_core::model::*;
use forgeplane_core::refusal::Refusal;
use forgeplane_core::rules::admission::RunRequest;
use forgeplane_core::rules::resolve::Resolution;
use secrecy::SecretString;

use super::cluster::{Cluster, name};

/// Two people, and the cluster they use.
#[derive(Clone)]
pub(super) struct People {
    pub(super) cluster: Arc<Cluster>,
    pub(super) alice: Caller,
    pub(super) bob: Caller,
}

type Answer<T> = Result<T, CoordinatorError>;

impl People {
    /// A project, people, a template and so many instances; and a token for each worker to enroll with.
    ///
    /// # Errors
    /// None, while nothing goes wrong.
    pub(super) async fn move_in(cluster: Arc<Cluster>, instances: u64) -> Answer<(Self, Vec<SecretString>)> {
        let coordinator = any(&cluster).await;
        let project = coordinator.ensure_project(&name("default")).await?;
        let mut callers = Vec::new();
        for who in ["alice", "bob"] {
            let (_, secret) = coordinator.issue_token(project.id, &name(who), Role::Admin, None).await?;
            callers.push(coordinator.authenticate(&secret).await?);
        }
        let bob = callers.remove(1);
        let people = Self { cluster, alice: callers.remove(0), bob };
        let push = PushTemplate {
            name: name("app"),
            tool: Tool::Terraform,
            source: source().into(),
            entrypoint: None,
            schema: None,
            defaults: Object::new(),
            pool: name("default"),
            execution_timeout_s: 20,
            max_execution_timeout_s: None,
            no_output_timeout_s: None,
            queue_timeout_s: None,
            cancel_grace_s: 5,
            approval: ApprovalPolicy { required: 1, ..ApprovalPolicy::default() },
        };
        coordinator.push_template(&people.alice, push).await?;
        for index in 0..instances {
            let new = NewInstance {
                name: name(&format!("i{index}")),
                template: "app".into(),
                template_version: None,
                inputs: Object::new(),
                secrets: BTreeMap::new(),
                pool: None,
            };
            coordinator.create_instance(&people.alice, new).await?;
        }
        let mut tokens = Vec::new();
        for _ in &people.cluster.workers {
            tokens.push(coordinator.issue_enrollment(&name("default"), Duration::from_secs(3_600)).await?);
        }
        Ok((people, tokens))
    }

    /// Asks until somebody answers.
    async fn ask<T, F, Fut>(&self, call: F) -> Result<T, Refusal>
    where
        F: Fn(Coordinator) -> Fut,
        Fut: Future<Output = Answer<T>> + Send + 'static,
        T: Send + 'static,
    {
        let fate = &self.cluster.world.fate;
        loop {
            let index = usize::try_from(fate.below(self.cluster.network.coordinators() as u64)).unwrap_or(0);
            if let Some((life, coordinator)) = self.cluster.network.get(index) {
                let answer = life.spawn(call(coordinator)).await;
                let lost = fate.fails(20);
                match answer {
                    Ok(Some(Ok(answer))) if !lost => return Ok(answer),
                    Ok(Some(Err(CoordinatorError::Refused(refusal)))) if !lost => return Err(refusal),
                    Err(panic) if panic.is_panic() => std::panic::resume_unwind(panic.into_panic()),
                    _ => {}
                }
            }
            tokio::time::sleep(fate.millis(1_500)).await;
        }
    }

    async fn view(&self, run: RunId) -> Result<RunView, Refusal> {
        let alice = self.alice.clone();
        self.ask(move |c| {
            let alice = alice.clone();
            async move { c.run(&alice, run).await }
        })
        .await
    }

    /// Waits until something is so.
    async fn until(&self, run: RunId, holds: impl Fn(&RunView) -> bool) -> Result<RunView, Refusal> {
        loop {
            let view = self.view(run).await?;
            if holds(&view) {
                return Ok(view);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// One after the other: plan, promote, approve; for one instance.
    pub(super) async fn deliver(self, instance: u64, rounds: u64) {
        for round in 0..rounds {
            // A refusal is an answer: somebody else was there first, or the state moved on.
            if let Err(refusal) = self.round(instance, round).await {
                tracing::debug!(%refusal, "a round ended with a refusal");
            }
        }
    }

    async fn round(&self, instance: u64, round: u64) -> Result<(), Refusal> {
        let fate = &self.cluster.world.fate;
        let operation = match fate.below(10) {
            0 => Operation::Destroy { mode: DestroyMode::Perform },
            1 => Operation::PlanOnly,
            _ => Operation::Plan { destroy: fate.happens(100) },
        };
        let run = self.create(instance, round, operation).await?;
        self.meddle(run);
        let view = self.see_through(run).await?;
        if view.run.status != RunStatus::Succeeded || view.plan.is_none() {
            if fate.happens(300) && view.run.status.is_terminal() {
                let alice = self.alice.clone();
                let again = move |c: Coordinator| {
                    let alice = alice.clone();
                    async move { c.requeue(&alice, run).await }
                };
                self.ask(again).await?;
                self.see_through(run).await?;
            }
            return Ok(());
        }
        let alice = self.alice.clone();
        let promote = move |c: Coordinator| {
            let alice = alice.clone();
            async move { c.promote(&alice, run).await }
        };
        let apply = match self.ask(promote).await {
            Ok(apply) => apply.id,
            // The answer was lost, or somebody else was faster.
            Err(refusal) => self.view(run).await?.run.promoted_to.ok_or(refusal)?,
        };
        self.meddle(apply);
        self.see_through(apply).await?;
        Ok(())
    }

    async fn create(&self, instance: u64, round: u64, operation: Operation) -> Result<RunId, Refusal> {
        let new = NewRun {
            instance: format!("i{instance}"),
            request: RunRequest { operation, inputs: Object::new(), execution_timeout_s: None, priority: 0 },
            idempotency_key: Some(format!("{instance}-{round}")),
        };
        let alice = self.alice.clone();
        let create = move |c: Coordinator| {
            let (alice, new) = (alice.clone(), new.clone());
            async move { c.create_run(&alice, new).await }
        };
        Ok(self.ask(create).await?.id)
    }

    /// Reviews a run if that is needed, and waits for its end.
    async fn see_through(&self, run: RunId) -> Result<RunView, Refusal> {
        let view = self.view(run).await?;
        if let Some(approval) = view.approval.filter(|_| view.run.status == RunStatus::PendingApproval) {
            let verdict =
                if self.cluster.world.fate.happens(50) { Verdict::Reject } else { Verdict::Approve };
            let (bob, id) = (self.bob.clone(), approval.id);
            let review = move |c: Coordinator| {
                let bob = bob.clone();
                async move { c.review(&bob, id, verdict, None).await }
            };
            if let Err(refusal) = self.ask(review).await {
                tracing::debug!(%refusal, "a review was refused");
            }
        }
        self.until(run, |view| view.run.status.is_terminal()).await
    }

    /// Now and then somebody cancels.
    fn meddle(&self, run: RunId) {
        if !self.cluster.world.fate.happens(150) {
            return;
        }
        let (this, after) = (self.clone(), self.cluster.world.fate.millis(6_000));
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let alice = this.alice.clone();
            let cancel = move |c: Coordinator| {
                let alice = alice.clone();
                async move { c.cancel(&alice, run, None).await }
            };
            if let Err(refusal) = this.ask(cancel).await {
                tracing::debug!(%refusal, "a cancel was refused");
            }
        });
    }

    /// Decides executions whose worker's machine is gone for good, or was copied. They looked: it is in no journal, and no
    /// tool of it runs any more.
    pub(super) async fn resolve_forever(self) {
        loop {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let alice = self.alice.clone();
            let list = move |c: Coordinator| {
                let alice = alice.clone();
                async move {
                    let attempts = c.open_attempts(&alice, true).await?;
                    Ok((attempts, c.workers(&alice).await?))
                }
            };
            let Ok((attempts, workers)) = self.ask(list).await else { continue };
            for attempt in attempts {
                let seat = workers
                    .iter()
                    .find(|w| w.worker.id == attempt.worker)
                    .and_then(|w| self.cluster.workers.iter().find(|seat| seat.name == w.worker.name));
                let is_suspect = seat.is_some_and(|seat| {
                    seat.gone.load(Ordering::Relaxed) || seat.is_copied.load(Ordering::Relaxed)
                });
                let file = format!("{}.json", attempt.fence);
                let is_journaled = self.cluster.journals().iter().any(|(path, _)| path.ends_with(&file));
                if is_suspect && !is_journaled && !self.cluster.world.is_at_work(attempt.id) {
                    self.resolve(&attempt).await;
                }
            }
        }
    }

    async fn resolve(&self, attempt: &Attempt) {
        let outcome =
            if self.cluster.world.fate.happens(500) { OutcomeKind::Failed } else { OutcomeKind::Canceled };
        let resolution = Resolution {
            outcome,
            reason: "the machine burned down".into(),
            asserted: vec!["the worker's machine is gone".into()],
            generation: None,
        };
        let (alice, id) = (self.alice.clone(), attempt.id);
        let decide = move |c: Coordinator| {
            let (alice, resolution) = (alice.clone(), resolution.clone());
            async move { c.resolve_attempt(&alice, id, &resolution).await }
        };
        if let Err(refusal) = self.ask(decide).await {
            tracing::debug!(%refusal, "a resolution was refused");
        }
    }

    /// An administrator wants a worker's key replaced.
    pub(super) fn rotate_key(&self, worker: usize) {
        let (this, name) = (self.clone(), self.cluster.workers[worker].name.clone());
        tokio::spawn(async move {
            let alice = this.alice.clone();
            let rotate = move |c: Coordinator| {
                let (alice, name) = (alice.clone(), name.clone());
                async move { c.rotate_worker_key(&alice, name.as_str()).await }
            };
            if let Err(refusal) = this.ask(rotate).await {
                tracing::debug!(%refusal, "a key rotation was refused");
            }
        });
    }
}

/// A coordinator that lives, as soon as there is one.
async fn any(cluster: &Cluster) -> Coordinator {
    loop {
        if let Some((_, coordinator)) =
            (0..cluster.network.coordinators()).find_map(|i| cluster.network.get(i))
        {
            return coordinator;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The smallest source there is.
fn source() -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    #[allow(clippy::expect_used)]
    archive
        .append_data(&mut header, "main.tf", &b""[..])
        .and_then(|()| archive.into_inner()?.finish())
        .expect("memory takes what is written")
}
