//! What a restarted worker makes of what it held, and lost answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use forgeplane_core::coordinator::InProcess;
use forgeplane_core::evidence::Envelope;
use forgeplane_core::model::*;
use forgeplane_core::ports::*;
use forgeplane_core::rules::Settings;
use tokio::sync::Notify;

use crate::support::{House, PATIENCE, house, house_with, name, terraform};

/// A control plane that loses answers.
pub struct Lossy {
    pub inner: InProcess,
    /// How many answers to a claim never arrive, after the claim was committed.
    pub lost_claims: AtomicUsize,
    /// How many answers to a conclusion are lost, after it was committed.
    pub lost_receipts: AtomicUsize,
    /// How many answers to a rotation are lost, after it was committed.
    pub lost_rotations: AtomicUsize,
    /// Envelopes that were sent, as JSON.
    pub sent: std::sync::Mutex<Vec<String>>,
    /// Told when a claim's answer was lost.
    pub claim_lost: Notify,
    /// What becomes of bundles on their way.
    pub bundle: fn(&mut Bundle),
}

impl Lossy {
    pub fn new(house: &House) -> Arc<Self> {
        Arc::new(Self {
            inner: house.coordinator.in_process(),
            lost_claims: AtomicUsize::new(0),
            lost_receipts: AtomicUsize::new(0),
            lost_rotations: AtomicUsize::new(0),
            sent: std::sync::Mutex::default(),
            claim_lost: Notify::new(),
            bundle: |_| {},
        })
    }
}

fn take_one(counter: &AtomicUsize) -> bool {
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
}

/// The part of a [`Lossy`] that a worker holds.
pub struct Via(pub Arc<Lossy>);

#[async_trait]
impl ControlPlane for Via {
    async fn challenge(&self) -> Result<Challenge, ControlError> {
        self.0.inner.challenge().await
    }
    async fn register(&self, registration: Registration) -> Result<Registered, ControlError> {
        self.0.inner.register(registration).await
    }
    async fn heartbeat(&self, session: &Session, heartbeat: Heartbeat) -> Result<Orders, ControlError> {
        self.0.inner.heartbeat(session, heartbeat).await
    }
    async fn orders(&self, session: &Session, known: &Orders) -> Result<Orders, ControlError> {
        self.0.inner.orders(session, known).await
    }
    async fn bundle(&self, session: &Session, attempt: AttemptRef) -> Result<Bundle, ControlError> {
        let mut bundle = self.0.inner.bundle(session, attempt).await?;
        (self.0.bundle)(&mut bundle);
        Ok(bundle)
    }
    async fn claim(&self, session: &Session, request: ClaimRequest) -> Result<ClaimGrant, ControlError> {
        let grant = self.0.inner.claim(session, request).await;
        if take_one(&self.0.lost_claims) {
            self.0.claim_lost.notify_one();
            return std::future::pending().await;
        }
        grant
    }
    async fn append_log(&self, session: &Session, append: LogAppend) -> Result<u64, ControlError> {
        self.0.inner.append_log(session, append).await
    }
    async fn put_state(&self, session: &Session, write: StateWrite) -> Result<u64, ControlError> {
        self.0.inner.put_state(session, write).await
    }
    async fn put_artifact(&self, session: &Session, upload: ArtifactUpload) -> Result<(), ControlError> {
        self.0.inner.put_artifact(session, upload).await
    }
    async fn rotate_key(&self, session: &Session, rotation: Envelope) -> Result<(), ControlError> {
        self.0.inner.rotate_key(session, rotation).await?;
        if take_one(&self.0.lost_rotations) {
            return Err(ControlError::Unavailable("the answer was lost".into()));
        }
        Ok(())
    }
    async fn conclude(&self, session: &Session, envelope: Envelope) -> Result<ReceiptAnswer, ControlError> {
        self.0.sent.lock().unwrap().push(envelope.to_json());
        let answer = self.0.inner.conclude(session, envelope).await;
        if take_one(&self.0.lost_receipts) {
            return Err(ControlError::Unavailable("the answer was lost".into()));
        }
        answer
    }
}

#[tokio::test]
async fn a7_a_claim_whose_answer_was_lost_before_a_crash_is_tried_again_and_runs_once() {
    let house = house().await;
    let tool = house.fake_terraform("[ \"$1\" = plan ] && echo start >> \"$LEDGER\"; exit 0");
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let lossy = Lossy::new(&house);
    lossy.lost_claims.store(1, Ordering::SeqCst);
    let config = house.config(Tool::Terraform, &tool).await;
    let worker = house.worker_with(config.clone(), Via(Arc::clone(&lossy))).await;
    let run = house.create(Operation::PlanOnly).await;
    lossy.claim_lost.notified().await;
    assert_eq!(house.view(run).await.run.status, RunStatus::Running);
    worker.crash().await;

    let _worker = house.worker_with(config, house.coordinator.in_process()).await;
    let view = house.must_succeed(run).await;
    assert_eq!(view.attempts.len(), 2);
    assert!(matches!(
        view.attempts[0].closing,
        Some(Closing::Receipted { outcome: OutcomeKind::NotStarted, .. })
    ));
    assert!(view.attempts[0].fence < view.attempts[1].fence);
    assert_eq!(house.ledger_text(), "start\n");
}

#[tokio::test]
async fn a10_t070_a_worker_that_dies_with_its_tool_signs_for_it_after_the_restart() {
    let house = house().await;
    let tool = house.fake_terraform("echo start >> \"$LEDGER\"; echo running; setsid sleep 300 & sleep 300");
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let config = house.config(Tool::Terraform, &tool).await;
    let worker = house.worker_with(config.clone(), house.coordinator.in_process()).await;
    let run = house.create(Operation::PlanOnly).await;
    house.until_logged(run, "running").await;
    worker.crash().await;

    let _worker = house.worker_with(config, house.coordinator.in_process()).await;
    let view = house.ended(run).await;
    assert_eq!(view.run.status, RunStatus::Failed);
    assert_eq!(view.run.error.unwrap().code, "worker_restarted");
    assert_eq!(view.attempts.len(), 1);
    let outcome = house.outcome(run).await;
    assert!(outcome.effects_unknown && outcome.started);
    assert_eq!(house.ledger_text(), "start\n");
    assert!(house.processes().is_empty());
}

#[tokio::test]
async fn a11_t011_with_the_journal_lost_the_execution_is_unresolved_and_never_repeated() {
    let settings = Settings {
        heartbeat: Duration::from_millis(200),
        worker_offline_after: Duration::from_millis(600),
        unresolved_after: Duration::from_secs(1),
        ..Settings::default()
    };
    let house = house_with(settings).await;
    let tool = house.fake_terraform("echo start >> \"$LEDGER\"; echo running; sleep 300");
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let config = house.config(Tool::Terraform, &tool).await;
    let worker = house.worker_with(config.clone(), house.coordinator.in_process()).await;
    let run = house.create(Operation::Destroy { mode: DestroyMode::Perform }).await;
    house.until_logged(run, "running").await;
    worker.crash().await;
    std::fs::remove_dir_all(&config.state_dir).unwrap();

    let mut other = house.config(Tool::Terraform, &tool).await;
    other.name = name("w2");
    let _worker = house.worker_with(other, house.coordinator.in_process()).await;
    let view = house.until(run, |view| view.is_unresolved()).await;
    assert_eq!(view.run.status, RunStatus::Running);
    let refused = house.coordinator.requeue(&house.alice, run).await.unwrap_err();
    assert_eq!(refused.code(), "unresolved_execution");
    // Another run that changes the instance waits, and says for what.
    let next = house.create(Operation::Destroy { mode: DestroyMode::Perform }).await;
    let why = house.coordinator.explain(&house.alice, next).await.unwrap().waiting.unwrap();
    assert_eq!(why.code(), "instance_busy");
    assert!(why.to_string().contains("unresolved"), "{why}");
    // A reader runs beside it, on the other worker.
    let reader = house.create(Operation::PlanOnly).await;
    house.until_logged(reader, "running").await;
    assert_eq!(house.ledger_text().lines().count(), 2);
    assert_eq!(house.view(run).await.attempts.len(), 1);
}

#[tokio::test]
async fn t024_a14_lost_receipts_make_the_worker_send_the_same_bytes_again() {
    let house = house().await;
    let tool = house.fake_terraform("exit 0");
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let lossy = Lossy::new(&house);
    lossy.lost_receipts.store(2, Ordering::SeqCst);
    let config = house.config(Tool::Terraform, &tool).await;
    let worker = house.worker_with(config.clone(), Via(Arc::clone(&lossy))).await;
    let run = house.create(Operation::PlanOnly).await;
    house.must_succeed(run).await;
    worker.shutdown.drain.cancel();
    worker.ended().await;
    let sent = lossy.sent.lock().unwrap().clone();
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|envelope| *envelope == sent[0]));
    let left: Vec<_> = std::fs::read_dir(config.state_dir.join("journal")).unwrap().collect();
    assert!(left.is_empty(), "the journal still holds {left:?}");
}

#[tokio::test]
async fn t090_state_saved_before_a_crash_is_the_current_state() {
    let slow = r#"
        resource "terraform_data" "first" { input = "kept" }
        resource "terraform_data" "second" {
          input = terraform_data.first.output
          provisioner "local-exec" { command = "echo sleeping; sleep 300" }
        }"#;
    let house = house().await;
    let config = house.config(Tool::Terraform, &terraform()).await;
    let worker = house.worker_with(config.clone(), house.coordinator.in_process()).await;
    house.app(Tool::Terraform, &[("main.tf", slow)], |_| {}).await;
    let plan = house.succeed(Operation::Plan { destroy: false }).await;
    let apply = house.coordinator.promote(&house.alice, plan.run.id).await.unwrap();
    house.until_logged(apply.id, "sleeping").await;
    worker.crash().await;
    let before = house.coordinator.instance(&house.alice, "app").await.unwrap().state.unwrap();
    let _worker = house.worker_with(config, house.coordinator.in_process()).await;
    let view = house.ended(apply.id).await;
    assert_eq!(view.run.error.unwrap().code, "worker_restarted");
    let after = house.coordinator.instance(&house.alice, "app").await.unwrap().state.unwrap();
    assert_eq!((before.head, before.digest), (after.head, after.digest));
}

#[tokio::test]
async fn an_outcome_signed_by_a_worker_that_was_disconnected_is_kept_and_not_given_up() {
    let house = house().await;
    let go = house.directory.path().join("go");
    let tool = house.fake_terraform(&format!(
        "echo running; while [ ! -e {} ]; do sleep 0.05; done; exit 1",
        go.display()
    ));
    let config = house.config(Tool::Terraform, &tool).await;
    let worker = house.worker_with(config.clone(), house.coordinator.in_process()).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let run = house.create(Operation::PlanOnly).await;
    house.until_logged(run, "running").await;
    house.coordinator.disconnect_worker(&house.alice, "w1").await.unwrap();
    std::fs::write(&go, "").unwrap();
    // It finishes what runs, signs, cannot deliver, and ends.
    let journal = config.state_dir.join("journal");
    let error = worker.result().await.unwrap_err();
    assert_eq!(error.code(), "worker_disabled", "{error}");
    let kept: Vec<_> = std::fs::read_dir(&journal).unwrap().map(|e| e.unwrap().path()).collect();
    let rejected = std::fs::read_dir(config.state_dir.join("rejected")).unwrap().count();
    assert_eq!((kept.len(), rejected), (1, 0));
    assert!(std::fs::read_to_string(&kept[0]).unwrap().contains("\"signed\""));
}

/// Its key is replaced while it has nothing to do; answers that are lost on the way strand nobody.
#[tokio::test]
async fn a_key_is_replaced_on_the_administrators_word_whatever_answer_is_lost() {
    let house = house().await;
    let tool = house.fake_terraform("exit 0");
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let config = house.config(Tool::Terraform, &tool).await;
    let lossy = Lossy::new(&house);
    let worker = house.worker_with(config.clone(), Via(Arc::clone(&lossy))).await;
    house.must_succeed(house.create(Operation::PlanOnly).await).await;
    let key = async || house.one_worker().await.worker.key;
    let changed = async |from| house.until_worker(|w| w.worker.key != from).await.worker.key;
    let first = key().await;
    house.coordinator.rotate_worker_key(&house.alice, "w1").await.unwrap();
    let second = changed(first).await;
    house.must_succeed(house.create(Operation::PlanOnly).await).await;

    // Committed, but the worker does not hear of it: as long as it does not know which key counts, it begins nothing.
    lossy.lost_rotations.store(1_000, Ordering::SeqCst);
    house.coordinator.rotate_worker_key(&house.alice, "w1").await.unwrap();
    let unheard = changed(second).await;
    let run = house.create(Operation::PlanOnly).await;
    let asked_again = async {
        while lossy.lost_rotations.load(Ordering::SeqCst) > 998 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asked_again).await.expect("the worker asks which key is in force");
    assert!(house.view(run).await.attempts[0].claim.is_none());
    lossy.lost_rotations.store(0, Ordering::SeqCst);
    house.must_succeed(run).await;
    assert_eq!(house.outcome(run).await.outcome, OutcomeKind::Succeeded);

    // Committed, but the worker does not hear of it and ends.
    lossy.lost_rotations.store(usize::MAX, Ordering::SeqCst);
    house.coordinator.rotate_worker_key(&house.alice, "w1").await.unwrap();
    let third = changed(unheard).await;
    assert!(config.state_dir.join("identity-next.key").exists());
    worker.crash().await;
    let _worker = house.worker_with(config.clone(), house.coordinator.in_process()).await;
    let run = house.must_succeed(house.create(Operation::PlanOnly).await).await.run;
    assert_eq!(key().await, third);
    assert!(!config.state_dir.join("identity-next.key").exists());
    let evidence = house.coordinator.evidence(&house.alice, run.id, None).await.unwrap();
    assert_eq!(evidence.verify().unwrap().worker_key, third);
}

/// What is about to end says so: nothing more is offered to it, and the run goes to the next worker at once.
#[tokio::test]
async fn a_worker_that_drains_is_offered_nothing_more() {
    let house = house().await;
    let go = house.directory.path().join("go");
    let tool =
        house.fake_terraform(&format!("echo running; while [ ! -e {} ]; do sleep 0.05; done", go.display()));
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let worker = house.worker(Tool::Terraform, &tool).await;
    let run = house.create(Operation::PlanOnly).await;
    house.until_logged(run, "running").await;
    worker.shutdown.drain.cancel();
    house.until_worker(|w| w.status == WorkerStatus::Draining).await;
    std::fs::write(&go, "").unwrap();
    house.must_succeed(run).await;
    worker.ended().await;
    // Its last word.
    assert_eq!(house.one_worker().await.status, WorkerStatus::Draining);
}
