//! Versions: what a put expects, what a check requires, and what is never replaced.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Conflict, Store};

use super::*;
use crate::fixtures::Fixtures;

fn key(record: &(impl Into<Record> + Clone)) -> Key {
    record.clone().into().key()
}

/// Versions start at 1 and grow by 1 with every replacement.
pub async fn a_version_grows_by_one_with_every_replacement(store: &dyn Store) {
    let make = Fixtures::new();
    let mut worker = make.worker();
    commit(store, insert(worker.clone())).await;
    for version in 1..=5 {
        is_stored(store, worker.clone(), version).await;
        worker.incarnation += 1;
        commit(store, update(version, worker.clone())).await;
    }
    is_stored(store, worker, 6).await;
}

/// Every mutable kind is replaced at its version, and at no other.
pub async fn a_replacement_needs_the_exact_version(store: &dyn Store) {
    let make = Fixtures::new();
    for record in make.one_of_each().into_iter().filter(|it| !it.key().kind.is_immutable()) {
        let key = record.key();
        refused_version(store, update(1, record.clone()), key.clone()).await;
        commit(store, insert(record.clone())).await;
        for wrong in [0, 2, u64::from(u32::MAX), u64::MAX] {
            refused_version(store, update(wrong, record.clone()), key.clone()).await;
        }
        commit(store, update(1, record.clone())).await;
        refused_version(store, update(1, record.clone()), key.clone()).await;
        is_stored(store, record, 2).await;
    }
}

/// A record of any kind that exists is not inserted again, be it the same or another.
pub async fn an_insertion_needs_absence(store: &dyn Store) {
    let make = Fixtures::new();
    let records = make.one_of_each();
    commit(store, inserting(records.clone())).await;
    for record in &records {
        // The record also collides with itself in what is unique, and either may be reported.
        match try_commit(store, insert(record.clone())).await {
            Err(Conflict::Version { key }) => assert_eq!(key, record.key()),
            Err(Conflict::Constraint(_)) => {}
            Ok(_) => panic!("{:?} was inserted twice", record.key()),
        }
        is_stored(store, record.clone(), 1).await;
    }
    let project = make.project();
    commit(store, insert(project.clone())).await;
    let renamed = Project { name: make.name("renamed"), ..project.clone() };
    refused_version(store, insert(renamed), key(&project)).await;
    is_stored(store, project, 1).await;
}

/// An upsert inserts what is absent and replaces what is there, for every mutable kind.
pub async fn an_upsert_inserts_or_replaces(store: &dyn Store) {
    let make = Fixtures::new();
    for record in make.one_of_each().into_iter().filter(|it| !it.key().kind.is_immutable()) {
        commit(store, upsert(record.clone())).await;
        is_stored(store, record.clone(), 1).await;
        commit(store, upsert(record.clone())).await;
        is_stored(store, record, 2).await;
    }
    let contact = make.contact(&make.worker());
    let later = WorkerContact { last_seen: make.now(), held: vec![], ..contact.clone() };
    commit(store, upsert(contact)).await;
    commit(store, upsert(later.clone())).await;
    is_stored(store, later, 2).await;
}

/// A record of an immutable kind is written once, with [`Expect::Absent`] and nothing else.
pub async fn an_immutable_record_is_never_replaced(store: &dyn Store) {
    let make = Fixtures::new();
    let records = make.one_of_each().into_iter().filter(|it| it.key().kind.is_immutable());
    for record in records {
        let key = record.key();
        // Not even as a first write.
        refused_version(store, upsert(record.clone()), key.clone()).await;
        is_absent(store, record.clone()).await;
        commit(store, insert(record.clone())).await;
        for changes in [
            upsert(record.clone()),
            update(1, record.clone()),
            update(0, record.clone()),
            insert(record.clone()),
        ] {
            refused_version(store, changes, key.clone()).await;
        }
        is_stored(store, record, 1).await;
    }
}

/// A refused replacement of an immutable record leaves its first content.
pub async fn an_immutable_record_keeps_its_first_content(store: &dyn Store) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let attempt = make.attempt(&run, &make.worker());
    let receipt = make.receipt(&attempt);
    let other = Receipt { outcome: OutcomeKind::Failed, ..make.receipt(&attempt) };
    let (chunk, overlay) = (make.log_chunk(&attempt, 0, "first"), make.log_chunk(&attempt, 0, "other"));
    commit(store, inserting([Record::from(receipt.clone()), chunk.clone().into()])).await;
    for changes in [insert(other.clone()), upsert(other.clone()), update(1, other)] {
        refused_version(store, changes, key(&receipt)).await;
    }
    for changes in [insert(overlay.clone()), upsert(overlay.clone()), update(1, overlay)] {
        refused_version(store, changes, key(&chunk)).await;
    }
    is_stored(store, receipt, 1).await;
    is_stored(store, chunk, 1).await;
}

/// A check holds while the record is at the version that was read, and fails for any other.
pub async fn a_check_guards_a_record_that_was_only_read(store: &dyn Store) {
    let make = Fixtures::new();
    let (worker, missing) = (make.worker(), make.worker());
    commit(store, insert(worker.clone())).await;
    commit(store, update(1, worker.clone())).await;
    for wrong in [0, 1, 3] {
        let project = make.project();
        let mut changes = insert(project.clone());
        changes.check(&Versioned { value: worker.clone(), version: wrong });
        refused_version(store, changes, key(&worker)).await;
        is_absent(store, project).await;
    }
    for version in [0, 1] {
        let mut changes = insert(make.project());
        changes.check(&Versioned { value: missing.clone(), version });
        refused_version(store, changes, key(&missing)).await;
    }
    let project = make.project();
    let mut changes = insert(project.clone());
    changes.check(&Versioned { value: worker.clone(), version: 2 });
    commit(store, changes).await;
    is_stored(store, project, 1).await;
    // A check changes nothing.
    is_stored(store, worker, 2).await;
}

/// A check works for every kind.
pub async fn a_check_works_for_every_kind(store: &dyn Store) {
    let make = Fixtures::new();
    let records = make.one_of_each();
    commit(store, inserting(records.clone())).await;
    for record in records {
        let mut changes = insert(make.project());
        changes.checks.push((record.key(), 1));
        commit(store, changes.clone()).await;
        changes = insert(make.project());
        changes.checks.push((record.key(), 2));
        refused_version(store, changes, record.key()).await;
    }
}

/// A check is about the time before the changeset, even of a record that the changeset replaces.
pub async fn checks_come_before_puts(store: &dyn Store) {
    let make = Fixtures::new();
    let worker = make.worker();
    commit(store, insert(worker.clone())).await;
    let mut changes = update(1, worker.clone());
    changes.check(&Versioned { value: worker.clone(), version: 1 });
    commit(store, changes).await;
    is_stored(store, worker, 2).await;
}
