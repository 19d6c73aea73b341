//! The words of the stories.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Committed, Conflict, Page, Select, Store};

/// A changeset that inserts records.
pub(super) fn inserting(records: impl IntoIterator<Item = impl Into<Record>>) -> Changeset {
    let mut changes = Changeset::new();
    for record in records {
        changes.insert(record);
    }
    changes
}

/// A changeset that inserts one record.
pub(super) fn insert(record: impl Into<Record>) -> Changeset {
    inserting([record])
}

/// A changeset that replaces one record.
pub(super) fn update(version: u64, record: impl Into<Record>) -> Changeset {
    let mut changes = Changeset::new();
    changes.update(version, record);
    changes
}

/// A changeset that inserts or replaces one record.
pub(super) fn upsert(record: impl Into<Record>) -> Changeset {
    let mut changes = Changeset::new();
    changes.upsert(record);
    changes
}

/// Commits one changeset alone.
pub(super) async fn try_commit(store: &dyn Store, changes: Changeset) -> Result<Committed, Conflict> {
    let mut results = store.commit(vec![changes]).await.expect("the store answers");
    assert_eq!(results.len(), 1, "one result for one changeset");
    results.remove(0)
}

/// Commits one changeset that nothing stands against.
pub(super) async fn commit(store: &dyn Store, changes: Changeset) -> Committed {
    try_commit(store, changes).await.expect("nothing stands against this changeset")
}

/// Commits a batch; an answer for each changeset.
pub(super) async fn commit_batch(
    store: &dyn Store,
    batch: Vec<Changeset>,
) -> Vec<Result<Committed, Conflict>> {
    let sent = batch.len();
    let results = store.commit(batch).await.expect("the store answers");
    assert_eq!(results.len(), sent, "one result for each changeset");
    results
}

/// Commits one changeset that must not be committed, because a record is not at the expected version.
pub(super) async fn refused_version(store: &dyn Store, changes: Changeset, key: Key) {
    assert_eq!(try_commit(store, changes).await, Err(Conflict::Version { key }));
}

/// The stored record and its version.
pub(super) async fn stored(store: &dyn Store, key: &Key) -> Option<(Record, u64)> {
    store.get(key).await.expect("the store answers").map(|it| (it.value, it.version))
}

/// Requires that exactly this record is stored, at this version.
pub(super) async fn is_stored(store: &dyn Store, record: impl Into<Record>, version: u64) {
    let record = record.into();
    let key = record.key();
    assert_eq!(stored(store, &key).await, Some((record, version)), "what is stored under {key:?}");
}

/// Requires that nothing is stored under the record's key.
pub(super) async fn is_absent(store: &dyn Store, record: impl Into<Record>) {
    let key = record.into().key();
    assert_eq!(stored(store, &key).await, None, "nothing is stored under {key:?}");
}

/// Every event.
pub(super) async fn all_events(store: &dyn Store) -> Vec<Event> {
    store.events(&Default::default(), 0, usize::MAX).await.expect("the store answers")
}

/// Every message of the outbox.
pub(super) async fn all_outbox(store: &dyn Store) -> Vec<OutboxMessage> {
    store.outbox(usize::MAX).await.expect("the store answers")
}

/// A page of a list.
pub(super) async fn listed(store: &dyn Store, select: &Select, page: &Page) -> Vec<Record> {
    store.list(select, page).await.expect("the store answers").into_iter().map(|it| it.value).collect()
}
