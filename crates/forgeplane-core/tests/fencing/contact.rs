//! Workers that go away, and what becomes of what they held.

use forgeplane_core::Code;
use forgeplane_core::id::RunId;
use forgeplane_core::model::*;

use crate::support::*;

async fn sweep(world: &World) -> usize {
    world.coordinator.sweep_step().await.unwrap()
}

/// A run in a state, and the worker that has it.
async fn run_in(world: &World, state: &str) -> (RunId, TestWorker, Work) {
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::Destroy { mode: DestroyMode::Perform }).await;
    world.step().await;
    let mut work = worker.prepare_next().await;
    if state != "offered" {
        worker.claim(&mut work).await.unwrap();
        worker.heartbeat().await.unwrap();
    }
    if state == "running" {
        worker.log(&work, 0, "working").await.unwrap();
        worker.put_state(&work, 0, state_document("l1", 1)).await.unwrap();
    }
    if state == "canceling" {
        world.coordinator.cancel(&world.alice, run.id, None).await.unwrap();
    }
    (run.id, worker, work)
}

/// T-009, T-010, T-025: every combination has a defined next state, and nothing past the fence is given to
/// anybody else.
#[tokio::test]
async fn t010_every_way_to_lose_a_worker_has_a_defined_next_state() {
    for state in ["offered", "claimed", "running", "canceling"] {
        for loss in ["offline", "disconnected", "re-registered", "restarted without journal"] {
            let world = World::new().await;
            let (run, mut worker, mut work) = run_in(&world, state).await;
            let spare = world.worker("w2").await;
            match loss {
                "offline" => {}
                "disconnected" => {
                    world.coordinator.disconnect_worker(&world.root, "w1").await.unwrap();
                    assert_eq!(code(worker.heartbeat().await), Code::WorkerDisabled);
                }
                "re-registered" => {
                    worker.restart(true).await;
                    worker.heartbeat().await.unwrap();
                }
                _ => {
                    worker.restart(false).await;
                    worker.heartbeat().await.unwrap();
                }
            }
            let back = loss.starts_with("re");
            for _ in 0..13 {
                world.pass(10);
                spare.heartbeat().await.unwrap();
                if back {
                    worker.heartbeat().await.unwrap();
                }
                sweep(&world).await;
                if state == "offered" {
                    break;
                }
            }
            let case = format!("{state} × {loss}");
            let first = world.view(run).await.attempts[0].clone();
            if state == "offered" {
                if back {
                    // Its offer stands; the queue delivers the job again.
                    assert_eq!(first.state, AttemptState::Offered, "{case}");
                    worker.claim(&mut work).await.unwrap();
                    continue;
                }
                if loss == "offline" {
                    world.pass(21);
                    spare.heartbeat().await.unwrap();
                    sweep(&world).await;
                }
                let closing = Closing::Revoked { reason: "worker_offline".to_owned() };
                let first = world.view(run).await.attempts[0].clone();
                assert_eq!(first.closing, Some(closing), "{case}");
                assert_eq!(world.status(run).await, RunStatus::Queued, "{case}");
                world.step().await;
                let second = world.last_attempt(run).await;
                assert_eq!((second.number, second.worker), (2, spare.id()), "{case}");
                assert!(second.fence > first.fence, "{case}");
                continue;
            }
            let expected =
                if loss == "re-registered" { AttemptState::Claimed } else { AttemptState::Unresolved };
            assert_eq!(first.state, expected, "{case}");
            let status = if state == "canceling" { RunStatus::Canceling } else { RunStatus::Running };
            assert_eq!(world.status(run).await, status, "{case}");
            world.step().await;
            assert_eq!(world.view(run).await.attempts.len(), 1, "{case}: it was given to somebody else");
        }
    }
}

#[tokio::test]
async fn t009_a_draining_worker_loses_its_offer_and_keeps_its_claim() {
    let world = World::new().await;
    let (run, worker, mut work) = run_in(&world, "offered").await;
    world.coordinator.drain_worker(&world.root, "w1").await.unwrap();
    assert!(worker.heartbeat().await.unwrap().drain);
    assert_eq!(sweep(&world).await, 1);
    assert_eq!(world.status(run).await, RunStatus::Queued);
    assert_eq!(code(worker.claim(&mut work).await), Code::AttemptClosed);

    let world = World::new().await;
    let (run, worker, work) = run_in(&world, "claimed").await;
    world.coordinator.drain_worker(&world.root, "w1").await.unwrap();
    world.live(300, &[&worker]).await;
    assert_eq!(world.status(run).await, RunStatus::Running);
    worker.succeed(&work).await;
    // D11: it takes nothing new until it is reactivated.
    world.create("sandbox", Operation::PlanOnly).await;
    assert_eq!(world.coordinator.schedule_step().await.unwrap(), 0);
    world.coordinator.reactivate_worker(&world.root, "w1").await.unwrap();
    assert_eq!(world.coordinator.schedule_step().await.unwrap(), 1);
}

#[tokio::test]
async fn t076_a_silent_worker_is_unresolved_after_two_minutes_and_restored_by_a_heartbeat() {
    let world = World::new().await;
    let (run, worker, work) = run_in(&world, "claimed").await;
    world.pass(120);
    assert_eq!(sweep(&world).await, 0);
    world.pass(1);
    assert_eq!(sweep(&world).await, 1);
    assert!(world.view(run).await.is_unresolved());
    let explanation = world.coordinator.explain(&world.alice, run).await.unwrap();
    assert_eq!(explanation.unresolved_since, Some(world.now()));
    assert!(explanation.allowed.contains(&"resolve"));

    // A heartbeat that does not name the claim is no news of it.
    world.pass(5);
    worker.release(&work);
    worker.heartbeat().await.unwrap();
    assert_eq!(sweep(&world).await, 0);
    worker.hold(&work);
    worker.heartbeat().await.unwrap();
    assert_eq!(sweep(&world).await, 1);
    let attempt = world.last_attempt(run).await;
    assert_eq!((attempt.state, attempt.unresolved_since), (AttemptState::Claimed, None));
    let history = world.history(run).await;
    assert_eq!(history[history.len() - 2..], ["attempt.unresolved", "attempt.contact_restored"]);
    worker.succeed(&work).await;
    assert_eq!(world.status(run).await, RunStatus::Succeeded);
}

#[tokio::test]
async fn a_heartbeat_with_a_wrong_nonce_keeps_nothing_alive() {
    let world = World::new().await;
    let (run, worker, work) = run_in(&world, "claimed").await;
    worker.release(&work);
    worker.hold(&Work { nonce: Nonce([0; 16]), ..work });
    world.live(130, &[&worker]).await;
    assert!(world.view(run).await.is_unresolved());
}

#[tokio::test]
async fn t011_a_worker_that_comes_back_without_the_claim_is_noticed_at_once() {
    let world = World::new().await;
    let (run, mut worker, _) = run_in(&world, "running").await;
    worker.restart(false).await;
    // Not by registering: it may still read its journal.
    assert_eq!(sweep(&world).await, 0);
    worker.heartbeat().await.unwrap();
    assert_eq!(sweep(&world).await, 1);
    assert!(world.view(run).await.is_unresolved());
}

#[tokio::test]
async fn d12_a_new_incarnation_ends_the_old_session_and_keeps_the_attempt() {
    let world = World::new().await;
    let (run, mut worker, work) = run_in(&world, "claimed").await;
    let old = worker.session.clone();
    worker.restart(true).await;
    assert_eq!(worker.session.incarnation, old.incarnation + 1);
    let new = std::mem::replace(&mut worker.session, old);
    assert_eq!(code(worker.heartbeat().await), Code::Unauthenticated);
    assert_eq!(code(worker.log(&work, 0, "x").await), Code::Unauthenticated);
    assert_eq!(
        code(worker.deliver(&worker.sign(&work.outcome(OutcomeKind::Failed))).await),
        Code::Unauthenticated
    );
    worker.session = new;
    world.live(200, &[&worker]).await;
    assert_eq!(world.last_attempt(run).await.state, AttemptState::Claimed);
    worker.succeed(&work).await;
}

#[tokio::test]
async fn a_session_ends_with_time_unless_heartbeats_renew_it() {
    let world = World::new().await;
    let worker = world.worker("w1").await;
    world.live(3_600, &[&worker]).await;
    world.pass(15 * 60);
    assert_eq!(code(worker.heartbeat().await), Code::Unauthenticated);
}

/// Decision on open question B: time alone never ends a claimed run.
#[tokio::test]
async fn a_deadline_that_passes_while_the_worker_is_missing_is_only_noted() {
    let world = World::new().await;
    let (run, worker, work) = run_in(&world, "claimed").await;
    world.pass(300);
    sweep(&world).await;
    for _ in 0..5 {
        world.pass(100_000);
        sweep(&world).await;
    }
    let attempt = world.last_attempt(run).await;
    assert_eq!(
        (attempt.state, attempt.deadline_exceeded, attempt.stop),
        (AttemptState::Unresolved, true, None)
    );
    assert_eq!(world.status(run).await, RunStatus::Running);
    let noted =
        |kind: &'static str| async move { world.history(run).await.iter().filter(|k| **k == kind).count() };
    assert_eq!(noted("attempt.deadline_exceeded").await, 1);
    let mut worker = worker;
    worker.restart(true).await;
    worker.end(&work, OutcomeKind::TimedOut).await;
}

#[tokio::test]
async fn d3_the_deadline_backstop_asks_the_worker_to_stop_and_ends_nothing_itself() {
    let world = World::new().await;
    let (run, worker, work) = run_in(&world, "claimed").await;
    // Timeout 600 s, grace 60 s, margin 60 s: the worker should have stopped by itself long before.
    world.live(710, &[&worker]).await;
    assert_eq!(world.status(run).await, RunStatus::Running);
    world.live(10, &[&worker]).await;
    let view = world.view(run).await;
    assert_eq!((view.run.status, view.run.stop.unwrap().cause), (RunStatus::Canceling, StopCause::Deadline));
    let orders = worker.heartbeat().await.unwrap();
    assert_eq!(orders.stops[0].cause, StopCause::Deadline);
    // Somebody cancels too: the first cause stays, and there is still one request.
    world.coordinator.cancel(&world.alice, run, None).await.unwrap();
    assert_eq!(worker.heartbeat().await.unwrap(), orders);
    world.live(5_000, &[&worker]).await;
    assert_eq!(world.status(run).await, RunStatus::Canceling);
    worker.end(&work, OutcomeKind::TimedOut).await;
    assert_eq!(world.status(run).await, RunStatus::TimedOut);
}

#[tokio::test]
async fn t065_a_cancel_while_the_worker_is_away_reaches_it_when_it_comes_back() {
    let world = World::new().await;
    let (run, worker, work) = run_in(&world, "claimed").await;
    world.pass(130);
    sweep(&world).await;
    let asked = world.coordinator.cancel(&world.alice, run, None).await.unwrap();
    assert_eq!(asked.status, RunStatus::Canceling);
    assert!(world.view(run).await.is_unresolved());
    world.pass(600);
    let orders = worker.heartbeat().await.unwrap();
    assert_eq!((orders.stops[0].fence, orders.stops[0].cause), (work.job.fence, StopCause::Cancel));
    sweep(&world).await;
    worker.end(&work, OutcomeKind::Canceled).await;
    assert_eq!(world.status(run).await, RunStatus::Canceled);
}

/// C3: the clock jumps; offers end, claims are looked into, nothing runs twice.
#[tokio::test]
async fn c3_a_clock_that_jumps_ends_no_claimed_attempt() {
    let world = World::new().await;
    let (run, worker, work) = run_in(&world, "claimed").await;
    let start = world.now();
    world.pass(600);
    sweep(&world).await;
    assert!(world.view(run).await.is_unresolved());
    worker.heartbeat().await.unwrap();
    world.pass(1);
    worker.heartbeat().await.unwrap();
    sweep(&world).await;
    assert_eq!(world.last_attempt(run).await.state, AttemptState::Claimed);
    world.clock.set(start);
    for _ in 0..3 {
        worker.heartbeat().await.unwrap();
        sweep(&world).await;
        world.step().await;
    }
    let view = world.view(run).await;
    assert_eq!((view.attempts.len(), view.attempts[0].state), (1, AttemptState::Claimed));
    worker.succeed(&work).await;
}
