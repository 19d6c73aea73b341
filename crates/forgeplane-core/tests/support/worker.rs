//! A worker that does exactly what the test tells it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use ed25519_dalek::{Signer as _, SigningKey};
use forgeplane_core::Timestamp;
use forgeplane_core::coordinator::InProcess;
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::{
    BundleManifest, Cleanup, Envelope, NotStarted, Outcome, Statement, ToolIdentity, registration_message,
};
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::*;
use forgeplane_core::ports::*;
use futures_util::FutureExt as _;
use secrecy::SecretString;

use super::{World, name, state_document};

pub struct TestWorker {
    pub control: InProcess,
    pub key: SigningKey,
    pub name: Name,
    pub pool: Name,
    pub capabilities: BTreeMap<String, String>,
    pub max_jobs: u32,
    pub session: Session,
    pub coordinator_key: [u8; 32],
    jobs: Box<dyn JobStream>,
    nonces: Mutex<u64>,
    /// Claims it holds and names in its heartbeats.
    pub holding: Mutex<Vec<Holding>>,
}

/// A claimed attempt and everything the worker was given for it.
#[derive(Debug, Clone)]
pub struct Work {
    pub job: Job,
    pub manifest: BundleManifest,
    pub bundle: Bundle,
    pub snapshot: Snapshot,
    pub nonce: Nonce,
    pub grant: Option<ClaimGrant>,
}

impl Work {
    pub fn attempt(&self) -> AttemptRef {
        AttemptRef { attempt: self.job.attempt, fence: self.job.fence }
    }

    pub fn claim(&self) -> ClaimRef {
        ClaimRef { attempt: self.job.attempt, fence: self.job.fence, nonce: self.nonce }
    }

    pub fn request(&self) -> ClaimRequest {
        ClaimRequest { attempt: self.attempt(), nonce: self.nonce }
    }

    pub fn outcome(&self, kind: OutcomeKind) -> Outcome {
        Outcome {
            project: self.job.project,
            run: self.job.run,
            attempt: self.job.attempt,
            number: self.manifest.number,
            fence: self.job.fence,
            nonce: self.nonce,
            worker: self.job.worker,
            snapshot: self.manifest.snapshot,
            bundle: self.bundle.manifest.digest(),
            plan: self.manifest.plan,
            outcome: kind,
            started: true,
            exit_code: Some(i32::from(kind != OutcomeKind::Succeeded)),
            signal: None,
            stop: None,
            forced: false,
            effects_unknown: false,
            tool: Some(ToolIdentity {
                tool: self.snapshot.tool,
                version: "1.11.4".to_owned(),
                digest: Digest::of(b"tool"),
            }),
            duration_ms: 1_000,
            generation: None,
            state: None,
            log_bytes: 0,
            log: Digest::of(b""),
            log_incomplete: false,
            artifacts: BTreeMap::new(),
            summary: Some(PlanSummary { add: 1, ..PlanSummary::default() }),
            cleanup: Cleanup::Clean,
            error: (kind != OutcomeKind::Succeeded).then(|| RunError {
                code: "tool_failed".to_owned(),
                message: "the tool ended with exit code 1".to_owned(),
            }),
        }
    }

    pub fn not_started(&self, nonce: Option<Nonce>, retryable: bool) -> NotStarted {
        NotStarted {
            project: self.job.project,
            run: self.job.run,
            attempt: self.job.attempt,
            fence: self.job.fence,
            nonce,
            worker: self.job.worker,
            reason: RunError {
                code: "worker_restarted".to_owned(),
                message: "the worker restarted before the tool started".to_owned(),
            },
            retryable,
        }
    }
}

/// What a worker introduces itself with.
#[derive(Clone)]
pub struct Introduction {
    pub name: Name,
    pub pool: Name,
    pub capabilities: BTreeMap<String, String>,
    pub max_jobs: u32,
    pub key: SigningKey,
    pub token: Option<SecretString>,
}

impl Introduction {
    pub fn of(called: &str, key: u8) -> Self {
        let capabilities = ["terraform", "opentofu", "ansible"].map(|l| (l.to_owned(), "1.0".to_owned()));
        Self {
            name: name(called),
            pool: name("default"),
            capabilities: capabilities.into(),
            max_jobs: 1,
            key: SigningKey::from_bytes(&[key; 32]),
            token: None,
        }
    }

    pub async fn register(&self, control: &InProcess) -> Result<Registered, ControlError> {
        let challenge = control.challenge().await?;
        let message = registration_message(&challenge.0, self.name.as_str(), self.pool.as_str());
        control
            .register(Registration {
                name: self.name.clone(),
                pool: self.pool.clone(),
                capabilities: self.capabilities.clone(),
                max_jobs: self.max_jobs,
                unsafe_no_isolation: false,
                public_key: self.key.verifying_key().to_bytes(),
                enrollment_token: self.token.clone(),
                challenge,
                proof: self.key.sign(&message).to_bytes(),
                certificate: None,
            })
            .await
    }
}

impl World {
    pub async fn enrollment(&self, pool: &str) -> SecretString {
        self.coordinator.issue_enrollment(&name(pool), Duration::from_secs(3600)).await.unwrap()
    }

    /// A connected worker of the default pool with every capability.
    pub async fn worker(&self, called: &str) -> TestWorker {
        let key = called.bytes().fold(17_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        self.worker_as(Introduction::of(called, key)).await
    }

    pub async fn worker_as(&self, mut introduction: Introduction) -> TestWorker {
        let control = self.coordinator.in_process();
        // Workers are told apart by age.
        self.clock.advance(Duration::from_millis(1));
        introduction.token = Some(self.enrollment(introduction.pool.as_str()).await);
        let registered = introduction.register(&control).await.unwrap();
        let jobs = self.coordinator.queue().subscribe(registered.session.worker).await.unwrap();
        let worker = TestWorker {
            control,
            key: introduction.key,
            name: introduction.name,
            pool: introduction.pool,
            capabilities: introduction.capabilities,
            max_jobs: introduction.max_jobs,
            session: registered.session,
            coordinator_key: registered.coordinator_key,
            jobs,
            nonces: Mutex::new(0),
            holding: Mutex::default(),
        };
        worker.heartbeat().await.unwrap();
        worker
    }
}

impl TestWorker {
    pub fn id(&self) -> WorkerId {
        self.session.worker
    }

    pub fn introduction(&self) -> Introduction {
        Introduction {
            name: self.name.clone(),
            pool: self.pool.clone(),
            capabilities: self.capabilities.clone(),
            max_jobs: self.max_jobs,
            key: self.key.clone(),
            token: None,
        }
    }

    /// Comes back as a new incarnation; with its journal it still holds what it held.
    pub async fn restart(&mut self, keeps_journal: bool) {
        self.session = self.introduction().register(&self.control).await.unwrap().session;
        if !keeps_journal {
            self.holding.lock().unwrap().clear();
        }
    }

    pub async fn heartbeat(&self) -> Result<Orders, ControlError> {
        let holding = self.holding.lock().unwrap().clone();
        self.control.heartbeat(&self.session, Heartbeat { holding, ..Heartbeat::default() }).await
    }

    pub fn fresh_nonce(&self) -> Nonce {
        let mut nonces = self.nonces.lock().unwrap();
        *nonces += 1;
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.key.verifying_key().as_bytes()[..8]);
        nonce[8..].copy_from_slice(&nonces.to_be_bytes());
        Nonce(nonce)
    }

    /// The next job in the queue, if there is one now.
    pub async fn job(&mut self) -> Option<Job> {
        let delivery = self.jobs.next().now_or_never()?.unwrap();
        let job = delivery.job().clone();
        delivery.ack().await.unwrap();
        Some(job)
    }

    /// Fetches and verifies the bundle of a job, as every worker must before it claims.
    pub async fn prepare(&self, job: Job) -> Result<Work, ControlError> {
        let attempt = AttemptRef { attempt: job.attempt, fence: job.fence };
        let bundle = self.control.bundle(&self.session, attempt).await?;
        let manifest: BundleManifest = bundle.manifest.verify(&self.coordinator_key).unwrap();
        assert_eq!((manifest.attempt, manifest.fence, manifest.worker), (job.attempt, job.fence, self.id()));
        let digest = |bytes: &Option<Bytes>| bytes.as_deref().map(Digest::of);
        assert_eq!(Digest::of(&bundle.snapshot), manifest.snapshot);
        assert_eq!(Digest::of(&bundle.source), manifest.source);
        assert_eq!(digest(&bundle.plan), manifest.plan);
        assert_eq!(digest(&bundle.lock_file), manifest.lock_file);
        assert_eq!(digest(&bundle.state), manifest.state.as_ref().and_then(|s| s.digest));
        let snapshot = serde_json::from_slice(&bundle.snapshot).unwrap();
        Ok(Work { job, manifest, bundle, snapshot, nonce: self.fresh_nonce(), grant: None })
    }

    pub async fn prepare_next(&mut self) -> Work {
        let job = self.job().await.expect("a job is in the queue");
        self.prepare(job).await.unwrap()
    }

    pub async fn claim(&self, work: &mut Work) -> Result<(), ControlError> {
        let grant = self.control.claim(&self.session, work.request()).await?;
        assert_eq!(grant.nonce, work.nonce);
        work.grant = Some(grant);
        self.hold(work);
        Ok(())
    }

    pub fn hold(&self, work: &Work) {
        self.holding.lock().unwrap().push(Holding { fence: work.job.fence, nonce: work.nonce });
    }

    /// Takes the next job across the fence.
    pub async fn claim_next(&mut self) -> Work {
        let mut work = self.prepare_next().await;
        self.claim(&mut work).await.unwrap();
        work
    }

    pub async fn log(&self, work: &Work, offset: u64, text: &'static str) -> Result<u64, ControlError> {
        let frames = vec![LogFrame {
            stream: LogStream::Stdout,
            at: Timestamp::UNIX_EPOCH,
            bytes: Bytes::from_static(text.as_bytes()),
        }];
        self.control.append_log(&self.session, LogAppend { claim: work.claim(), offset, frames }).await
    }

    pub async fn put_state(&self, work: &Work, expected: u64, document: Bytes) -> Result<u64, ControlError> {
        let write = StateWrite {
            claim: work.claim(),
            expected_generation: expected,
            digest: Digest::of(&document),
            document,
        };
        self.control.put_state(&self.session, write).await
    }

    pub async fn put_artifact(
        &self,
        work: &Work,
        kind: ArtifactKind,
        bytes: Bytes,
    ) -> Result<Digest, ControlError> {
        let digest = Digest::of(&bytes);
        let upload = ArtifactUpload { claim: work.claim(), kind, digest, bytes };
        self.control.put_artifact(&self.session, upload).await.map(|()| digest)
    }

    /// The files of a plan; which bytes depends on the attempt.
    fn plan_files(work: &Work) -> [(ArtifactKind, Bytes); 4] {
        let of = |what: &str| Bytes::from(format!("{what} of attempt {}", work.job.attempt));
        [
            (ArtifactKind::Plan, of("plan")),
            (ArtifactKind::PlanJson, of("plan json")),
            (ArtifactKind::PlanText, of("plan text")),
            (ArtifactKind::LockFile, of("lock file")),
        ]
    }

    pub async fn publish_plan(&self, work: &Work) {
        for (kind, bytes) in Self::plan_files(work) {
            self.put_artifact(work, kind, bytes).await.unwrap();
        }
    }

    pub fn sign<S: Statement>(&self, statement: &S) -> Envelope {
        Envelope::sign(statement, &self.key).unwrap()
    }

    pub async fn deliver(&self, envelope: &Envelope) -> Result<ReceiptAnswer, ControlError> {
        self.control.conclude(&self.session, envelope.clone()).await
    }

    /// Stops naming a claim in heartbeats.
    pub fn release(&self, work: &Work) {
        self.holding.lock().unwrap().retain(|h| h.fence != work.job.fence);
    }

    /// Signs and delivers; the receipt must name what was signed (H2).
    pub async fn conclude(&self, work: &Work, outcome: &Outcome) -> ReceiptAnswer {
        let envelope = self.sign(outcome);
        let answer = self.deliver(&envelope).await.unwrap();
        assert_eq!(answer.envelope_digest, envelope.digest());
        self.release(work);
        answer
    }

    /// Ends in success; for a plan with the files it published.
    pub async fn succeed(&self, work: &Work) -> Envelope {
        let mut outcome = work.outcome(OutcomeKind::Succeeded);
        if work.snapshot.operation.publishes_plan() {
            outcome.artifacts =
                Self::plan_files(work).into_iter().map(|(kind, bytes)| (kind, Digest::of(&bytes))).collect();
        }
        assert!(self.conclude(work, &outcome).await.applied);
        self.sign(&outcome)
    }

    pub async fn end(&self, work: &Work, kind: OutcomeKind) -> Envelope {
        let outcome = work.outcome(kind);
        assert!(self.conclude(work, &outcome).await.applied);
        self.sign(&outcome)
    }

    /// Writes the next two generations, as a tool that saves while it works does.
    pub async fn save_state(&self, work: &Work, lineage: &str) {
        let base = work.manifest.state.as_ref().unwrap().generation;
        for generation in base..base + 2 {
            let written = self.put_state(work, generation, state_document(lineage, generation + 1)).await;
            assert_eq!(written.unwrap(), generation + 1);
        }
    }
}
