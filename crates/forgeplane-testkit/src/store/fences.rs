//! Fences: numbers that grow and are never given twice.

use forgeplane_core::model::*;
use forgeplane_core::ports::Store;

use super::*;
use crate::fixtures::Fixtures;

/// Allocates a fence.
pub(super) async fn allocate(store: &dyn Store) -> Fence {
    store.allocate_fence().await.expect("the store answers")
}

/// Allocates a fence and commits an attempt with it.
pub(super) async fn allocate_and_commit(store: &dyn Store, make: &Fixtures) -> Fence {
    let run = make.run(&make.instance(&make.template(&make.project())));
    let fence = allocate(store).await;
    commit(store, insert(Attempt { fence, ..make.attempt(&run, &make.worker()) })).await;
    fence
}

/// Every fence is greater than all that were committed, and above 0: a state object that nobody wrote has high
/// water 0.
pub async fn fences_grow_past_committed_attempts(store: &dyn Store) {
    let make = Fixtures::new();
    let mut last = Fence(0);
    for _ in 0..20 {
        let next = allocate_and_commit(store, &make).await;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

/// A conflict does not bring back a fence that was committed before.
pub async fn a_conflict_gives_no_fence_back(store: &dyn Store) {
    let make = Fixtures::new();
    let committed = allocate_and_commit(store, &make).await;
    let run = make.run(&make.instance(&make.template(&make.project())));
    let attempt = Attempt { fence: allocate(store).await, ..make.attempt(&run, &make.worker()) };
    let absent = make.project();
    let mut changes = insert(attempt);
    changes.update(1, absent.clone());
    refused_version(store, changes, Record::from(absent).key()).await;
    assert!(allocate(store).await > committed);
}
