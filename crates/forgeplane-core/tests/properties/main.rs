//! Random command sequences against the real coordinator; after each command the invariants of `protocol.md`
//! 1.12 are checked on everything that is stored.
//!
//! Time and randomness are fixed, so a failing sequence replays from its seed. `PROPTEST_CASES` sets how many
//! sequences are tried.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod invariants;
mod times;
mod world;

use proptest::prelude::*;
use world::{Command, World};

fn command() -> impl Strategy<Value = Command> {
    let index = 0_usize..6;
    prop_oneof![
        4 => (0_usize..6, 0_usize..2).prop_map(|(operation, instance)| Command::Create { operation, instance }),
        2 => index.clone().prop_map(Command::Approve),
        1 => index.clone().prop_map(Command::Reject),
        2 => index.clone().prop_map(Command::Cancel),
        2 => index.clone().prop_map(Command::Requeue),
        2 => index.clone().prop_map(Command::Promote),
        6 => Just(Command::Schedule),
        1 => Just(Command::Reconcile),
        4 => Just(Command::Sweep),
        3 => prop::sample::select(vec![1, 15, 45, 130, 4_000]).prop_map(Command::Wait),
        5 => (0_usize..2, any::<bool>()).prop_map(|(worker, names)| Command::Heartbeat { worker, names }),
        6 => (0_usize..2, any::<bool>()).prop_map(|(worker, again)| Command::Claim { worker, again }),
        3 => (0_usize..2, any::<bool>()).prop_map(|(worker, stale)| Command::WriteState { worker, stale }),
        5 => (0_usize..2, 0_usize..4).prop_map(|(worker, outcome)| Command::Conclude { worker, outcome }),
        2 => (0_usize..2, any::<bool>()).prop_map(|(worker, current)| Command::NotStarted { worker, current }),
        3 => (0_usize..12).prop_map(Command::Replay),
        1 => (0_usize..2).prop_map(Command::Forge),
        1 => (0_usize..2).prop_map(Command::Restart),
        1 => index.prop_map(Command::Resolve),
    ]
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(128)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_commands_breaks_an_invariant(commands in prop::collection::vec(command(), 1..90)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new().await;
            for command in &commands {
                world.obey(command).await;
                invariants::check(&mut world, command).await;
            }
        });
    }
}

/// A sequence that reaches every part of the world: if it did not, the property above would say little.
#[tokio::test]
async fn the_random_world_really_runs_runs() {
    let mut world = World::new().await;
    for command in [
        Command::Create { operation: 0, instance: 0 },
        Command::Schedule,
        Command::Claim { worker: 0, again: false },
        Command::Claim { worker: 1, again: false },
        Command::Conclude { worker: 0, outcome: 0 },
        Command::Conclude { worker: 1, outcome: 0 },
        Command::Promote(0),
        Command::Approve(1),
        Command::Schedule,
        Command::Claim { worker: 0, again: false },
        Command::Claim { worker: 1, again: false },
        Command::WriteState { worker: 0, stale: false },
        Command::WriteState { worker: 1, stale: false },
        Command::Wait(130),
        Command::Sweep,
        Command::Resolve(1),
    ] {
        world.obey(&command).await;
        invariants::check(&mut world, &command).await;
    }
    let runs = world.runs().await;
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[0].status, forgeplane_core::model::RunStatus::Succeeded);
    assert_eq!(runs[1].status, forgeplane_core::model::RunStatus::Failed);
    assert_eq!(runs[1].error.as_ref().unwrap().code, "resolved_by_operator");
    assert_eq!(world.granted.len(), 2);
}
