//! Workers replace their keys; what was begun under the old one still ends.

use ed25519_dalek::SigningKey;
use forgeplane_core::Code;
use forgeplane_core::evidence::{Envelope, KeyRotation, key_id};
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::*;
use forgeplane_core::ports::{ControlPlane as _, StoreExt as _};

use crate::support::*;

fn fresh(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn statement(worker: WorkerId, old: &SigningKey, new: &SigningKey) -> KeyRotation {
    KeyRotation {
        worker,
        old_key: key_id(old.verifying_key().as_bytes()),
        new_key: hex::encode(new.verifying_key().to_bytes()),
    }
}

fn rotation(worker: &TestWorker, new: &SigningKey) -> Envelope {
    Envelope::sign(&statement(worker.id(), &worker.key, new), &worker.key)
        .and_then(|e| e.countersign::<KeyRotation>(new))
        .unwrap()
}

async fn record(world: &World, worker: &TestWorker) -> Worker {
    world.store.get_as::<Worker>(worker.id()).await.unwrap().unwrap().value
}

async fn status_of(world: &World, key: &SigningKey) -> KeyStatus {
    let id = key_id(key.verifying_key().as_bytes());
    world.store.get_as::<WorkerKey>(id).await.unwrap().unwrap().status
}

#[tokio::test]
async fn d15_the_old_key_ends_what_it_began_and_the_new_one_is_pinned_from_then_on() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let first = world.create("sandbox", Operation::Preview).await;
    world.step().await;
    let begun = worker.claim_next().await;
    world.coordinator.rotate_worker_key(&world.root, "w1").await.unwrap();
    let old = worker.key.clone();
    let old_id = key_id(old.verifying_key().as_bytes());
    assert_eq!(worker.heartbeat().await.unwrap().rotate_key, Some(old_id));

    let new = fresh(77);
    let envelope = rotation(&worker, &new);
    worker.control.rotate_key(&worker.session, envelope.clone()).await.unwrap();
    let commits = world.store.commits();
    // The answer was lost.
    worker.control.rotate_key(&worker.session, envelope.clone()).await.unwrap();
    assert_eq!(world.store.commits(), commits);
    assert_eq!(worker.heartbeat().await.unwrap().rotate_key, None);
    assert_eq!(status_of(&world, &old).await, KeyStatus::Retired);
    assert_eq!(status_of(&world, &new).await, KeyStatus::Active);

    // Signed by the old key, which the claim pinned.
    worker.succeed(&begun).await;
    assert_eq!(world.status(first.id).await, RunStatus::Succeeded);
    world.coordinator.evidence(&world.alice, first.id, None).await.unwrap().verify().unwrap();
    let register = worker.introduction().register(&worker.control).await.map(|r| r.session.incarnation);
    assert_eq!(code(register), Code::KeyUnusable);

    worker.key = new.clone();
    worker.restart(true).await;
    let second = world.create("sandbox", Operation::Preview).await;
    world.step().await;
    let work = worker.claim_next().await;
    assert_eq!(world.last_attempt(second.id).await.key, key_id(new.verifying_key().as_bytes()));
    let mut stale = work.outcome(OutcomeKind::Succeeded);
    stale.duration_ms += 1;
    let by_old = Envelope::sign(&stale, &old).unwrap();
    assert_eq!(code(worker.deliver(&by_old).await), Code::InvalidEvidence);
    worker.succeed(&work).await;
    assert_eq!(world.status(second.id).await, RunStatus::Succeeded);

    // The old rotation, sent once more after another one, does not bring a key back.
    let third = fresh(78);
    worker.control.rotate_key(&worker.session, rotation(&worker, &third)).await.unwrap();
    assert_eq!(code(worker.control.rotate_key(&worker.session, envelope).await), Code::KeyUnusable);
    assert_eq!(record(&world, &worker).await.key, key_id(third.verifying_key().as_bytes()));
}

#[tokio::test]
async fn an_offer_from_before_the_rotation_is_claimed_and_ended_with_the_new_key() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    for claims in [true, false] {
        let run = world.create("sandbox", Operation::Preview).await;
        world.step().await;
        let mut work = worker.prepare_next().await;
        let new = fresh(80 + u8::from(claims));
        worker.control.rotate_key(&worker.session, rotation(&worker, &new)).await.unwrap();
        worker.key = new.clone();
        if claims {
            worker.claim(&mut work).await.unwrap();
            worker.succeed(&work).await;
            assert_eq!(world.last_attempt(run.id).await.key, key_id(new.verifying_key().as_bytes()));
            assert_eq!(world.status(run.id).await, RunStatus::Succeeded);
        } else {
            let envelope = worker.sign(&work.not_started(None, false));
            assert!(worker.deliver(&envelope).await.unwrap().applied);
            assert_eq!(world.status(run.id).await, RunStatus::Failed);
        }
    }
}

#[tokio::test]
async fn a_rotation_needs_both_keys_and_a_new_one() {
    let world = World::new().await;
    let worker = world.worker("w1").await;
    let other = world.worker("w2").await;
    let new = fresh(90);
    let said = statement(worker.id(), &worker.key, &new);
    let by_old = Envelope::sign(&said, &worker.key).unwrap();
    let by_new = Envelope::sign(&said, &new).unwrap();
    let turned = by_new.clone().countersign::<KeyRotation>(&worker.key).unwrap();
    let thief = by_old.clone().countersign::<KeyRotation>(&other.key).unwrap();
    let twice = rotation(&worker, &new).countersign::<KeyRotation>(&new).unwrap();
    let mut forged = rotation(&worker, &new);
    forged.signatures[1].sig = forged.signatures[0].sig.clone();
    let before = world.store.commits();
    for envelope in [by_old, by_new, turned, thief, twice, forged] {
        let refused = worker.control.rotate_key(&worker.session, envelope).await;
        assert_eq!(code(refused), Code::InvalidEvidence);
    }
    // Somebody else's key, and somebody else's session.
    let taken = rotation(&worker, &other.key);
    assert_eq!(code(worker.control.rotate_key(&worker.session, taken).await), Code::KeyUnusable);
    let foreign = other.control.rotate_key(&other.session, rotation(&worker, &new)).await;
    assert_eq!(code(foreign), Code::InvalidEvidence);
    let itself = rotation(&worker, &worker.key);
    worker.control.rotate_key(&worker.session, itself).await.unwrap();
    assert_eq!(world.store.commits(), before, "a refused rotation changed something");
    assert_eq!(status_of(&world, &worker.key).await, KeyStatus::Active);
}

#[tokio::test]
async fn a_distrusted_worker_ends_nothing_any_more_with_any_of_its_keys() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::Preview).await;
    world.step().await;
    let work = worker.claim_next().await;
    let new = fresh(95);
    worker.control.rotate_key(&worker.session, rotation(&worker, &new)).await.unwrap();
    assert_eq!(code(world.coordinator.distrust_worker(&world.alice, "w1").await), Code::Forbidden);
    let gone = world.coordinator.distrust_worker(&world.root, "w1").await.unwrap();
    assert!(gone.disconnected);
    assert_eq!(status_of(&world, &worker.key).await, KeyStatus::Compromised);
    assert_eq!(status_of(&world, &new).await, KeyStatus::Compromised);
    let commits = world.store.commits();
    world.coordinator.distrust_worker(&world.root, "w1").await.unwrap();
    assert_eq!(world.store.commits(), commits);

    // Its session is dead, so an operator brings what it signed.
    let envelope = worker.sign(&work.outcome(OutcomeKind::Succeeded));
    assert_eq!(code(worker.deliver(&envelope).await), Code::WorkerDisabled);
    let answer = world.coordinator.submit_outcome(&world.root, work.job.attempt, envelope).await.unwrap();
    assert!(!answer.applied);
    assert_eq!(world.late_evidence(run.id).await[0].why, "key_compromised");
    assert_eq!(world.status(run.id).await, RunStatus::Running);
}
