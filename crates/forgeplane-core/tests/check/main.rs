//! The check of a store finds what must never be. Each violation is planted where no rule and no guard would let it in.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod planted;

use forgeplane_core::check::{Report, check};
use forgeplane_core::digest::Digest;
use forgeplane_core::model::*;
use forgeplane_core::ports::{Store as _, StoreExt as _};
use planted::Planted;
use support::*;

/// A world with an applied run (plan, approval, state), a failed one, and one that is being executed.
struct Lived {
    world: World,
    applied: Run,
    running: Run,
    failed: Run,
}

async fn lived() -> Lived {
    let world = World::new().await;
    world.network().await;
    let mut worker = world.worker("w1").await;
    let applied = world.approved_apply(&mut worker, "network").await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.save_state(&work, "lineage").await;
    worker.succeed(&work).await;
    world.sandbox().await;
    let failed = world.create("sandbox", Operation::Preview).await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.end(&work, OutcomeKind::Failed).await;
    let running = world.create("sandbox", Operation::Preview).await;
    world.step().await;
    worker.claim_next().await;
    let [applied, failed, running] = [applied, failed, running].map(|run| run.id);
    let read = async |id| world.store.get_as::<Run>(id).await.unwrap().unwrap().value;
    let (applied, failed, running) = (read(applied).await, read(failed).await, read(running).await);
    Lived { world, applied, running, failed }
}

impl Lived {
    async fn check(&self) -> Report {
        check(&*self.world.store).await.unwrap()
    }

    /// The invariants that are reported broken when this record is what it is here.
    async fn with(self, record: impl Into<Record>) -> Vec<&'static str> {
        let store = Planted { store: self.world.store.clone(), record: record.into() };
        let mut broken: Vec<_> =
            check(&store).await.unwrap().violations.iter().map(|v| v.invariant).collect();
        broken.dedup();
        broken
    }

    async fn attempt(&self, run: &Run) -> Attempt {
        self.world.last_attempt(run.id).await
    }

    async fn receipt(&self, run: &Run) -> Receipt {
        let attempt = self.attempt(run).await;
        self.world.store.get_as::<Receipt>(attempt.id).await.unwrap().unwrap().value
    }
}

#[tokio::test]
async fn a_store_that_was_used_properly_holds() {
    let lived = lived().await;
    let report = lived.check().await;
    assert_eq!(report.violations, []);
    assert_eq!((report.runs, report.live_runs, report.attempts, report.receipts), (4, 1, 4, 3));
    assert_eq!((report.generations, report.workers), (2, 1));
    assert!(report.events > 12, "{report:?}");
}

#[tokio::test]
async fn i1_two_attempts_with_one_fence() {
    let it = lived().await;
    let fence = it.attempt(&it.failed).await.fence;
    let attempt = Attempt { fence, ..it.attempt(&it.running).await };
    assert_eq!(it.with(attempt).await, ["I1"]);
}

#[tokio::test]
async fn i2_two_open_attempts_in_one_slot() {
    let it = lived().await;
    let closed = it.attempt(&it.failed).await;
    let open = Attempt { state: AttemptState::Claimed, closed_at: None, closing: None, ..closed };
    // It also has a receipt, and its run is over.
    assert_eq!(it.with(open).await, ["I13", "I2", "I5"]);
}

#[tokio::test]
async fn i5_i7_a_success_without_a_receipt() {
    let it = lived().await;
    let closed = it.attempt(&it.applied).await;
    let closing =
        Some(Closing::Receipted { envelope: Digest::of(b"other"), outcome: OutcomeKind::Succeeded });
    assert_eq!(it.with(Attempt { closing, ..closed }).await, ["I5"]);
    let it = lived().await;
    let run = Run { status: RunStatus::Succeeded, ..it.failed.clone() };
    assert_eq!(it.with(run).await, ["I18", "I7"]);
}

#[tokio::test]
async fn i8_attempts_out_of_order() {
    let it = lived().await;
    let attempt = it.attempt(&it.failed).await;
    assert_eq!(it.with(Attempt { number: 2, ..attempt }).await, ["I8"]);
    let it = lived().await;
    let run = Run { attempts: 2, ..it.failed.clone() };
    assert_eq!(it.with(run).await, ["I8"]);
}

#[tokio::test]
async fn i9_a_claimed_attempt_that_was_revoked() {
    let it = lived().await;
    let claimed = it.attempt(&it.running).await;
    let closing = Some(Closing::Revoked { reason: "offer_expired".into() });
    let revoked = Attempt { state: AttemptState::Closed, closing, ..claimed };
    // The run still says that it is running.
    assert_eq!(it.with(revoked).await, ["I4", "I9"]);
}

#[tokio::test]
async fn i10_receipts_that_do_not_prove_what_they_say() {
    let it = lived().await;
    let receipt = it.receipt(&it.failed).await;
    let other = it.receipt(&it.applied).await;
    // Somebody else's outcome, properly signed.
    let swapped = Receipt {
        envelope: other.envelope.clone(),
        envelope_digest: receipt.envelope_digest,
        ..receipt.clone()
    };
    assert_eq!(it.with(swapped).await, ["I10"]);
    let it = lived().await;
    assert_eq!(it.with(Receipt { outcome: OutcomeKind::Succeeded, ..receipt.clone() }).await, ["I10"]);
    let it = lived().await;
    assert_eq!(it.with(Receipt { key: Digest::of(b"lost"), ..receipt.clone() }).await, ["I10"]);
    let it = lived().await;
    let attempt = it.attempt(&it.failed).await;
    assert_eq!(it.with(Attempt { key: Digest::of(b"another"), ..attempt }).await, ["I10"]);
}

#[tokio::test]
async fn i11_state_that_does_not_follow_from_its_writes() {
    let change = [
        |state: &mut StateObject| state.head += 1,
        |state: &mut StateObject| state.digest = Some(Digest::of(b"other")),
        |state: &mut StateObject| state.high_water = Fence(0),
    ];
    for change in change {
        let it = lived().await;
        let mut state = it.world.state("network").await;
        change(&mut state);
        assert_eq!(it.with(state).await, ["I11"]);
    }
}

#[tokio::test]
async fn i12_something_else_was_approved() {
    let it = lived().await;
    let approval = it.applied.approval.unwrap();
    let approval = it.world.store.get_as::<Approval>(approval).await.unwrap().unwrap().value;
    let changes = [
        Approval { plan_digest: Some(Digest::of(b"other")), ..approval.clone() },
        Approval { status: ApprovalStatus::Pending, ..approval },
    ];
    for changed in changes {
        let it = lived().await;
        // Worlds are alike, ids included.
        assert_eq!(it.applied.approval, Some(changed.id));
        assert_eq!(it.with(changed).await, ["I12"]);
    }
}

#[tokio::test]
async fn i12_c3_what_came_first_is_told_by_events_and_not_by_a_clock_that_may_jump() {
    let it = lived().await;
    let approval = it.applied.approval.unwrap();
    let approval = it.world.store.get_as::<Approval>(approval).await.unwrap().unwrap().value;
    let late = Some(it.world.now() + std::time::Duration::from_secs(60));
    assert_eq!(lived().await.with(Approval { closed_at: late, ..approval }).await, [""; 0]);

    let event = |kind, run_seq| Event {
        seq: 0,
        project: Some(it.applied.project),
        run: Some(it.applied.id),
        run_seq,
        kind,
        actor: Actor::System { part: "test".into() },
        at: it.world.now(),
        data: Object::new(),
    };
    let last = it.applied.last_event;
    let events = vec![event(EventKind::ApprovalPending, last + 1), event(EventKind::RunRunning, last + 2)];
    it.world.store.commit(vec![Changeset { events, ..Changeset::default() }]).await.unwrap()[0]
        .as_ref()
        .unwrap();
    let violations = it.check().await.violations;
    assert!(
        violations.iter().any(|v| v.detail.contains("claimed before it was approved")),
        "{violations:#?}"
    );
}

#[tokio::test]
async fn i15_a_worker_with_another_key_than_is_in_force() {
    let it = lived().await;
    let worker = it.attempt(&it.running).await.worker;
    let worker = it.world.store.get_as::<Worker>(worker).await.unwrap().unwrap().value;
    assert_eq!(it.with(Worker { key: Digest::of(b"other"), ..worker }).await, ["I15"]);
}

#[tokio::test]
async fn i16_a_record_of_another_tenant() {
    let it = lived().await;
    let other = forgeplane_core::id::ProjectId::new(start_of_time(), [9; 10]);
    let attempt = it.attempt(&it.running).await;
    assert_eq!(it.with(Attempt { project: other, ..attempt }).await, ["I16"]);
}

#[tokio::test]
async fn i18_a_status_that_no_event_tells() {
    let it = lived().await;
    let canceled = Run { status: RunStatus::Canceled, ..it.failed.clone() };
    assert_eq!(it.with(canceled).await, ["I18"]);
    let it = lived().await;
    let run = Run { last_event: it.failed.last_event + 1, ..it.failed.clone() };
    assert_eq!(it.with(run).await, ["I18"]);
}
