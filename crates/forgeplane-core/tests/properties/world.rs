//! A coordinator with two instances, two workers and two people, and what can happen to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ed25519_dalek::{Signer as _, SigningKey};
use forgeplane_core::coordinator::{Coordinator, InProcess, NewInstance, NewRun, PushTemplate};
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::{Cleanup, Envelope, NotStarted, Outcome, registration_message};
use forgeplane_core::id::{AttemptId, RunId};
use forgeplane_core::memory::{ManualClock, MemoryBlobs, MemoryQueue, MemoryStore, SeededEntropy};
use forgeplane_core::model::*;
use forgeplane_core::ports::*;
use forgeplane_core::rules::admission::RunRequest;
use forgeplane_core::rules::resolve::Resolution;

/// Something that can happen. Indices pick from what there is, modulo its size.
#[derive(Debug, Clone)]
pub enum Command {
    Create { operation: usize, instance: usize },
    Approve(usize),
    Reject(usize),
    Cancel(usize),
    Requeue(usize),
    Promote(usize),
    Schedule,
    Reconcile,
    Sweep,
    Wait(u64),
    Heartbeat { worker: usize, names: bool },
    Claim { worker: usize, again: bool },
    WriteState { worker: usize, stale: bool },
    Conclude { worker: usize, outcome: usize },
    NotStarted { worker: usize, current: bool },
    Replay(usize),
    Forge(usize),
    Restart(usize),
    Resolve(usize),
}

/// A scripted worker.
pub struct Worker {
    name: Name,
    key: SigningKey,
    session: Session,
    nonces: u8,
    /// The nonces it used, by attempt; the newest last.
    intents: BTreeMap<AttemptId, Vec<Nonce>>,
}

pub struct World {
    pub store: Arc<MemoryStore>,
    coordinator: Coordinator,
    control: InProcess,
    clock: Arc<ManualClock>,
    pub alice: Caller,
    bob: Caller,
    workers: Vec<Worker>,
    /// Everything that was ever signed.
    sent: Vec<Envelope>,
    serial: u64,
    /// The ghost of the protocol: nonces for which a claim was granted, by fence.
    pub granted: BTreeMap<Fence, BTreeSet<Nonce>>,
    /// What the last check saw.
    pub before: crate::invariants::Seen,
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

impl World {
    pub async fn new() -> Self {
        let store = Arc::new(MemoryStore::new());
        let clock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let coordinator = Coordinator::builder()
            .store(Arc::clone(&store))
            .queue(MemoryQueue::default())
            .blobs(MemoryBlobs::default())
            .keys(StaticKey::new("k1", [1; 32]))
            .signing_key([2; 32])
            .clock(Arc::clone(&clock))
            .entropy(SeededEntropy::new(7))
            .build()
            .await
            .unwrap();
        let project = coordinator.ensure_project(&name("p")).await.unwrap();
        let mut people = Vec::new();
        for who in ["alice", "bob"] {
            let (_, secret) =
                coordinator.issue_token(project.id, &name(who), Role::Admin, None).await.unwrap();
            people.push(coordinator.authenticate(&secret).await.unwrap());
        }
        let push = PushTemplate {
            name: name("t"),
            tool: Tool::Terraform,
            source: Bytes::from_static(&[0x1f, 0x8b]),
            entrypoint: None,
            schema: None,
            defaults: Object::new(),
            pool: name("default"),
            execution_timeout_s: 600,
            max_execution_timeout_s: None,
            no_output_timeout_s: None,
            queue_timeout_s: Some(3_600),
            cancel_grace_s: 60,
            approval: ApprovalPolicy { expires_after_s: Some(2_000), ..ApprovalPolicy::default() },
        };
        coordinator.push_template(&people[0], push).await.unwrap();
        for instance in ["i0", "i1"] {
            let new = NewInstance {
                name: name(instance),
                template: "t".into(),
                template_version: None,
                inputs: Object::new(),
                secrets: BTreeMap::new(),
                pool: None,
            };
            coordinator.create_instance(&people[0], new).await.unwrap();
        }
        let control = coordinator.in_process();
        let bob = people.remove(1);
        let mut world = Self {
            store,
            coordinator,
            control,
            clock,
            alice: people.remove(0),
            bob,
            workers: Vec::new(),
            sent: Vec::new(),
            serial: 0,
            granted: BTreeMap::new(),
            before: crate::invariants::Seen::default(),
        };
        for index in 0..2_u8 {
            let key = SigningKey::from_bytes(&[10 + index; 32]);
            let token =
                world.coordinator.issue_enrollment(&name("default"), Duration::from_secs(60)).await.unwrap();
            let session = world.register(&name(&format!("w{index}")), &key, Some(token)).await.unwrap();
            let worker = Worker {
                name: name(&format!("w{index}")),
                key,
                session,
                nonces: 0,
                intents: BTreeMap::new(),
            };
            world.workers.push(worker);
            world.heartbeat(usize::from(index), false).await;
        }
        world
    }

    async fn register(
        &self,
        worker: &Name,
        key: &SigningKey,
        enrollment_token: Option<secrecy::SecretString>,
    ) -> Result<Session, ControlError> {
        let challenge = self.control.challenge().await?;
        let proof = key.sign(&registration_message(&challenge.0, worker.as_str(), "default")).to_bytes();
        let registration = Registration {
            name: worker.clone(),
            pool: name("default"),
            capabilities: [("terraform".to_owned(), "1.11".to_owned())].into(),
            max_jobs: 1,
            unsafe_no_isolation: false,
            public_key: key.verifying_key().to_bytes(),
            enrollment_token,
            challenge,
            proof,
            certificate: None,
        };
        Ok(self.control.register(registration).await?.session)
    }

    /// Every run, oldest first.
    pub async fn runs(&self) -> Vec<Run> {
        let select = Select::Runs { project: self.alice.project, status: None, instance: None };
        let mut runs: Vec<Run> = self
            .store
            .list_as::<Run>(&select, &Page::all())
            .await
            .unwrap()
            .into_iter()
            .map(|r| r.value)
            .collect();
        runs.sort_by_key(|run| (run.created_at, run.id));
        runs
    }

    async fn pick(&self, index: usize) -> Option<Run> {
        let runs = self.runs().await;
        if runs.is_empty() { None } else { Some(runs[index % runs.len()].clone()) }
    }

    /// The open attempt that a worker has.
    async fn attempt_of(&self, worker: usize) -> Option<Attempt> {
        let id = self.workers[worker].session.worker;
        let open = self.store.list_as::<Attempt>(&Select::OpenAttempts, &Page::all()).await.unwrap();
        open.into_iter().map(|a| a.value).find(|a| a.worker == id)
    }

    /// Does what a command says. Refusals are part of the game: what counts is what is stored afterwards.
    pub async fn obey(&mut self, command: &Command) {
        if matches!(command, Command::Create { .. } | Command::Promote(_)) {
            // Runs are told apart by age. Attempts are not: several may begin in one moment.
            self.clock.advance(Duration::from_millis(1));
        }
        match command {
            Command::Create { operation, instance } => self.create(*operation, *instance).await,
            Command::Approve(index) => self.review(*index, Verdict::Approve).await,
            Command::Reject(index) => self.review(*index, Verdict::Reject).await,
            Command::Cancel(index) => {
                if let Some(run) = self.pick(*index).await {
                    let _ = self.coordinator.cancel(&self.alice, run.id, None).await;
                }
            }
            Command::Requeue(index) => {
                if let Some(run) = self.pick(*index).await {
                    let _ = self.coordinator.requeue(&self.alice, run.id).await;
                }
            }
            Command::Promote(index) => {
                if let Some(run) = self.pick(*index).await {
                    let _ = self.coordinator.promote(&self.alice, run.id).await;
                }
            }
            Command::Schedule => {
                self.coordinator.schedule_step().await.unwrap();
                self.coordinator.dispatch_step().await.unwrap();
            }
            Command::Reconcile => drop(self.coordinator.reconcile_step().await.unwrap()),
            Command::Sweep => drop(self.coordinator.sweep_step().await.unwrap()),
            Command::Wait(seconds) => drop(self.clock.advance(Duration::from_secs(*seconds))),
            Command::Heartbeat { worker, names } => self.heartbeat(*worker, *names).await,
            Command::Claim { worker, again } => self.claim(*worker, *again).await,
            Command::WriteState { worker, stale } => self.write_state(*worker, *stale).await,
            Command::Conclude { worker, outcome } => self.conclude(*worker, *outcome, None).await,
            Command::NotStarted { worker, current } => self.not_started(*worker, *current).await,
            Command::Replay(index) => {
                if !self.sent.is_empty() {
                    let envelope = self.sent[index % self.sent.len()].clone();
                    self.deliver(index % 2, envelope).await;
                }
            }
            // The attempt's outcome, signed by the other worker.
            Command::Forge(worker) => {
                let other = self.workers[1 - worker].key.clone();
                self.conclude(*worker, 0, Some(other)).await;
            }
            Command::Restart(worker) => {
                let (worker_name, key) =
                    (self.workers[*worker].name.clone(), self.workers[*worker].key.clone());
                if let Ok(session) = self.register(&worker_name, &key, None).await {
                    self.workers[*worker].session = session;
                }
            }
            Command::Resolve(index) => self.resolve(*index).await,
        }
    }

    async fn create(&self, operation: usize, instance: usize) {
        let operation = match operation {
            0 | 1 => Operation::Plan { destroy: false },
            2 => Operation::Destroy { mode: DestroyMode::Plan },
            3 => Operation::Destroy { mode: DestroyMode::Perform },
            4 => Operation::PlanOnly,
            _ => Operation::Teardown,
        };
        let request = RunRequest { operation, inputs: Object::new(), execution_timeout_s: None, priority: 0 };
        let new = NewRun { instance: format!("i{instance}"), request, idempotency_key: None };
        let _ = self.coordinator.create_run(&self.alice, new).await;
    }

    async fn review(&self, index: usize, verdict: Verdict) {
        let Some(approval) = self.pick(index).await.and_then(|r| r.approval) else { return };
        let _ = self.coordinator.review(&self.bob, approval, verdict, None).await;
    }

    async fn heartbeat(&mut self, worker: usize, names: bool) {
        let mut holding = Vec::new();
        if names
            && let Some(attempt) = self.attempt_of(worker).await
            && let Some(claim) = &attempt.claim
        {
            holding.push(Holding { fence: attempt.fence, nonce: claim.nonce });
        }
        if self
            .control
            .heartbeat(&self.workers[worker].session, Heartbeat { holding, ..Heartbeat::default() })
            .await
            .is_err()
        {
            // The session ended with time: a worker registers again.
            let (worker_name, key) = (self.workers[worker].name.clone(), self.workers[worker].key.clone());
            if let Ok(session) = self.register(&worker_name, &key, None).await {
                self.workers[worker].session = session;
            }
        }
    }

    async fn claim(&mut self, worker: usize, again: bool) {
        let Some(attempt) = self.attempt_of(worker).await else { return };
        let intents = self.workers[worker].intents.entry(attempt.id).or_default();
        let nonce = match intents.last() {
            Some(nonce) if again => *nonce,
            _ => {
                let worker = &mut self.workers[worker];
                worker.nonces += 1;
                let nonce = Nonce([worker.nonces; 16]);
                worker.intents.entry(attempt.id).or_default().push(nonce);
                nonce
            }
        };
        let request =
            ClaimRequest { attempt: AttemptRef { attempt: attempt.id, fence: attempt.fence }, nonce };
        if let Ok(grant) = self.control.claim(&self.workers[worker].session, request).await {
            assert_eq!(grant.nonce, nonce);
            self.granted.entry(attempt.fence).or_default().insert(nonce);
        }
    }

    async fn write_state(&mut self, worker: usize, stale: bool) {
        let Some(attempt) = self.attempt_of(worker).await else { return };
        let Some(nonce) = self.workers[worker].intents.get(&attempt.id).and_then(|i| i.last()).copied()
        else {
            return;
        };
        self.serial += 1;
        let instance = attempt.exclusive.map_or_else(String::new, |i| i.to_string());
        let document =
            format!(r#"{{"version":4,"serial":{},"lineage":"l{instance}","resources":[]}}"#, self.serial);
        let document = Bytes::from(document);
        let expected = attempt.last_generation.unwrap_or(attempt.base_generation);
        let write = StateWrite {
            claim: ClaimRef { attempt: attempt.id, fence: attempt.fence, nonce },
            expected_generation: if stale { expected.wrapping_sub(1) } else { expected },
            digest: Digest::of(&document),
            document,
        };
        let _ = self.control.put_state(&self.workers[worker].session, write).await;
    }

    async fn conclude(&mut self, worker: usize, outcome: usize, key: Option<SigningKey>) {
        let Some(attempt) = self.attempt_of(worker).await else { return };
        let Some(nonce) = self.workers[worker].intents.get(&attempt.id).and_then(|i| i.last()).copied()
        else {
            return;
        };
        let outcome =
            [OutcomeKind::Succeeded, OutcomeKind::Failed, OutcomeKind::Canceled, OutcomeKind::TimedOut]
                [outcome];
        let mut artifacts = BTreeMap::new();
        if outcome == OutcomeKind::Succeeded && attempt.exclusive.is_none() {
            let bytes = Bytes::from(format!("plan of {}", attempt.fence));
            let upload = ArtifactUpload {
                claim: ClaimRef { attempt: attempt.id, fence: attempt.fence, nonce },
                kind: ArtifactKind::Plan,
                digest: Digest::of(&bytes),
                bytes,
            };
            artifacts.insert(ArtifactKind::Plan, upload.digest);
            let _ = self.control.put_artifact(&self.workers[worker].session, upload).await;
        }
        let statement = Outcome {
            project: attempt.project,
            run: attempt.run,
            attempt: attempt.id,
            number: attempt.number,
            fence: attempt.fence,
            nonce,
            worker: attempt.worker,
            snapshot: attempt.snapshot,
            bundle: Digest::of(b"bundle"),
            plan: attempt.plan,
            outcome,
            started: true,
            exit_code: None,
            signal: None,
            stop: None,
            forced: false,
            effects_unknown: false,
            tool: None,
            duration_ms: 1,
            generation: attempt.last_generation,
            state: None,
            log_bytes: 0,
            log: Digest::of(b""),
            log_incomplete: false,
            artifacts,
            summary: None,
            cleanup: Cleanup::Clean,
            error: None,
        };
        let key = key.unwrap_or_else(|| self.workers[worker].key.clone());
        let envelope = Envelope::sign(&statement, &key).unwrap();
        self.deliver(worker, envelope).await;
    }

    async fn not_started(&mut self, worker: usize, current: bool) {
        let Some(attempt) = self.attempt_of(worker).await else { return };
        let intents = self.workers[worker].intents.get(&attempt.id).cloned().unwrap_or_default();
        let nonce = if current { intents.last() } else { intents.first() };
        let statement = NotStarted {
            project: attempt.project,
            run: attempt.run,
            attempt: attempt.id,
            fence: attempt.fence,
            nonce: nonce.copied(),
            worker: attempt.worker,
            reason: RunError { code: "worker_restarted".into(), message: "test".into() },
            retryable: current,
        };
        let envelope = Envelope::sign(&statement, &self.workers[worker].key).unwrap();
        self.deliver(worker, envelope).await;
    }

    async fn deliver(&mut self, worker: usize, envelope: Envelope) {
        let digest = envelope.digest();
        self.sent.push(envelope.clone());
        if let Ok(answer) = self.control.conclude(&self.workers[worker].session, envelope).await {
            // H2: whoever gets an answer can tell which bytes it is about.
            assert_eq!(answer.envelope_digest, digest);
        }
    }

    async fn resolve(&self, index: usize) {
        let Some(attempt) = self.pick(index).await.and_then(|r: Run| r.current_attempt) else { return };
        let resolution = Resolution {
            outcome: OutcomeKind::Failed,
            reason: "the host is gone".into(),
            asserted: vec!["worker host is off or wiped".into()],
            generation: None,
        };
        let _ = self.coordinator.resolve_attempt(&self.alice, attempt, &resolution).await;
    }

    pub async fn attempts(&self, run: RunId) -> Vec<Attempt> {
        let found = self.store.list_as::<Attempt>(&Select::Attempts(run), &Page::all()).await.unwrap();
        let mut attempts: Vec<Attempt> = found.into_iter().map(|a| a.value).collect();
        attempts.sort_by_key(|a| a.number);
        attempts
    }
}
