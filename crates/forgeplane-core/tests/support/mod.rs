//! A coordinator on memory adapters whose every commit is recorded, a clock that stands still, and a worker
//! that does exactly what the test tells it.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

mod spy;
mod worker;

pub use spy::*;
pub use worker::*;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forgeplane_core::coordinator::{
    Coordinator, CoordinatorError, NewInstance, NewRun, PushTemplate, RunView,
};
use forgeplane_core::digest::Digest;
use forgeplane_core::id::{PrincipalId, RunId};
use forgeplane_core::memory::{ManualClock, MemoryQueue, SeededEntropy};
use forgeplane_core::model::*;
use forgeplane_core::ports::{ControlError, EntropyExt as _, StaticKey, StoreExt as _};
use forgeplane_core::rules::Settings;
use forgeplane_core::rules::admission::RunRequest;
use forgeplane_core::{Code, Refusal, Timestamp};
use serde_json::json;

/// A gzip header: all that the default source check asks for.
pub const SOURCE: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0];

pub struct World {
    pub coordinator: Coordinator,
    pub store: Arc<Spy>,
    pub blobs: Arc<SpyBlobs>,
    pub clock: Arc<ManualClock>,
    pub entropy: Arc<SeededEntropy>,
    pub project: Project,
    /// Operates.
    pub alice: Caller,
    /// Approves.
    pub bob: Caller,
    /// Approves too.
    pub carol: Caller,
    /// Administrates.
    pub root: Caller,
    queue: MemoryQueue,
    settings: Settings,
}

pub fn start_of_time() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

impl World {
    pub async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    pub async fn with(settings: Settings) -> Self {
        Self::seeded(settings, 1).await
    }

    pub async fn seeded(settings: Settings, seed: u64) -> Self {
        let store = Arc::new(Spy::default());
        let blobs = Arc::new(SpyBlobs::default());
        let clock = Arc::new(ManualClock::new(start_of_time()));
        let entropy = Arc::new(SeededEntropy::new(seed));
        let queue = MemoryQueue::new();
        let coordinator = assemble(&store, &blobs, &clock, &entropy, &queue, &settings).await;
        let project = coordinator.ensure_project(&name("acme")).await.unwrap();
        let caller = |name: &str, role| Caller {
            principal: PrincipalId::new(start_of_time(), entropy.bytes()),
            name: name.to_owned(),
            project: project.id,
            role,
        };
        Self {
            alice: caller("alice", Role::Operator),
            bob: caller("bob", Role::Approver),
            carol: caller("carol", Role::Approver),
            root: caller("root", Role::Admin),
            coordinator,
            store,
            blobs,
            clock,
            entropy,
            project,
            queue,
            settings,
        }
    }

    /// Another coordinator on the same store, queue, blobs and clock.
    pub async fn another_coordinator(&self) -> Coordinator {
        assemble(&self.store, &self.blobs, &self.clock, &self.entropy, &self.queue, &self.settings).await
    }

    pub fn now(&self) -> Timestamp {
        self.coordinator.now()
    }

    pub fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// Time passes while these workers live: a heartbeat of each every few seconds, and the sweeper runs.
    pub async fn live(&self, seconds: u64, workers: &[&TestWorker]) {
        let mut left = seconds;
        while left > 0 {
            let part = left.min(10);
            self.pass(part);
            left -= part;
            for worker in workers {
                worker.heartbeat().await.unwrap();
            }
            self.coordinator.sweep_step().await.unwrap();
        }
    }

    /// A template version push with nothing unusual.
    pub fn template(&self, template: &str, tool: Tool) -> PushTemplate {
        PushTemplate {
            name: name(template),
            tool,
            source: Bytes::from_static(SOURCE),
            entrypoint: (tool == Tool::Ansible).then(|| "site.yml".to_owned()),
            schema: None,
            defaults: Object::new(),
            pool: name("default"),
            execution_timeout_s: 600,
            max_execution_timeout_s: Some(1_200),
            no_output_timeout_s: None,
            queue_timeout_s: None,
            cancel_grace_s: 60,
            approval: ApprovalPolicy::default(),
        }
    }

    /// Pushes the template and creates an instance of the same name.
    pub async fn deploy(&self, push: PushTemplate) -> Instance {
        let called = push.name.clone();
        self.coordinator.push_template(&self.alice, push).await.unwrap();
        self.instance(called.as_str(), called.as_str()).await
    }

    pub async fn instance(&self, template: &str, instance: &str) -> Instance {
        let new = NewInstance {
            name: name(instance),
            template: template.to_owned(),
            template_version: None,
            inputs: Object::new(),
            secrets: BTreeMap::new(),
            pool: None,
        };
        self.coordinator.create_instance(&self.alice, new).await.unwrap().instance
    }

    /// A Terraform instance whose writers need one reviewer who is not the requester.
    pub async fn network(&self) -> Instance {
        self.deploy(self.template("network", Tool::Terraform)).await
    }

    /// A Terraform instance whose writers need nobody.
    pub async fn sandbox(&self) -> Instance {
        let mut push = self.template("sandbox", Tool::Terraform);
        push.approval.required = 0;
        self.deploy(push).await
    }

    pub async fn try_create(&self, instance: &str, operation: Operation) -> Result<Run, CoordinatorError> {
        self.clock.advance(Duration::from_millis(1));
        self.coordinator.create_run(&self.alice, new_run(instance, operation)).await
    }

    pub async fn create(&self, instance: &str, operation: Operation) -> Run {
        self.try_create(instance, operation).await.unwrap()
    }

    /// One pass of scheduler and dispatcher.
    pub async fn step(&self) {
        self.coordinator.schedule_step().await.unwrap();
        self.coordinator.dispatch_step().await.unwrap();
    }

    pub async fn view(&self, run: RunId) -> RunView {
        self.coordinator.run(&self.alice, run).await.unwrap()
    }

    pub async fn status(&self, run: RunId) -> RunStatus {
        self.view(run).await.run.status
    }

    pub async fn last_attempt(&self, run: RunId) -> Attempt {
        self.view(run).await.attempts.pop().unwrap()
    }

    pub async fn state(&self, instance: &str) -> StateObject {
        self.coordinator.instance(&self.alice, instance).await.unwrap().state.unwrap()
    }

    /// A run's whole history by kind; checks that it has no gap.
    pub async fn history(&self, run: RunId) -> Vec<&'static str> {
        let events = self.coordinator.events(&self.alice, Some(run), 0, usize::MAX).await.unwrap();
        for (index, event) in events.iter().enumerate() {
            assert_eq!(event.run_seq, index as u64 + 1, "the history of {run} has a gap: {events:?}");
        }
        assert_eq!(self.view(run).await.run.last_event, events.len() as u64);
        events.iter().map(|e| e.kind.as_str()).collect()
    }

    pub async fn late_evidence(&self, run: RunId) -> Vec<LateEvidence> {
        use forgeplane_core::ports::{Page, Select};
        let found =
            self.store.list_as::<LateEvidence>(&Select::LateEvidence(run), &Page::all()).await.unwrap();
        found.into_iter().map(|e| e.value).collect()
    }

    /// Plans, and has the plan succeed.
    pub async fn planned(&self, worker: &mut TestWorker, instance: &str) -> Run {
        let run = self.create(instance, Operation::Plan { destroy: false }).await;
        self.step().await;
        let work = worker.claim_next().await;
        worker.publish_plan(&work).await;
        worker.succeed(&work).await;
        self.view(run.id).await.run
    }

    /// Plans, promotes and approves; the apply waits in the queue.
    pub async fn approved_apply(&self, worker: &mut TestWorker, instance: &str) -> Run {
        let plan = self.planned(worker, instance).await;
        let apply = self.coordinator.promote(&self.alice, plan.id).await.unwrap();
        if let Some(approval) = apply.approval {
            self.coordinator.review(&self.bob, approval, Verdict::Approve, None).await.unwrap();
        }
        self.view(apply.id).await.run
    }
}

async fn assemble(
    store: &Arc<Spy>,
    blobs: &Arc<SpyBlobs>,
    clock: &Arc<ManualClock>,
    entropy: &Arc<SeededEntropy>,
    queue: &MemoryQueue,
    settings: &Settings,
) -> Coordinator {
    Coordinator::builder()
        .store(Arc::clone(store))
        .queue(queue.clone())
        .blobs(Arc::clone(blobs))
        .keys(StaticKey::new("k1", [7; 32]))
        .signing_key([9; 32])
        .clock(Arc::clone(clock))
        .entropy(Arc::clone(entropy))
        .settings(settings.clone())
        .build()
        .await
        .unwrap()
}

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn new_run(instance: &str, operation: Operation) -> NewRun {
    NewRun {
        instance: instance.to_owned(),
        request: RunRequest { operation, inputs: Object::new(), execution_timeout_s: None, priority: 0 },
        idempotency_key: None,
    }
}

pub fn map(value: serde_json::Value) -> Object {
    value.as_object().unwrap().clone()
}

/// A state document of version 4.
pub fn state_document(lineage: &str, serial: u64) -> Bytes {
    let resources: Vec<_> = (0..serial)
        .map(|n| json!({"mode": "managed", "type": "null_resource", "name": format!("r{n}"), "instances": [{}]}))
        .collect();
    let document =
        json!({"version": 4, "serial": serial, "lineage": lineage, "outputs": {}, "resources": resources});
    serde_json::to_vec(&document).unwrap().into()
}

/// Errors that may carry a refusal.
pub trait Refused {
    fn refusal(self) -> Refusal;
}

impl Refused for CoordinatorError {
    fn refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            other => panic!("expected a refusal, found {other:?}"),
        }
    }
}

impl Refused for ControlError {
    fn refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            other => panic!("expected a refusal, found {other:?}"),
        }
    }
}

/// The code something was refused with.
#[track_caller]
pub fn code<T: std::fmt::Debug, E: Refused>(result: Result<T, E>) -> Code {
    match result {
        Ok(value) => panic!("this was not refused: {value:?}"),
        Err(error) => error.refusal().code,
    }
}

pub fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

pub const APPLIED: &[&str] = &[
    "run.created",
    "approval.pending",
    "approval.approved",
    "run.queued",
    "attempt.offered",
    "run.running",
    "state.written",
    "state.written",
    "run.succeeded",
];
