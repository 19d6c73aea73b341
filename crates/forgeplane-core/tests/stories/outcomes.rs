//! What ends an attempt, and what no commit may miss (`protocol.md` 1.8): records read before it are checked by it.

use forgeplane_core::Code;
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::key_id;
use forgeplane_core::model::*;
use forgeplane_core::ports::StoreExt as _;

use crate::support::*;

/// A run that `w1` claimed.
async fn claimed(world: &World, operation: Operation) -> (TestWorker, Run, Work) {
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", operation).await;
    world.step().await;
    let work = worker.claim_next().await;
    (worker, run, work)
}

#[tokio::test]
async fn g6_a_hundred_deliveries_at_once_make_one_receipt() {
    let world = World::new().await;
    let (worker, run, work) = claimed(&world, Operation::Preview).await;
    let envelope = worker.sign(&work.outcome(OutcomeKind::Failed));
    world.store.jitter.store(true, std::sync::atomic::Ordering::Relaxed);
    let answers = futures_util::future::join_all((0..100).map(|_| worker.deliver(&envelope))).await;
    assert!(answers.into_iter().all(|a| a.unwrap().applied));
    assert_eq!(world.history(run.id).await.iter().filter(|k| **k == "run.failed").count(), 1);
}

#[tokio::test]
async fn a_plan_that_succeeds_with_another_file_than_it_signed_has_failed() {
    let world = World::new().await;
    let (worker, run, work) = claimed(&world, Operation::Plan { destroy: false }).await;
    worker.publish_plan(&work).await;
    let mut outcome = work.outcome(OutcomeKind::Succeeded);
    outcome.artifacts.insert(ArtifactKind::Plan, Digest::of(b"another"));
    worker.conclude(&work, &outcome).await;
    let ended = world.view(run.id).await.run;
    assert_eq!((ended.status, ended.error.unwrap().code.as_str()), (RunStatus::Failed, "artifact_missing"));
    assert_eq!(code(world.coordinator.promote(&world.alice, run.id).await), Code::NotPromotable);
}

/// The key's status is part of what is decided, not of what was read before.
#[tokio::test]
async fn a_key_that_is_found_compromised_meanwhile_ends_nothing() {
    let (mut applied, mut kept) = (0, 0);
    for head_start in 0..60 {
        let world = World::new().await;
        let (worker, run, work) = claimed(&world, Operation::Preview).await;
        let id = key_id(worker.key.verifying_key().as_bytes());
        let key = world.store.get_as::<WorkerKey>(id).await.unwrap().unwrap().value;
        let envelope = worker.sign(&work.outcome(OutcomeKind::Succeeded));
        world.store.jitter.store(true, std::sync::atomic::Ordering::Relaxed);
        let seen = world.store.commits();
        let compromise = async {
            for _ in 0..head_start {
                tokio::task::yield_now().await;
            }
            world.store.force(WorkerKey { status: KeyStatus::Compromised, ..key }).await;
        };
        let (answer, ()) = tokio::join!(worker.deliver(&envelope), compromise);
        let answer = answer.unwrap();
        let first = match world.store.since(seen)[0].puts[0].record {
            Record::WorkerKey(_) => "compromised",
            _ => "concluded",
        };
        if first == "compromised" {
            kept += 1;
            assert!(!answer.applied, "an outcome was applied after its key was known to be compromised");
            assert_eq!(world.status(run.id).await, RunStatus::Running);
            assert_eq!(world.late_evidence(run.id).await.len(), 1);
        } else {
            applied += 1;
            assert!(answer.applied);
        }
    }
    assert!(applied > 0 && kept > 0, "the race always went one way: {applied} and {kept}");
}

/// What an attempt published is complete when it ends.
#[tokio::test]
async fn no_file_is_published_after_the_attempt_was_closed() {
    let (mut before, mut refused) = (0, 0);
    for head_start in 0..60 {
        let world = World::new().await;
        let (worker, _, work) = claimed(&world, Operation::Preview).await;
        let envelope = worker.sign(&work.outcome(OutcomeKind::Failed));
        world.store.jitter.store(true, std::sync::atomic::Ordering::Relaxed);
        let seen = world.store.commits();
        let upload = async {
            for _ in 0..head_start {
                tokio::task::yield_now().await;
            }
            worker.put_artifact(&work, ArtifactKind::PlanText, bytes::Bytes::from_static(b"text")).await
        };
        let (answer, uploaded) = tokio::join!(worker.deliver(&envelope), upload);
        assert!(answer.unwrap().applied);
        let position = |kind| {
            let of_kind = |c: &Changeset| c.puts.iter().any(|p| p.record.key().kind == kind);
            world.store.since(seen).iter().position(of_kind)
        };
        match position(Kind::Artifact) {
            Some(artifact) => {
                before += 1;
                uploaded.unwrap();
                assert!(artifact < position(Kind::Receipt).unwrap(), "a closed attempt published a file");
            }
            None => {
                refused += 1;
                assert_eq!(code(uploaded), Code::AttemptClosed);
            }
        }
    }
    assert!(before > 0 && refused > 0, "the race always went one way: {before} and {refused}");
}

/// The outcome signs the log: what is stored afterwards would not be what was signed.
#[tokio::test]
async fn no_line_is_logged_after_the_attempt_was_closed() {
    let (mut before, mut refused) = (0, 0);
    for head_start in 0..60 {
        let world = World::new().await;
        let (worker, _, work) = claimed(&world, Operation::Preview).await;
        worker.log(&work, 0, "first").await.unwrap();
        let envelope = worker.sign(&work.outcome(OutcomeKind::Failed));
        world.store.jitter.store(true, std::sync::atomic::Ordering::Relaxed);
        let seen = world.store.commits();
        let append = async {
            for _ in 0..head_start {
                tokio::task::yield_now().await;
            }
            worker.log(&work, 5, "second").await
        };
        let (answer, appended) = tokio::join!(worker.deliver(&envelope), append);
        assert!(answer.unwrap().applied);
        let position = |kind| {
            let of_kind = |c: &Changeset| c.puts.iter().any(|p| p.record.key().kind == kind);
            world.store.since(seen).iter().position(of_kind)
        };
        match position(Kind::LogChunk) {
            Some(chunk) => {
                before += 1;
                assert_eq!(appended.unwrap(), 11);
                assert!(chunk < position(Kind::Receipt).unwrap(), "a closed attempt went on logging");
            }
            None => {
                refused += 1;
                assert_eq!(code(appended), Code::AttemptClosed);
            }
        }
    }
    assert!(before > 0 && refused > 0, "the race always went one way: {before} and {refused}");
}
