//! A worker that is told what to do.

use std::sync::Arc;
use std::time::Duration;

use forgeplane_core::Timestamp;
use forgeplane_core::coordinator::Coordinator;
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::{
    BundleManifest, Cleanup, Envelope, Outcome, ToolIdentity, registration_message,
};
use forgeplane_core::id::RunId;
use forgeplane_core::model::*;
use forgeplane_core::ports::*;
use secrecy::SecretString;
use serde_json::Value;

use crate::support::House;

/// A worker that does what a test says, over the same control plane as a real one.
pub(crate) struct FakeWorker {
    pub(crate) name: String,
    pub(crate) plane: Arc<dyn ControlPlane>,
    pub(crate) session: Session,
    key: ed25519_dalek::SigningKey,
    coordinator: Coordinator,
    caller: Caller,
}

impl FakeWorker {
    pub(crate) async fn enroll(house: &House) -> Self {
        Self::enroll_over(house, Arc::new(house.coordinator.in_process())).await
    }

    /// Enrolls over any way to the coordinator.
    pub(crate) async fn enroll_over(house: &House, plane: Arc<dyn ControlPlane>) -> Self {
        use ed25519_dalek::Signer as _;
        let name = house.fresh_name("worker");
        let pool: Name = "default".parse().unwrap();
        let token = house.coordinator.issue_enrollment(&pool, Duration::from_secs(60)).await.unwrap();
        let key = ed25519_dalek::SigningKey::from_bytes(Digest::of(name.as_bytes()).as_bytes());
        let challenge = plane.challenge().await.unwrap();
        let message = registration_message(&challenge.0, &name, pool.as_str());
        let registered = plane
            .register(Registration {
                name: name.parse().unwrap(),
                pool,
                capabilities: [("terraform".to_owned(), "1.9.0".to_owned())].into(),
                max_jobs: 1_000,
                unsafe_no_isolation: false,
                public_key: key.verifying_key().to_bytes(),
                enrollment_token: Some(token),
                proof: key.sign(&message).to_bytes(),
                challenge,
                certificate: None,
            })
            .await
            .unwrap();
        let viewer = SecretString::from(house.viewer.clone());
        let worker = Self {
            name,
            plane,
            session: registered.session,
            key,
            coordinator: house.coordinator.clone(),
            caller: house.coordinator.authenticate(&viewer).await.unwrap(),
        };
        worker.beat().await;
        worker
    }

    pub(crate) async fn beat(&self) -> Orders {
        self.plane.heartbeat(&self.session, Heartbeat::default()).await.unwrap()
    }

    /// Claims the attempt that the scheduler makes of `run`.
    pub(crate) async fn claim(&self, run: RunId) -> Job {
        self.coordinator.settle().await.unwrap();
        let view = self.coordinator.run(&self.caller, run).await.unwrap();
        let attempt = view
            .attempts
            .into_iter()
            .find(|a| a.state == AttemptState::Offered)
            .unwrap_or_else(|| panic!("run {run} is not offered: it is {}", view.run.status));
        let of = AttemptRef { attempt: attempt.id, fence: attempt.fence };
        let bundle = self.plane.bundle(&self.session, of).await.unwrap();
        let nonce = Nonce(SystemEntropy.bytes());
        self.plane.claim(&self.session, ClaimRequest { attempt: of, nonce }).await.unwrap();
        Job {
            claim: ClaimRef { attempt: attempt.id, fence: attempt.fence, nonce },
            manifest: bundle.manifest.verify(&self.coordinator.public_key()).unwrap(),
            bundle: bundle.manifest.digest(),
            attempt,
            logged: 0,
            artifacts: Vec::new(),
            generation: None,
        }
    }

    pub(crate) async fn log(&self, job: &mut Job, stream: LogStream, bytes: &[u8]) {
        let frame = LogFrame { stream, at: Timestamp::UNIX_EPOCH, bytes: bytes.to_vec().into() };
        let append = LogAppend { claim: job.claim, offset: job.logged, frames: vec![frame] };
        job.logged = self.plane.append_log(&self.session, append).await.unwrap();
    }

    pub(crate) async fn publish(&self, job: &mut Job, kind: ArtifactKind, bytes: &[u8]) {
        let digest = Digest::of(bytes);
        let upload = ArtifactUpload { claim: job.claim, kind, digest, bytes: bytes.to_vec().into() };
        self.plane.put_artifact(&self.session, upload).await.unwrap();
        job.artifacts.push((kind, digest));
    }

    /// Writes a state document; answers with its generation.
    pub(crate) async fn save(&self, job: &mut Job, base: u64, document: &Value) -> Result<u64, ControlError> {
        let document = document.to_string().into_bytes();
        let write = StateWrite {
            claim: job.claim,
            expected_generation: base,
            digest: Digest::of(&document),
            document: document.into(),
        };
        let generation = self.plane.put_state(&self.session, write).await?;
        job.generation = Some(generation);
        Ok(generation)
    }

    pub(crate) async fn conclude(&self, job: Job, outcome: OutcomeKind) {
        let Job { attempt, manifest, .. } = &job;
        let failed = outcome == OutcomeKind::Failed;
        let statement = Outcome {
            project: manifest.project,
            run: manifest.run,
            attempt: attempt.id,
            number: attempt.number,
            fence: attempt.fence,
            nonce: job.claim.nonce,
            worker: attempt.worker,
            snapshot: manifest.snapshot,
            bundle: job.bundle,
            plan: manifest.plan,
            outcome,
            started: true,
            exit_code: Some(i32::from(failed)),
            signal: None,
            stop: None,
            forced: false,
            effects_unknown: false,
            tool: Some(ToolIdentity {
                tool: Tool::Terraform,
                version: "1.9.0".to_owned(),
                digest: Digest::of(b"terraform"),
            }),
            duration_ms: 5,
            generation: job.generation,
            state: None,
            log_bytes: job.logged,
            log: Digest::of(b""),
            log_incomplete: false,
            artifacts: job.artifacts.into_iter().collect(),
            summary: Some(PlanSummary { add: 1, ..PlanSummary::default() }),
            cleanup: Cleanup::Clean,
            error: failed.then(|| RunError { code: "tool_failed".to_owned(), message: "exit 1".to_owned() }),
        };
        let envelope = Envelope::sign(&statement, &self.key).unwrap();
        assert!(self.plane.conclude(&self.session, envelope).await.unwrap().applied);
    }

    /// Claims `run` and ends it at once.
    pub(crate) async fn execute(&self, run: RunId, outcome: OutcomeKind) {
        let job = self.claim(run).await;
        self.conclude(job, outcome).await;
    }

    /// Executes a plan run that succeeds.
    pub(crate) async fn plan(&self, run: RunId) {
        let mut job = self.claim(run).await;
        self.log(&mut job, LogStream::Stdout, b"planning\n").await;
        self.publish(&mut job, ArtifactKind::Plan, format!("plan of {run}").as_bytes()).await;
        self.publish(&mut job, ArtifactKind::PlanText, "+ créer\n".as_bytes()).await;
        self.publish(&mut job, ArtifactKind::PlanJson, b"{\"secret\":\"in clear\"}").await;
        self.conclude(job, OutcomeKind::Succeeded).await;
    }
}

/// A claimed attempt.
pub(crate) struct Job {
    claim: ClaimRef,
    manifest: BundleManifest,
    bundle: Digest,
    attempt: Attempt,
    logged: u64,
    artifacts: Vec<(ArtifactKind, Digest)>,
    generation: Option<u64>,
}
