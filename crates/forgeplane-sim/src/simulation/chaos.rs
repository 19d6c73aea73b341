//! What goes wrong, and when.

use std::sync::Arc;
use std::time::Duration;

use super::cluster::Cluster;
use super::people::People;
use super::wire::Cut;

/// Breaks something every now and then, for so long.
pub(super) async fn reign(cluster: &Arc<Cluster>, people: &People, how_long: Duration) {
    let fate = &cluster.world.fate;
    let until = tokio::time::Instant::now() + how_long;
    let pace = 300 + fate.below(3_000);
    fate.set_calm(false);
    while tokio::time::Instant::now() < until {
        tokio::time::sleep(fate.millis(pace)).await;
        strike(cluster, people);
    }
}

fn strike(cluster: &Arc<Cluster>, people: &People) {
    let fate = &cluster.world.fate;
    let pick = |count: usize| usize::try_from(fate.below(count as u64)).unwrap_or(0);
    let (worker, coordinator) = (pick(cluster.workers.len()), pick(cluster.network.coordinators()));
    // Most crashes are soon, so that they fall between the steps of whatever is done now.
    let steps = fate.below(if fate.happens(700) { 12 } else { 80 });
    match fate.below(100) {
        0..20 => cluster.crash_worker(worker, steps, false),
        20..32 => cluster.crash_worker(worker, steps, true),
        32..50 => cluster.crash_coordinator(coordinator, steps),
        50..68 => {
            let cut = [Cut::Requests, Cut::Answers, Cut::Both][pick(3)];
            // Some longer than it takes until the coordinator has no more hope.
            let how_long = fate.millis(if fate.happens(250) { 40_000 } else { 6_000 });
            let from_all = fate.happens(500);
            for index in 0..cluster.network.coordinators() {
                if from_all || index == coordinator {
                    cluster.network.cut(worker, index, cut, how_long);
                }
            }
        }
        68..74 => cluster.world.take_store_down(fate.millis(5_000)),
        74..80 => cluster.broker.take_down(fate.millis(6_000)),
        80..84 => cluster.broker.wipe(),
        84..88 => {
            let jump = i64::try_from(fate.below(60_000)).unwrap_or(0) - 30_000;
            cluster.world.skew_by(jump);
        }
        88..93 => people.rotate_key(worker),
        93..97 => cluster.drain_worker(worker, fate.happens(400)),
        // One machine may be lost, as long as another one is there to go on.
        97 if cluster.workers.len() > 1 && worker == 0 => cluster.lose_worker(worker),
        // Whoever serves no more because of a copy is not there to go on, either.
        98 if cluster.workers.len() > 1 && worker == 0 => cluster.start_twin(worker, fate.millis(20_000)),
        99 if cluster.workers.len() > 1 && worker == 0 => cluster.back_up_or_put_back(worker, steps),
        _ => {}
    }
}
