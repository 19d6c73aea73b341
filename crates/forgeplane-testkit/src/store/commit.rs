//! Commits: all or nothing, one after the other, at the expected versions.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Conflict, Constraint, Store};

use super::*;
use crate::fixtures::Fixtures;

/// Every kind of record reads back as it was written, at version 1.
pub async fn every_kind_reads_back_as_it_was_written(store: &dyn Store) {
    let records = Fixtures::new().one_of_each();
    let committed = commit(store, inserting(records.clone())).await;
    assert!(committed.events.is_empty(), "there were no events");
    for record in records {
        is_stored(store, record, 1).await;
    }
}

/// What was never written is not there.
pub async fn a_record_that_was_never_written_is_not_there(store: &dyn Store) {
    let make = Fixtures::new();
    for record in make.one_of_each() {
        is_absent(store, record).await;
    }
    for &kind in Kind::ALL {
        assert_eq!(stored(store, &Key { kind, id: "no such key".to_owned() }).await, None, "{kind:?}");
    }
}

/// Committing nothing is allowed and answers for each changeset.
pub async fn an_empty_batch_and_an_empty_changeset_change_nothing(store: &dyn Store) {
    assert_eq!(commit_batch(store, vec![]).await, []);
    assert_eq!(commit_batch(store, vec![Changeset::new()]).await, [Ok(Default::default())]);
    assert_eq!(all_events(store).await, []);
}

/// A conflict in the last record takes puts, events, outbox rows and removals with it.
pub async fn a_changeset_happens_as_a_whole_or_not_at_all(store: &dyn Store) {
    let make = Fixtures::new();
    let (instance, worker) = (make.instance(&make.template(&make.project())), make.worker());
    let (run, taken) = (make.run(&instance), make.project());
    let attempt = make.attempt(&run, &worker);
    let waiting = make.outbox(&attempt);
    let mut before = inserting([Record::from(taken.clone()), run.clone().into()]);
    before.outbox.push(waiting.clone());
    commit(store, before).await;

    let mut changes = Changeset::new();
    let moved = Run { status: RunStatus::Running, ..run.clone() };
    changes.insert(attempt.clone()).update(1, moved).upsert(make.contact(&worker)).insert(worker.clone());
    changes.insert(Project { name: taken.name.clone(), ..make.project() });
    changes.events.push(make.event(&run, 1));
    changes.outbox.push(make.outbox(&attempt));
    changes.published.push(waiting.id);
    let refused = try_commit(store, changes.clone()).await;

    assert_eq!(refused, Err(Conflict::Constraint(Constraint::ProjectName)));
    is_stored(store, run.clone(), 1).await;
    is_absent(store, attempt.clone()).await;
    is_absent(store, worker.clone()).await;
    is_absent(store, make.contact(&worker)).await;
    assert_eq!(all_events(store).await, []);
    assert_eq!(all_outbox(store).await, [waiting]);

    // Without the offending record the same changeset happens as a whole.
    changes.puts.pop();
    let committed = commit(store, changes.clone()).await;
    assert_eq!(committed.events.len(), 1);
    is_stored(store, Run { status: RunStatus::Running, ..run }, 2).await;
    is_stored(store, attempt, 1).await;
    is_stored(store, worker, 1).await;
    assert_eq!(all_outbox(store).await, changes.outbox);
}

/// A changeset that conflicts changes nothing for the changesets before and after it in the batch.
pub async fn a_conflict_does_not_disturb_its_neighbours(store: &dyn Store) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let [first, middle, last] = [make.project(), make.project(), make.project()];
    let with_event = |mut changes: Changeset, run_seq| {
        changes.events.push(make.event(&run, run_seq));
        changes
    };
    let clash = Project { name: first.name.clone(), ..make.project() };
    let results = commit_batch(
        store,
        vec![
            with_event(insert(first.clone()), 1),
            with_event(inserting([middle.clone(), clash.clone()]), 2),
            with_event(update(7, middle.clone()), 3),
            with_event(insert(last.clone()), 4),
        ],
    )
    .await;

    assert!(results[0].is_ok() && results[3].is_ok(), "{results:?}");
    assert_eq!(results[1], Err(Conflict::Constraint(Constraint::ProjectName)));
    assert_eq!(results[2], Err(Conflict::Version { key: Record::from(middle.clone()).key() }));
    is_stored(store, first, 1).await;
    is_absent(store, middle).await;
    is_absent(store, clash).await;
    is_stored(store, last, 1).await;
    let seen: Vec<u64> = all_events(store).await.iter().map(|it| it.run_seq).collect();
    assert_eq!(seen, [1, 4]);
}

/// A name that a conflicting changeset would have taken is free for the next one of the batch.
pub async fn a_conflict_leaves_names_free_for_its_neighbours(store: &dyn Store) {
    let make = Fixtures::new();
    let (wanted, absent) = (make.project(), make.project());
    let mut half = insert(wanted.clone());
    half.update(1, absent.clone());
    let other = Project { name: wanted.name.clone(), ..make.project() };
    let results = commit_batch(store, vec![half, insert(other.clone())]).await;
    assert_eq!(results[0], Err(Conflict::Version { key: Record::from(absent).key() }));
    assert!(results[1].is_ok(), "{results:?}");
    is_stored(store, other, 1).await;
    is_absent(store, wanted).await;
}

/// A changeset sees what the earlier ones of its batch did.
pub async fn later_changesets_of_a_batch_see_earlier_ones(store: &dyn Store) {
    let make = Fixtures::new();
    let worker = make.worker();
    let [drained, back] = [true, false].map(|draining| Worker { draining, ..worker.clone() });
    let mut checking = insert(make.project());
    checking.check(&Versioned { value: worker.clone(), version: 3 });
    let results = commit_batch(
        store,
        vec![insert(worker.clone()), update(1, drained.clone()), update(2, back.clone()), checking],
    )
    .await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    is_stored(store, back, 3).await;

    // Two that expect the same version: the first of the batch wins.
    let results = commit_batch(store, vec![update(3, drained.clone()), update(3, worker.clone())]).await;
    assert!(results[0].is_ok(), "{results:?}");
    assert_eq!(results[1], Err(Conflict::Version { key: Record::from(worker).key() }));
    is_stored(store, drained, 4).await;
}

/// A changeset sees its own earlier puts.
pub async fn later_puts_of_a_changeset_see_earlier_ones(store: &dyn Store) {
    let make = Fixtures::new();
    let worker = make.worker();
    let drained = Worker { draining: true, ..worker.clone() };
    let mut changes = insert(worker);
    changes.update(1, drained.clone());
    commit(store, changes).await;
    is_stored(store, drained, 2).await;
}

/// A batch is not limited to a handful of changesets.
pub async fn a_large_batch_is_committed_in_order(store: &dyn Store) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let projects: Vec<Project> = (0..500).map(|_| make.project()).collect();
    let batch = projects.iter().zip(1..).map(|(project, run_seq)| {
        let mut changes = insert(project.clone());
        changes.events.push(make.event(&run, run_seq));
        changes
    });
    let results = commit_batch(store, batch.collect()).await;
    let sequence: Vec<u64> = results.into_iter().flat_map(|it| it.unwrap().events).collect();
    assert_eq!(sequence.len(), projects.len());
    assert!(sequence.is_sorted_by(|a, b| a < b), "{sequence:?}");
    for project in projects {
        is_stored(store, project, 1).await;
    }
}
