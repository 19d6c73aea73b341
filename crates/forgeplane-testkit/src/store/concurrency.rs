//! Concurrency: committers on threads of their own, all at the same time.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Committed, Conflict, Constraint, Page, Select, Store};

use super::fences::allocate;
use super::*;
use crate::fixtures::Fixtures;

/// How many commit at the same time.
const COMMITTERS: usize = 50;

/// Runs `work` for 0, 1, … on threads that start together, and answers with what each gave.
fn together<T: Send>(count: usize, work: impl AsyncFn(usize) -> T + Sync) -> Vec<T> {
    let runtime = tokio::runtime::Handle::current();
    let start = std::sync::Barrier::new(count);
    // The threads block on futures of this runtime, whose own threads must stay free to drive them.
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|number| {
                    let (runtime, start, work) = (&runtime, &start, &work);
                    scope.spawn(move || {
                        start.wait();
                        runtime.block_on(work(number))
                    })
                })
                .collect();
            threads.into_iter().map(|it| it.join().expect("the committer does not panic")).collect()
        })
    })
}

/// Requires that exactly one of these was committed; answers with its number.
fn the_one_winner(results: &[Result<Committed, Conflict>], conflict: &Conflict) -> usize {
    let winners: Vec<usize> = (0..results.len()).filter(|&at| results[at].is_ok()).collect();
    assert_eq!(winners.len(), 1, "exactly one wins: {results:?}");
    assert!(results.iter().flat_map(|it| it.as_ref().err()).all(|it| it == conflict), "{results:?}");
    winners[0]
}

/// Committers of different records all succeed, and each reads at once what it wrote.
pub async fn committers_of_different_records_all_succeed(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let runs: Vec<Run> = (0..COMMITTERS).map(|_| make.run(&instance)).collect();
    let numbers = together(COMMITTERS, async |at| {
        let mut changes = insert(runs[at].clone());
        changes.events.extend([make.event(&runs[at], 1), make.event(&runs[at], 2)]);
        let committed = commit(store, changes).await;
        is_stored(store, runs[at].clone(), 1).await;
        committed.events
    });
    let events = all_events(store).await;
    assert_eq!(events.len(), 2 * COMMITTERS);
    for (run, numbers) in runs.iter().zip(numbers) {
        let of_run: Vec<u64> = events.iter().filter(|it| it.run == Some(run.id)).map(|it| it.seq).collect();
        assert_eq!(of_run, numbers);
    }
    let select = Select::Runs { project: instance.project, status: None, instance: None };
    assert_eq!(listed(store, &select, &Page::all()).await.len(), COMMITTERS);
}

/// Of all that update the same version, one wins.
pub async fn of_those_that_update_one_version_one_wins(store: &dyn Store) {
    let make = Fixtures::new();
    let worker = make.worker();
    commit(store, insert(worker.clone())).await;
    for version in 1..=5 {
        let by = |at: usize| Worker { incarnation: 1_000 * version + at as u64, ..worker.clone() };
        let results = together(COMMITTERS, async |at| try_commit(store, update(version, by(at))).await);
        let conflict = Conflict::Version { key: Record::from(worker.clone()).key() };
        let winner = the_one_winner(&results, &conflict);
        is_stored(store, by(winner), version + 1).await;
    }
}

/// Of all that insert the same record, one wins.
pub async fn of_those_that_insert_one_record_one_wins(store: &dyn Store) {
    let make = Fixtures::new();
    let attempt = make.attempt(&make.run(&make.instance(&make.template(&make.project()))), &make.worker());
    let receipts: Vec<Receipt> = (0..COMMITTERS).map(|_| make.receipt(&attempt)).collect();
    let results = together(COMMITTERS, async |at| try_commit(store, insert(receipts[at].clone())).await);
    let conflict = Conflict::Version { key: Record::from(receipts[0].clone()).key() };
    let winner = the_one_winner(&results, &conflict);
    is_stored(store, receipts[winner].clone(), 1).await;
}

/// Of all that open an attempt of one run, one wins.
pub async fn of_those_that_open_an_attempt_of_a_run_one_wins(store: &dyn Store) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let attempts: Vec<Attempt> = (1..=COMMITTERS)
        .map(|number| Attempt { number: number as u32, ..make.attempt(&run, &make.worker()) })
        .collect();
    let results = together(COMMITTERS, async |at| try_commit(store, insert(attempts[at].clone())).await);
    let winner = the_one_winner(&results, &Conflict::Constraint(Constraint::OpenAttemptPerRun));
    assert_eq!(listed(store, &Select::OpenAttempts, &Page::all()).await, [attempts[winner].clone().into()]);
}

/// A check that no longer holds when its changeset is committed is refused: two changesets, each checking what
/// the other one replaces, are never both committed.
pub async fn two_that_check_what_the_other_replaces_do_not_both_win(store: &dyn Store) {
    let make = Fixtures::new();
    for _ in 0..20 {
        let workers = [make.worker(), make.worker()];
        commit(store, inserting(workers.clone())).await;
        let results = together(2, async |at| {
            let mut changes = update(1, Worker { draining: true, ..workers[at].clone() });
            changes.check(&Versioned { value: workers[1 - at].clone(), version: 1 });
            try_commit(store, changes).await
        });
        let committed = results.iter().filter(|it| it.is_ok()).count();
        assert_eq!(committed, 1, "as if one after the other: {results:?}");
    }
}

/// Everybody who retries after a conflict gets through, and no update is lost.
pub async fn no_update_is_lost(store: &dyn Store) {
    let make = Fixtures::new();
    let mut worker = make.worker();
    worker.incarnation = 0;
    commit(store, insert(worker.clone())).await;
    let key = &Record::from(worker.clone()).key();
    together(10, async |_| {
        for _ in 0..5 {
            loop {
                let Some((Record::Worker(mut now), version)) = stored(store, key).await else {
                    panic!("the worker is gone");
                };
                now.incarnation += 1;
                if try_commit(store, update(version, now)).await.is_ok() {
                    break;
                }
            }
        }
    });
    is_stored(store, Worker { incarnation: 50, ..worker }, 51).await;
}

/// Upserts of one record never conflict.
pub async fn upserts_of_one_record_all_succeed(store: &dyn Store) {
    let make = Fixtures::new();
    let contact = make.contact(&make.worker());
    together(COMMITTERS, async |_| commit(store, upsert(contact.clone())).await);
    is_stored(store, contact, COMMITTERS as u64).await;
}

/// A reader that follows the events while others commit sees each of them once, in order: nothing appears later
/// below a number it has seen.
pub async fn a_reader_of_events_never_misses_one(store: &dyn Store) {
    const EACH: usize = 10;
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let seen = together(9, async |at| {
        let mut seen: Vec<u64> = vec![];
        if at == 0 {
            let started = std::time::Instant::now();
            while seen.len() < 8 * EACH {
                assert!(started.elapsed().as_secs() < 60, "events are missing: {seen:?}");
                let after = seen.last().copied().unwrap_or(0);
                let page = store.events(&Default::default(), after, 7).await.expect("the store answers");
                seen.extend(page.iter().map(|it| it.seq));
                tokio::task::yield_now().await;
            }
        } else {
            for _ in 0..EACH {
                let events = vec![make.event(&run, 1)];
                commit(store, Changeset { events, ..Changeset::default() }).await;
            }
        }
        seen
    });
    let all: Vec<u64> = all_events(store).await.iter().map(|it| it.seq).collect();
    assert_eq!(seen[0], all);
}

/// Fences that are allocated and committed at the same time are all different.
pub async fn fences_allocated_together_and_committed_are_all_different(store: &dyn Store) {
    let make = Fixtures::new();
    let mut fences = together(COMMITTERS, async |_| {
        let attempt =
            make.attempt(&make.run(&make.instance(&make.template(&make.project()))), &make.worker());
        loop {
            let fence = allocate(store).await;
            match try_commit(store, insert(Attempt { fence, ..attempt.clone() })).await {
                Ok(_) => break fence,
                // A fence that was not committed yet may be given twice; its constraint decides.
                Err(conflict) => assert_eq!(conflict, Conflict::Constraint(Constraint::Fence)),
            }
        }
    });
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), COMMITTERS);
    assert!(allocate(store).await > fences[COMMITTERS - 1]);
}
