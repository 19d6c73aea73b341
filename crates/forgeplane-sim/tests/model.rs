//! The protocol holds in every order of events within limits; without any one of its guards it does not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test tells what it saw")]

use std::time::Duration;

use forgeplane_sim::model::{Bug, Limits, Protocol};
use stateright::{Checker, HasDiscoveries, Model};

/// Visits everything within the limits.
fn holds(name: &str, limits: Limits) -> usize {
    let begun = std::time::Instant::now();
    let checker = Protocol::new(limits).checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states in {:.1?}, {limits:?}", checker.unique_state_count(), begun.elapsed());
    checker.assert_properties();
    checker.unique_state_count()
}

const NOTHING: Limits = Limits {
    workers: 1,
    runs: 1,
    attempts: 2,
    crashes: 0,
    lost_journals: false,
    writes: 0,
    cancels: 0,
    requeues: 0,
    decisions: 0,
    rotations: 0,
    deadlines: 0,
};

#[test]
fn it_holds_through_crashes_with_and_without_the_journal() {
    assert!(holds("crashes", Limits { crashes: 2, lost_journals: true, ..NOTHING }) > 1_000);
}

#[test]
fn it_holds_through_cancels_requeues_and_deadlines() {
    holds("cancel", Limits { cancels: 1, requeues: 1, deadlines: 1, crashes: 1, ..NOTHING });
}

#[test]
fn it_holds_through_decisions_and_late_outcomes() {
    holds("decide", Limits { decisions: 1, requeues: 1, crashes: 1, lost_journals: true, ..NOTHING });
}

#[test]
fn it_holds_through_replaced_keys() {
    holds("rotate", Limits { rotations: 1, crashes: 1, ..NOTHING });
}

#[test]
fn it_holds_through_state_writes() {
    holds("write", Limits { writes: 2, crashes: 1, requeues: 1, ..NOTHING });
}

#[test]
fn it_holds_with_two_workers() {
    holds("two workers", Limits { workers: 2, crashes: 1, ..NOTHING });
}

#[test]
fn it_holds_with_two_runs_of_one_instance() {
    holds("two runs", Limits { workers: 2, runs: 2, writes: 1, ..NOTHING });
}

/// All of it together goes too far to be visited whole: a part of it, nearest to the start first.
#[test]
fn it_holds_in_the_first_part_of_everything_together() {
    let limits = Limits {
        workers: 2,
        runs: 2,
        attempts: 4,
        crashes: 2,
        lost_journals: true,
        writes: 1,
        cancels: 1,
        requeues: 1,
        decisions: 1,
        rotations: 1,
        deadlines: 1,
    };
    let begun = std::time::Instant::now();
    let checker = Protocol::new(limits).checker().finish_when(HasDiscoveries::AnyFailures).threads(2);
    let minutes = std::env::var("FORGEPLANE_SOAK_MINUTES").ok().and_then(|text| text.parse::<u64>().ok());
    fn seen(checker: &impl Checker<Protocol>) -> (usize, Vec<&'static str>) {
        let broken = checker.discoveries().into_keys().filter(|name| name.starts_with('I')).collect();
        (checker.unique_state_count(), broken)
    }
    let (states, broken) = match minutes {
        // Deep rather than wide, and as long as there is time.
        Some(minutes) => seen(&checker.timeout(Duration::from_secs(60 * minutes)).spawn_dfs().join()),
        None => seen(&checker.target_state_count(400_000).spawn_bfs().join()),
    };
    println!("together: {states} states in {:.1?}", begun.elapsed());
    assert!(states > 50_000);
    assert_eq!(broken, Vec::<&str>::new());
}

/// A check that finds nothing may look at nothing: each guard's absence must show, as what it is there to prevent.
#[test]
fn the_absence_of_any_guard_is_found() {
    let journals_lost = Limits { attempts: 1, crashes: 2, lost_journals: true, ..NOTHING };
    for bug in Bug::ALL {
        let (broken, limits) = match bug {
            Bug::AnyNotStarted => ("I4", journals_lost),
            Bug::OneNonce | Bug::AnyNonce => ("I1", journals_lost),
            // Harmful only to what comes after a decision: before one, whatever is answered is received.
            Bug::AnyReceipt => ("I6", Limits { decisions: 1, ..journals_lost }),
            Bug::NoWriterSlot => ("I3", Limits { workers: 2, runs: 2, ..NOTHING }),
            Bug::AnyGeneration => ("I11", Limits { attempts: 1, writes: 2, ..NOTHING }),
            Bug::AnyFence => ("I4", Limits { crashes: 1, ..NOTHING }),
            Bug::AnyStatus => ("I1", Limits { crashes: 1, ..NOTHING }),
            Bug::ForgetBeforeReceipt => ("I6", Limits { crashes: 1, ..NOTHING }),
        };
        let model = Protocol::without(bug, limits);
        let named = format!("{broken}:");
        let name = model.properties().iter().map(|p| p.name).find(|name| name.starts_with(&named)).unwrap();
        let begun = std::time::Instant::now();
        let found = HasDiscoveries::AllOf([name].into());
        let checker =
            model.checker().finish_when(found).target_state_count(400_000).threads(2).spawn_bfs().join();
        let path = checker.discovery(name);
        let steps = path.map(|path| path.into_actions().len());
        println!("{bug:?}: {name}, by {steps:?} steps, {:.1?}", begun.elapsed());
        assert!(steps.is_some(), "nothing is wrong without the guard against {bug:?}");
    }
}
