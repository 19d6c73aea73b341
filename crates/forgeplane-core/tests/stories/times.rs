//! C5: a whole life of a run over the end of 31-bit seconds, and of 32-bit ones.

use forgeplane_core::Timestamp;
use forgeplane_core::model::*;

use crate::support::*;

async fn shortly_before(end: i64) -> (World, TestWorker) {
    let world = World::new().await;
    world.clock.set(Timestamp::from_second(end - 5).unwrap());
    world.sandbox().await;
    let worker = world.worker("w1").await;
    (world, worker)
}

#[tokio::test]
async fn c5_runs_live_over_the_end_of_a_count_of_seconds() {
    for end in [i64::from(i32::MAX), i64::from(u32::MAX)] {
        let (world, mut worker) = shortly_before(end).await;
        let before = world.create("sandbox", Operation::Preview).await;
        world.step().await;
        let work = worker.claim_next().await;
        // Claimed before, ended after; the next one is queued before and claimed after.
        let next = world.create("sandbox", Operation::Preview).await;
        world.live(10, &[&worker]).await;
        assert!(world.now().as_second() > end);
        assert_eq!(world.view(before.id).await.run.status, RunStatus::Running);
        worker.succeed(&work).await;
        let ended = world.view(before.id).await.run;
        assert_eq!(ended.status, RunStatus::Succeeded);
        assert!(ended.finished_at.unwrap().as_second() > end);
        world.step().await;
        let work = worker.claim_next().await;
        worker.succeed(&work).await;
        assert_eq!(world.view(next.id).await.run.status, RunStatus::Succeeded);
    }
}

#[tokio::test]
async fn c5_offers_expire_over_the_end_of_a_count_of_seconds() {
    for end in [i64::from(i32::MAX), i64::from(u32::MAX)] {
        let (world, worker) = shortly_before(end).await;
        let offered = world.create("sandbox", Operation::Preview).await;
        world.step().await;
        assert_eq!(world.view(offered.id).await.attempts[0].state, AttemptState::Offered);
        world.live(300, &[&worker]).await;
        assert_ne!(world.view(offered.id).await.attempts[0].state, AttemptState::Offered);
    }
}
