//! A slice of the simulation, small enough for every test run; `forgeplane-sim --seeds N` is the long form.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use forgeplane_sim::simulation::{Planted, run, run_with};

/// How many schedules a world with a broken promise may take to be found out.
const PATIENCE: u64 = 400;

fn clean(seeds: std::ops::Range<u64>) {
    let (mut crashes, mut starts, mut receipts) = (0, 0, 0);
    for seed in seeds {
        let schedule = run(seed).unwrap();
        assert!(schedule.violations.is_empty(), "seed {seed}: {:#?}", schedule.violations);
        assert!(schedule.most_starts <= 1, "seed {seed}");
        crashes += schedule.counts.crashes;
        starts += schedule.counts.starts;
        receipts += schedule.receipts;
    }
    // A simulation in which nothing happens would find nothing.
    assert!(
        crashes > 300 && starts > 200 && receipts > 200,
        "{crashes} crashes, {starts} starts, {receipts} receipts"
    );
}

// Two halves, so that they run beside each other.
#[test]
fn schedules_hold_what_the_protocol_promises() {
    clean(0..250);
}

#[test]
fn more_schedules_hold_what_the_protocol_promises() {
    clean(250..500);
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..40 {
        let (first, second) = (run(seed).unwrap(), run(seed).unwrap());
        assert_eq!(first.history, second.history, "seed {seed}");
        assert_eq!(first.simulated, second.simulated, "seed {seed}");
    }
    assert_ne!(run(0).unwrap().history, run(1).unwrap().history);
}

#[test]
fn a_world_that_breaks_its_promises_is_found_out() {
    for planted in Planted::ALL {
        let found = (0..PATIENCE).find_map(|seed| {
            let violations = run_with(seed, Some(planted)).unwrap().violations;
            (!violations.is_empty()).then_some((seed, violations))
        });
        let (seed, violations) = found.unwrap_or_else(|| panic!("{planted:?} is not noticed"));
        println!("{planted:?}, seed {seed}: {violations:?}");
    }
}
