//! Managed state moves only along one chain.

use forgeplane_core::Code;
use forgeplane_core::digest::Digest;
use forgeplane_core::model::*;
use forgeplane_core::ports::{ControlPlane as _, Page, StateWrite};

use crate::support::*;

async fn writer(world: &World) -> (Run, TestWorker, Work) {
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::Destroy { mode: DestroyMode::Perform }).await;
    world.step().await;
    let work = worker.claim_next().await;
    (run, worker, work)
}

#[tokio::test]
async fn g26_only_the_document_that_builds_on_the_last_one_is_accepted() {
    let world = World::new().await;
    let (run, worker, work) = writer(&world).await;
    worker.save_state(&work, "l1").await;
    let head = world.state("sandbox").await;
    let refused = [
        ("built on an older generation", 1, state_document("l1", 3), Code::StaleState),
        ("built on a newer generation", 3, state_document("l1", 4), Code::StaleState),
        ("built on nothing", u64::MAX, state_document("l1", 5), Code::StaleState),
        ("another lineage", 2, state_document("l2", 3), Code::InvalidState),
        ("T-049: an older serial", 2, state_document("l1", 1), Code::InvalidState),
    ];
    for (index, (what, expected, document, with)) in refused.into_iter().enumerate() {
        for _ in 0..2 {
            assert_eq!(code(worker.put_state(&work, expected, document.clone()).await), with, "{what}");
        }
        let orphans = world.coordinator.orphan_states(&world.alice, "sandbox").await.unwrap();
        assert_eq!(orphans.len(), index + 1, "{what}: it is kept once");
        assert!(orphans.iter().any(|o| o.digest == Digest::of(&document) && o.reason == with.as_str()));
    }
    assert_eq!(world.state("sandbox").await, head);
    // The same serial with other content is another history.
    let other = String::from_utf8(state_document("l1", 2).to_vec()).unwrap().replace("r0", "s0");
    assert_eq!(code(worker.put_state(&work, 2, other.into()).await), Code::InvalidState);
    assert_eq!(world.state("sandbox").await, head);
    assert_eq!(world.history(run.id).await.iter().filter(|k| **k == "state.refused").count(), 6);
    // And the attempt itself may go on.
    assert_eq!(worker.put_state(&work, 2, state_document("l1", 3)).await.unwrap(), 3);
    let generations =
        world.coordinator.state_generations(&world.alice, "sandbox", &Page::all()).await.unwrap();
    let numbers: Vec<_> = generations.iter().map(|g| (g.generation, g.serial, g.writer.fence)).collect();
    let fence = Some(work.job.fence);
    assert_eq!(numbers, [(3, 3, fence), (2, 2, fence), (1, 1, fence)]);
}

/// Every call may be repeated; the network may also deliver the repetition late.
#[tokio::test]
async fn a_repeated_write_is_the_generation_it_was() {
    let world = World::new().await;
    let (run, worker, work) = writer(&world).await;
    worker.save_state(&work, "l1").await;
    worker.put_state(&work, 2, state_document("l1", 3)).await.unwrap();
    let before = world.store.commits();
    for (expected, serial) in [(2, 3), (1, 2), (0, 1)] {
        let again = worker.put_state(&work, expected, state_document("l1", serial)).await.unwrap();
        assert_eq!(again, serial);
    }
    worker.succeed(&work).await;
    assert_eq!(worker.put_state(&work, 0, state_document("l1", 1)).await.unwrap(), 1);
    assert_eq!(world.store.commits(), before + 1);
    assert_eq!(world.coordinator.orphan_states(&world.alice, "sandbox").await.unwrap(), []);
    assert_eq!(world.history(run.id).await.iter().filter(|k| k.starts_with("state.")).count(), 3);
}

#[tokio::test]
async fn a_write_whose_commit_result_is_lost_makes_one_generation() {
    let world = World::new().await;
    let (_, worker, work) = writer(&world).await;
    world.store.lose_next_result.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(worker.put_state(&work, 0, state_document("l1", 1)).await.unwrap(), 1);
    assert_eq!(world.state("sandbox").await.head, 1);
    assert_eq!(world.coordinator.orphan_states(&world.alice, "sandbox").await.unwrap(), []);
}

#[tokio::test]
async fn what_is_not_a_state_document_is_refused() {
    let world = World::new().await;
    let (_, worker, work) = writer(&world).await;
    for junk in [
        "",
        "null",
        "{}",
        "[]",
        r#"{"version":3,"serial":1,"lineage":"l1"}"#,
        r#"{"version":4,"serial":1,"lineage":""}"#,
        r#"{"version":4,"serial":-1,"lineage":"l1"}"#,
        r#"{"version":4,"serial":1e3,"lineage":"l1"}"#,
        r#"{"version":4,"serial":"1","lineage":"l1"}"#,
        r#"{"version":4,"lineage":"l1"}"#,
    ] {
        assert_eq!(code(worker.put_state(&work, 0, junk.into()).await), Code::InvalidState, "{junk}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(code(worker.put_state(&work, 0, deep.into()).await), Code::InvalidState);
    let document = state_document("l1", 1);
    let write = StateWrite { claim: work.claim(), expected_generation: 0, digest: digest("other"), document };
    assert_eq!(code(worker.control.put_state(&worker.session, write).await), Code::DigestMismatch);
    assert_eq!(world.state("sandbox").await.head, 0);
}

#[tokio::test]
async fn t088_a_reader_writes_no_state() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    for operation in [Operation::Plan { destroy: false }, Operation::PlanOnly, Operation::Preview] {
        world.create("sandbox", operation.clone()).await;
        world.step().await;
        let work = worker.claim_next().await;
        assert_eq!(
            code(worker.put_state(&work, 0, state_document("l1", 1)).await),
            Code::StaleState,
            "{operation}"
        );
        worker.end(&work, OutcomeKind::Failed).await;
    }
    assert_eq!(world.state("sandbox").await.head, 0);
}

/// An attempt may still save while its worker is missed: what it says is true.
#[tokio::test]
async fn t090_an_unresolved_writer_still_saves() {
    let world = World::new().await;
    let (run, worker, work) = writer(&world).await;
    world.pass(130);
    world.coordinator.sweep_step().await.unwrap();
    assert!(world.view(run.id).await.is_unresolved());
    worker.save_state(&work, "l1").await;
    assert_eq!(world.state("sandbox").await.head, 2);
}
