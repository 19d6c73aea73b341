//! Why a run waits, told over the coordinator.

use std::collections::BTreeMap;

use forgeplane_core::coordinator::NewInstance;
use forgeplane_core::model::*;
use forgeplane_core::rules::schedule::WaitReason;

use crate::support::*;

/// T-117: the scheduler looks at the front of a long queue first; whoever asks is told the truth all the same.
#[tokio::test]
async fn t117_a_run_far_back_in_the_queue_is_told_the_true_reason() {
    let world = World::new().await;
    world.sandbox().await;
    let elsewhere = NewInstance {
        name: name("elsewhere"),
        template: "sandbox".to_owned(),
        template_version: None,
        inputs: Object::new(),
        secrets: BTreeMap::new(),
        pool: Some(name("nobody")),
    };
    world.coordinator.create_instance(&world.alice, elsewhere).await.unwrap();
    let first = world.create("elsewhere", Operation::Preview).await;
    for _ in 0..1_050 {
        world.create("elsewhere", Operation::Preview).await;
    }
    let last = world.create("elsewhere", Operation::Preview).await;
    for run in [first, last] {
        let explained = world.coordinator.explain(&world.alice, run.id).await.unwrap();
        assert_eq!(explained.waiting, Some(WaitReason::NoWorkerInPool { pool: name("nobody") }));
    }
}
