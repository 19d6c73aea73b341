//! Events: numbered in commit order, read from any place, never replaced.

use forgeplane_core::model::*;
use forgeplane_core::ports::{EventFilter, Store};

use super::*;
use crate::fixtures::Fixtures;

/// A changeset that only appends events.
fn appending(events: Vec<Event>) -> Changeset {
    Changeset { events, ..Changeset::default() }
}

async fn read(store: &dyn Store, filter: EventFilter, after: u64, limit: usize) -> Vec<Event> {
    store.events(&filter, after, limit).await.expect("the store answers")
}

/// Events read back as they were written, with the sequence numbers that the commit announced.
pub async fn events_read_back_with_their_sequence_numbers(store: &dyn Store) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let written: Vec<Event> = EventKind::ALL
        .iter()
        .zip(1..)
        .map(|(&kind, run_seq)| Event { kind, ..make.event(&run, run_seq) })
        .chain([make.installation_event(&make.worker())])
        .collect();
    let committed = commit(store, appending(written.clone())).await;
    assert_eq!(committed.events.len(), written.len());
    assert!(committed.events[0] > 0, "numbers start above 0, so that `after: 0` is the beginning");
    let expected: Vec<Event> =
        written.into_iter().zip(committed.events).map(|(event, seq)| Event { seq, ..event }).collect();
    assert_eq!(all_events(store).await, expected);
}

/// The head is the number of the newest event, and 0 before there is one.
pub async fn the_head_is_the_newest_event(store: &dyn Store) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let head = async || store.event_head().await.expect("the store answers");
    assert_eq!(head().await, 0);
    for run_seq in 1..=3 {
        let committed = commit(store, appending(vec![make.event(&run, run_seq)])).await;
        assert_eq!(head().await, committed.events[0]);
    }
}

/// What a caller puts into `seq` is of no importance.
pub async fn the_store_alone_numbers_events(store: &dyn Store) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let first = commit(store, appending(vec![Event { seq: 4_000_000, ..make.event(&run, 1) }])).await;
    let second = commit(store, appending(vec![Event { seq: 1, ..make.event(&run, 2) }])).await;
    let read: Vec<(u64, u64)> = all_events(store).await.iter().map(|it| (it.seq, it.run_seq)).collect();
    assert_eq!(read, [(first.events[0], 1), (second.events[0], 2)]);
    assert!(first.events < second.events);
}

/// Numbers grow within a changeset, within a batch and from batch to batch, also after a conflict.
pub async fn numbers_grow_in_commit_order(store: &dyn Store) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let event = |run_seq| make.event(&run, run_seq);
    let mut conflicting = update(3, make.project());
    conflicting.events.push(event(99));
    let mut numbers = vec![];
    for batch in [
        vec![appending(vec![event(1), event(2)]), appending(vec![event(3)])],
        vec![conflicting.clone(), appending(vec![event(4)])],
        vec![conflicting],
        vec![appending(vec![event(5), event(6)])],
    ] {
        for committed in commit_batch(store, batch).await.into_iter().flatten() {
            numbers.extend(committed.events);
        }
    }
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let events = all_events(store).await;
    assert_eq!(events.iter().map(|it| it.seq).collect::<Vec<_>>(), numbers);
    assert_eq!(events.iter().map(|it| it.run_seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
}

/// Events are filtered by project, by run, and by both.
pub async fn events_are_filtered_by_project_and_run(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let (run, sibling) = (make.run(&instance), make.run(&instance));
    let foreign = make.run(&make.instance(&make.template(&make.project())));
    let of_project = Event { run: None, run_seq: 0, ..make.event(&run, 0) };
    let written = vec![
        make.event(&run, 1),
        make.event(&foreign, 1),
        make.installation_event(&make.worker()),
        make.event(&sibling, 1),
        of_project,
        make.event(&run, 2),
    ];
    let numbers = commit(store, appending(written)).await.events;
    for (project, run, expected) in [
        (None, None, vec![0, 1, 2, 3, 4, 5]),
        (Some(run.project), None, vec![0, 3, 4, 5]),
        (Some(foreign.project), None, vec![1]),
        (None, Some(run.id), vec![0, 5]),
        (Some(run.project), Some(run.id), vec![0, 5]),
        (Some(foreign.project), Some(run.id), vec![]),
        (Some(make.id()), None, vec![]),
    ] {
        let filter = EventFilter { project, run };
        let found: Vec<u64> = read(store, filter.clone(), 0, 100).await.iter().map(|it| it.seq).collect();
        let expected: Vec<u64> = expected.into_iter().map(|at: usize| numbers[at]).collect();
        assert_eq!(found, expected, "{filter:?}");
    }
}

/// A reader that goes on after the last number it saw gets every event once, filtered or not.
pub async fn events_are_read_in_pages(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let (run, other) = (make.run(&instance), make.run(&instance));
    for run_seq in 1..=10 {
        commit(store, appending(vec![make.event(&run, run_seq), make.event(&other, run_seq)])).await;
    }
    for filter in [EventFilter::default(), EventFilter { run: Some(run.id), ..EventFilter::default() }] {
        let all = read(store, filter.clone(), 0, usize::MAX).await;
        for limit in [1, 3, 10, 20, 21] {
            let mut seen: Vec<Event> = vec![];
            loop {
                let after = seen.last().map_or(0, |it| it.seq);
                let page = read(store, filter.clone(), after, limit).await;
                assert!(page.len() <= limit, "{} events for {limit}", page.len());
                if page.is_empty() {
                    break;
                }
                seen.extend(page);
                assert!(seen.len() <= all.len(), "pages repeat events");
            }
            assert_eq!(seen, all, "in pages of {limit}");
        }
        assert_eq!(read(store, filter.clone(), 0, 0).await, []);
        assert_eq!(read(store, filter, u64::MAX, 10).await, []);
    }
    assert_eq!(all_events(store).await.len(), 20);
}
