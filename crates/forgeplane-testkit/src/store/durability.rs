//! Durability: what is there after the store was closed and opened again.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Conflict, Constraint, Lookup, Page, Select};

use super::fences::{allocate, allocate_and_commit};
use super::*;
use crate::builder::{Reopen, StoreGuard};
use crate::fixtures::Fixtures;

/// Every kind of record is there, at its version.
pub async fn records_and_versions_survive<G: StoreGuard + Reopen>(guard: &mut G) {
    let make = Fixtures::new();
    let (records, worker) = (make.one_of_each(), make.worker());
    commit(guard.store(), inserting(records.clone())).await;
    commit(guard.store(), insert(worker.clone())).await;
    commit(guard.store(), update(1, worker.clone())).await;
    guard.reopen().await;
    for record in records {
        is_stored(guard.store(), record, 1).await;
    }
    is_stored(guard.store(), worker.clone(), 2).await;
    commit(guard.store(), update(2, worker.clone())).await;
    guard.reopen().await;
    is_stored(guard.store(), worker, 3).await;
}

/// Lists and lookups find what was written before.
pub async fn lists_and_lookups_survive<G: StoreGuard + Reopen>(guard: &mut G) {
    let make = Fixtures::new();
    let project = make.project();
    let instance = make.instance(&make.template(&project));
    let runs = [make.run(&instance), make.run(&instance)];
    commit(guard.store(), insert(project.clone())).await;
    commit(guard.store(), inserting(runs.clone())).await;
    guard.reopen().await;
    let found = guard.store().find(&Lookup::ProjectNamed(project.name.clone())).await.unwrap();
    assert_eq!(found.map(|it| it.value), Some(project.into()));
    let queue = listed(guard.store(), &Select::QueuedRuns, &Page::all()).await;
    assert_eq!(queue, runs.map(Record::from));
}

/// Events are there with their numbers, and new ones come after them.
pub async fn events_survive_and_go_on<G: StoreGuard + Reopen>(guard: &mut G) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    for run_seq in 1..=3 {
        let events = vec![make.event(&run, run_seq)];
        commit(guard.store(), Changeset { events, ..Changeset::default() }).await;
    }
    let before = all_events(guard.store()).await;
    guard.reopen().await;
    assert_eq!(all_events(guard.store()).await, before);
    let changes = Changeset { events: vec![make.event(&run, 4)], ..Changeset::default() };
    let next = commit(guard.store(), changes).await.events[0];
    assert!(next > before[2].seq, "{next} after {}", before[2].seq);
}

/// Messages that were not published wait; those that were do not come back.
pub async fn the_outbox_survives<G: StoreGuard + Reopen>(guard: &mut G) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let attempt = make.attempt(&run, &make.worker());
    let messages = [0, 1, 2].map(|_| make.outbox(&attempt));
    let outbox = messages.to_vec();
    commit(guard.store(), Changeset { outbox, ..Changeset::default() }).await;
    commit(guard.store(), Changeset { published: vec![messages[1].id], ..Changeset::default() }).await;
    guard.reopen().await;
    let waiting = [messages[0].clone(), messages[2].clone()];
    assert_eq!(all_outbox(guard.store()).await, waiting);
}

/// Logs are there to the last byte.
pub async fn logs_survive<G: StoreGuard + Reopen>(guard: &mut G) {
    let make = Fixtures::new();
    let attempt = make.attempt(&make.run(&make.instance(&make.template(&make.project()))), &make.worker());
    let first = make.log_chunk(&attempt, 0, vec![0, 255, 10]);
    let second = make.log_chunk(&attempt, 3, "more");
    commit(guard.store(), inserting([first.clone(), second.clone()])).await;
    guard.reopen().await;
    let read = guard.store().log(attempt.id, 0, usize::MAX).await.unwrap();
    assert_eq!(read, [first, second]);
    assert_eq!(guard.store().log_end(attempt.id).await.unwrap(), 7);
}

/// Fences stay above every committed one, however often the store is opened.
pub async fn fences_grow_across_reopening<G: StoreGuard + Reopen>(guard: &mut G) {
    let make = Fixtures::new();
    let mut last = Fence(0);
    for _ in 0..5 {
        for _ in 0..3 {
            let next = allocate_and_commit(guard.store(), &make).await;
            assert!(next > last, "{next} after {last}");
            last = next;
        }
        guard.reopen().await;
        assert!(allocate(guard.store()).await > last);
    }
}

/// Constraints hold against what was written before.
pub async fn constraints_hold_across_reopening<G: StoreGuard + Reopen>(guard: &mut G) {
    let make = Fixtures::new();
    let (project, worker) = (make.project(), make.worker());
    let instances = [0, 1].map(|_| make.instance(&make.template(&project)));
    let attempt = make.attempt(&make.run(&instances[0]), &worker);
    commit(guard.store(), inserting([Record::from(project.clone()), attempt.clone().into()])).await;
    guard.reopen().await;
    let named_alike = Project { name: project.name, ..make.project() };
    let refused = try_commit(guard.store(), insert(named_alike)).await;
    assert_eq!(refused, Err(Conflict::Constraint(Constraint::ProjectName)));
    let same_slot = make.attempt(&make.run(&instances[1]), &worker);
    let refused = try_commit(guard.store(), insert(same_slot)).await;
    assert_eq!(refused, Err(Conflict::Constraint(Constraint::OpenAttemptPerSlot)));
}

/// What was refused before is not there after.
pub async fn a_conflict_leaves_nothing_to_find_later<G: StoreGuard + Reopen>(guard: &mut G) {
    let make = Fixtures::new();
    let (project, absent) = (make.project(), make.project());
    let mut changes = insert(project.clone());
    changes.update(1, absent.clone());
    refused_version(guard.store(), changes, Record::from(absent).key()).await;
    guard.reopen().await;
    is_absent(guard.store(), project.clone()).await;
    commit(guard.store(), insert(project)).await;
}
