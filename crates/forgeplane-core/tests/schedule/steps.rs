//! The scheduler's pass over a store.

use std::collections::BTreeMap;

use forgeplane_core::coordinator::NewInstance;
use forgeplane_core::model::*;
use forgeplane_core::ports::{ControlPlane as _, Heartbeat, Page, Select, StoreExt as _};
use forgeplane_core::rules::schedule::WaitReason;
use futures_util::future::join_all;

use crate::support::*;

async fn open(world: &World) -> Vec<Attempt> {
    let open = world.store.list_as::<Attempt>(&Select::OpenAttempts, &Page::all()).await.unwrap();
    open.into_iter().map(|a| a.value).collect()
}

/// T-120 and T-121: two allocators at once, again and again.
#[tokio::test]
async fn t120_two_coordinators_never_exceed_a_workers_capacity() {
    let world = World::new().await;
    world.sandbox().await;
    let mut workers = Vec::new();
    for (n, max_jobs) in [1, 2, 50].into_iter().enumerate() {
        let called = format!("w{n}");
        workers.push(world.worker_as(Introduction { max_jobs, ..Introduction::of(&called, n as u8) }).await);
    }
    for _ in 0..40 {
        world.create("sandbox", Operation::PlanOnly).await;
    }
    let other = world.another_coordinator().await;
    world.store.jitter.store(true, std::sync::atomic::Ordering::Relaxed);
    for _ in 0..30 {
        let passes = (0..6).map(|n| if n % 2 == 0 { &world.coordinator } else { &other });
        for result in join_all(passes.map(|c| c.schedule_step())).await {
            result.unwrap();
        }
        let open = open(&world).await;
        for (worker, capacity) in workers.iter().zip([1, 2, 8]) {
            let slots: Vec<_> = open.iter().filter(|a| a.worker == worker.id()).map(|a| a.slot).collect();
            assert_eq!(slots.len(), capacity, "{slots:?}");
            assert!(slots.iter().all(|s| *s < capacity as u32));
        }
        // One of each ends.
        world.coordinator.dispatch_step().await.unwrap();
        for worker in &mut workers {
            while let Some(job) = worker.job().await {
                let Ok(mut work) = worker.prepare(job).await else { continue };
                if worker.claim(&mut work).await.is_ok() {
                    worker.end(&work, OutcomeKind::Succeeded).await;
                    break;
                }
            }
        }
        if world
            .coordinator
            .runs(&world.alice, Some(RunStatus::Queued), None, &Page::all())
            .await
            .unwrap()
            .len()
            < 20
        {
            break;
        }
    }
}

/// T-119: runs that cannot be placed do not keep those behind them waiting, however many there are.
#[tokio::test]
async fn t119_a_thousand_runs_without_a_worker_do_not_starve_another_pool() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let elsewhere = NewInstance {
        name: name("elsewhere"),
        template: "sandbox".to_owned(),
        template_version: None,
        inputs: Object::new(),
        secrets: BTreeMap::new(),
        pool: Some(name("nobody")),
    };
    world.coordinator.create_instance(&world.alice, elsewhere).await.unwrap();
    for _ in 0..1_100 {
        world.create("elsewhere", Operation::PlanOnly).await;
    }
    let last = world.create("sandbox", Operation::PlanOnly).await;
    world.step().await;
    let work = worker.claim_next().await;
    assert_eq!(work.job.run, last.id);
}

/// T-004: one run that cannot be leased does not stop the others.
#[tokio::test]
async fn t004_a_run_that_cannot_be_offered_does_not_stop_the_scheduler() {
    let world = World::new().await;
    let network = world.sandbox().await;
    world.deploy(world.template("other", Tool::Terraform)).await;
    let mut worker = world.worker("w1").await;
    // A store restored from an old copy: the state remembers a fence that was never handed out here.
    let state = world.state(network.name.as_str()).await;
    world.store.force(StateObject { high_water: Fence(1_000), ..state }).await;
    world.create("sandbox", Operation::PlanOnly).await;
    let good = world.create("other", Operation::PlanOnly).await;
    world.pass(1);
    worker.heartbeat().await.unwrap();
    for _ in 0..3 {
        world.step().await;
    }
    // The first one takes the only place in the pass and fails; the next run must get it nevertheless.
    let work = worker.claim_next().await;
    assert_eq!(work.job.run, good.id);
}

#[tokio::test]
async fn t003_a_run_behind_an_unresolved_one_says_so_and_starts_after_the_decision() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let mut other = world.worker("w2").await;
    let first = world.create("sandbox", Operation::Teardown).await;
    world.step().await;
    let work = worker.claim_next().await;
    let second = world.create("sandbox", Operation::Destroy { mode: DestroyMode::Perform }).await;
    world.step().await;
    let why = |run| {
        let (coordinator, alice) = (world.coordinator.clone(), world.alice.clone());
        async move { coordinator.explain(&alice, run).await.unwrap().waiting }
    };
    let busy = |unresolved| Some(WaitReason::InstanceBusy { run: first.id, unresolved });
    assert_eq!(why(second.id).await, busy(false));
    world.live(130, &[&other]).await;
    assert_eq!(why(second.id).await, busy(true));
    let decision = forgeplane_core::rules::resolve::Resolution {
        outcome: OutcomeKind::Failed,
        reason: "the host is gone".to_owned(),
        asserted: vec![],
        generation: None,
    };
    world.coordinator.resolve_attempt(&world.root, work.job.attempt, &decision).await.unwrap();
    world.step().await;
    assert_eq!(other.claim_next().await.job.run, second.id);
    assert_eq!(why(second.id).await, None);
}

/// A job that the queue lost is published again; one that the broker took twice is harmless.
#[tokio::test]
async fn b_the_outbox_holds_only_jobs_of_real_attempts_and_empties() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    world.create("sandbox", Operation::PlanOnly).await;
    assert_eq!(world.coordinator.schedule_step().await.unwrap(), 1);
    use forgeplane_core::ports::Store as _;
    let waiting = world.store.outbox(10).await.unwrap();
    let attempts = open(&world).await;
    assert_eq!(waiting.len(), 1);
    let job = &waiting[0].job;
    assert_eq!((job.attempt, job.fence, job.worker), (attempts[0].id, attempts[0].fence, worker.id()));
    assert_eq!(job.message_id(), format!("a{}.p1", job.fence));
    // Two dispatchers at once.
    let other = world.another_coordinator().await;
    let (one, two) = tokio::join!(world.coordinator.dispatch_step(), other.dispatch_step());
    assert!(one.unwrap() + two.unwrap() >= 1);
    assert_eq!(world.store.outbox(10).await.unwrap(), []);
    worker.claim_next().await;
}

/// E17: a worker that is short of something gives its offer back and gets none, until it has it; people see what it is.
#[tokio::test]
async fn e17_a_worker_that_is_short_of_something_takes_nothing_new() {
    let world = World::new().await;
    world.sandbox().await;
    let worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::Preview).await;
    world.step().await;
    assert_eq!(world.view(run.id).await.attempts[0].state, AttemptState::Offered);
    let short = Heartbeat { short_of: Some(format!("room\n{}", "x".repeat(500))), ..Heartbeat::default() };
    worker.control.heartbeat(&worker.session, short).await.unwrap();
    world.coordinator.sweep_step().await.unwrap();
    world.step().await;
    let view = world.view(run.id).await;
    assert_ne!(view.attempts[0].state, AttemptState::Offered);
    assert_eq!(view.run.status, RunStatus::Queued);
    let explained = world.coordinator.explain(&world.alice, run.id).await.unwrap();
    assert_eq!(explained.waiting, Some(WaitReason::AllDraining { workers: 1 }));
    let workers = world.coordinator.workers(&world.alice).await.unwrap();
    let told = workers[0].short_of.as_deref().unwrap();
    assert!(told.starts_with("roomx") && told.len() == 200, "{told:?}");
    assert_eq!(workers[0].status, WorkerStatus::Draining);

    worker.heartbeat().await.unwrap();
    world.step().await;
    let last = world.view(run.id).await.attempts.last().unwrap().state;
    assert_eq!(last, AttemptState::Offered);
}
