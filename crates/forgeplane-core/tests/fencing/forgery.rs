//! Statements that are not what they say.

use ed25519_dalek::SigningKey;
use forgeplane_core::Code;
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::{Envelope, Outcome, Statement};
use forgeplane_core::id::{AttemptId, ProjectId, RunId, WorkerId};
use forgeplane_core::model::*;
use forgeplane_core::ports::StoreExt as _;
use serde::{Deserialize, Serialize};

use crate::support::*;

async fn claimed(world: &World) -> (Run, TestWorker, Work) {
    world.network().await;
    let mut worker = world.worker("w1").await;
    let run = world.approved_apply(&mut worker, "network").await;
    world.step().await;
    let work = worker.claim_next().await;
    (run, worker, work)
}

async fn assert_untouched(world: &World, run: &Run, commits: usize) {
    assert_eq!(world.store.commits(), commits, "a refused statement changed something");
    assert_eq!(world.status(run.id).await, RunStatus::Running);
}

#[tokio::test]
async fn g8_an_envelope_with_any_byte_changed_is_refused() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    let text = worker.sign(&work.outcome(OutcomeKind::Succeeded)).to_json();
    let before = world.store.commits();
    let mut refused = 0;
    for index in 0..text.len() {
        for flip in [0x01, 0x02, 0x20] {
            let mut bytes = text.clone().into_bytes();
            bytes[index] ^= flip;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            let Ok(envelope) = Envelope::from_json(&changed) else { continue };
            let code = code(worker.deliver(&envelope).await);
            assert!(matches!(code, Code::InvalidEvidence | Code::NotFound), "byte {index}: {code}");
            refused += 1;
        }
    }
    assert!(refused > 1_000, "only {refused} changed envelopes could be delivered at all");
    assert_untouched(&world, &run, before).await;
    worker.succeed(&work).await;
}

/// G7: a valid signature of the right worker over somebody else's names.
#[tokio::test]
async fn g7_an_outcome_that_names_anything_else_is_refused() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    let before = world.store.commits();
    let at = start_of_time();
    type Change = Box<dyn Fn(&mut Outcome)>;
    let changes: Vec<(&str, Code, Change)> = vec![
        ("project", Code::InvalidEvidence, Box::new(move |o| o.project = ProjectId::new(at, [9; 10]))),
        ("run", Code::InvalidEvidence, Box::new(move |o| o.run = RunId::new(at, [9; 10]))),
        ("attempt", Code::NotFound, Box::new(move |o| o.attempt = AttemptId::new(at, [9; 10]))),
        ("number", Code::InvalidEvidence, Box::new(|o| o.number += 1)),
        ("fence", Code::InvalidEvidence, Box::new(|o| o.fence.0 += 1)),
        ("nonce", Code::FenceMismatch, Box::new(|o| o.nonce.0[0] ^= 1)),
        ("worker", Code::InvalidEvidence, Box::new(move |o| o.worker = WorkerId::new(at, [9; 10]))),
        ("snapshot", Code::InvalidEvidence, Box::new(|o| o.snapshot = Digest::of(b"other"))),
        ("plan", Code::InvalidEvidence, Box::new(|o| o.plan = Some(Digest::of(b"other")))),
        ("no plan", Code::InvalidEvidence, Box::new(|o| o.plan = None)),
        ("kind", Code::InvalidEvidence, Box::new(|o| o.outcome = OutcomeKind::NotStarted)),
    ];
    for (what, expected, change) in changes {
        let mut outcome = work.outcome(OutcomeKind::Succeeded);
        change(&mut outcome);
        assert_eq!(code(worker.deliver(&worker.sign(&outcome)).await), expected, "{what}");
    }
    for change in [0, 1, 2, 3_usize] {
        let mut statement = work.not_started(Some(work.nonce), true);
        match change {
            0 => statement.project = ProjectId::new(at, [9; 10]),
            1 => statement.run = RunId::new(at, [9; 10]),
            2 => statement.fence.0 += 1,
            _ => statement.worker = WorkerId::new(at, [9; 10]),
        }
        assert_eq!(code(worker.deliver(&worker.sign(&statement)).await), Code::InvalidEvidence, "{change}");
    }
    assert_untouched(&world, &run, before).await;
}

/// G7: the outcome of one attempt does not end another one of the same worker.
#[tokio::test]
async fn g7_an_outcome_ends_no_later_attempt() {
    let world = World::new().await;
    let (run, mut worker, work) = claimed(&world).await;
    let first = worker.end(&work, OutcomeKind::Failed).await;
    world.coordinator.requeue(&world.alice, run.id).await.unwrap();
    world.step().await;
    let second = worker.claim_next().await;
    worker.deliver(&first).await.unwrap();
    assert_eq!(world.status(run.id).await, RunStatus::Running);
    // The newer attempt's fence on the older attempt's statement, and the other way round.
    let mut mixed = work.outcome(OutcomeKind::Succeeded);
    (mixed.fence, mixed.nonce) = (second.job.fence, second.nonce);
    assert_eq!(code(worker.deliver(&worker.sign(&mixed)).await), Code::InvalidEvidence);
    let mut mixed = second.outcome(OutcomeKind::Succeeded);
    (mixed.fence, mixed.nonce) = (work.job.fence, work.nonce);
    assert_eq!(code(worker.deliver(&worker.sign(&mixed)).await), Code::InvalidEvidence);
    assert_eq!(world.status(run.id).await, RunStatus::Running);
}

#[tokio::test]
async fn g9_only_the_key_pinned_to_the_attempt_counts() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    let other = world.worker("w2").await;
    let before = world.store.commits();
    let outcome = work.outcome(OutcomeKind::Succeeded);
    // Another worker's key, over either session.
    let theirs = other.sign(&outcome);
    assert_eq!(code(other.deliver(&theirs).await), Code::InvalidEvidence);
    assert_eq!(code(worker.deliver(&theirs).await), Code::InvalidEvidence);
    // A key nobody registered.
    let stranger = Envelope::sign(&outcome, &SigningKey::from_bytes(&[99; 32])).unwrap();
    assert_eq!(code(worker.deliver(&stranger).await), Code::NotFound);
    // The right key's id over another key's signature.
    let mut renamed = theirs.clone();
    renamed.signatures[0].keyid = worker.sign(&outcome).signatures[0].keyid;
    assert_eq!(code(worker.deliver(&renamed).await), Code::InvalidEvidence);
    // No signature, or two.
    let good = worker.sign(&outcome);
    for signatures in [vec![], vec![good.signatures[0].clone(), theirs.signatures[0].clone()]] {
        let envelope = Envelope { signatures, ..good.clone() };
        assert_eq!(code(worker.deliver(&envelope).await), Code::InvalidEvidence);
    }
    assert_untouched(&world, &run, before).await;
    // The right signature counts whoever delivers it.
    assert!(other.deliver(&good).await.unwrap().applied);
    assert_eq!(world.status(run.id).await, RunStatus::Succeeded);
}

/// An outcome's content under another statement's name.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Disguised(Outcome);

impl Statement for Disguised {
    const PAYLOAD_TYPE: &'static str = "application/vnd.forgeplane.key-rotation.v1+json";
}

#[tokio::test]
async fn g10_a_signature_over_one_kind_of_statement_is_no_other_kind() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    let before = world.store.commits();
    let outcome = work.outcome(OutcomeKind::Succeeded);
    let disguised = Envelope::sign(&Disguised(outcome.clone()), &worker.key).unwrap();
    assert_eq!(code(worker.deliver(&disguised).await), Code::InvalidEvidence);
    let renamed = Envelope { payload_type: Outcome::PAYLOAD_TYPE.to_owned(), ..disguised };
    assert_eq!(code(worker.deliver(&renamed).await), Code::InvalidEvidence);
    let not_started = worker.sign(&work.not_started(Some(work.nonce), true));
    let renamed = Envelope { payload_type: Outcome::PAYLOAD_TYPE.to_owned(), ..not_started };
    assert_eq!(code(worker.deliver(&renamed).await), Code::InvalidEvidence);
    // The coordinator's own manifest is no outcome.
    assert_eq!(code(worker.deliver(&work.bundle.manifest).await), Code::InvalidEvidence);
    assert_untouched(&world, &run, before).await;
}

async fn set_key_status(world: &World, worker: &TestWorker, status: KeyStatus) {
    let id = forgeplane_core::evidence::key_id(worker.key.verifying_key().as_bytes());
    let key = world.store.get_as::<WorkerKey>(id).await.unwrap().unwrap().value;
    world.store.force(WorkerKey { status, ..key }).await;
}

#[tokio::test]
async fn d15_a_retired_key_still_ends_the_attempt_that_is_pinned_to_it() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    set_key_status(&world, &worker, KeyStatus::Retired).await;
    let again = worker.introduction().register(&worker.control).await.map(|r| r.session.incarnation);
    assert_eq!(code(again), Code::KeyUnusable);
    worker.succeed(&work).await;
    assert_eq!(world.status(run.id).await, RunStatus::Succeeded);
    world.coordinator.evidence(&world.alice, run.id, None).await.unwrap().verify().unwrap();
}

/// Whoever stole a key may neither end a run nor have it started a second time while its tool runs.
#[tokio::test]
async fn a_compromised_key_only_gives_evidence() {
    let world = World::new().await;
    let (run, worker, work) = claimed(&world).await;
    set_key_status(&world, &worker, KeyStatus::Compromised).await;
    let statements = [
        worker.sign(&work.outcome(OutcomeKind::Succeeded)),
        worker.sign(&work.not_started(Some(work.nonce), true)),
    ];
    for (index, envelope) in statements.iter().enumerate() {
        for _ in 0..2 {
            assert!(!worker.deliver(envelope).await.unwrap().applied);
        }
        assert_eq!(world.status(run.id).await, RunStatus::Running);
        let attempt = world.last_attempt(run.id).await;
        assert_eq!((attempt.state, attempt.closing), (AttemptState::Claimed, None));
        let kept = world.late_evidence(run.id).await;
        assert_eq!(kept.len(), index + 1);
        assert!(kept.iter().all(|e| e.why == "key_compromised"));
    }
}
