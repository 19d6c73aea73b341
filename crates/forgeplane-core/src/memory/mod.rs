//! Readable reference backends, in memory.
//!
//! | file | holds |
//! | --- | --- |
//! | `store` | [`MemoryStore`]: versions, atomicity, events, outbox, logs, fences |
//! | `constraints` | which values a record claims for itself |
//! | `queries` | what each [`Lookup`](crate::ports::Lookup) and [`Select`](crate::ports::Select) means |
//! | `queue` | [`MemoryQueue`], also the queue of a coordinator and worker in one process |
//! | `blobs` | [`MemoryBlobs`] |
//! | `determinism` | [`ManualClock`] and [`SeededEntropy`], for tests and simulations |
//!
//! [`MemoryStore`] is the contract of [`Store`](crate::ports::Store) in code: what a database does with
//! tables and indexes is spelled out here with maps under one lock. Nothing survives the process.
//!
//! ```
//! use forgeplane_core::Timestamp;
//! use forgeplane_core::id::ProjectId;
//! use forgeplane_core::memory::MemoryStore;
//! use forgeplane_core::model::{Changeset, Project};
//! use forgeplane_core::ports::{Lookup, Store as _, StoreExt as _};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let store = MemoryStore::new();
//! let created_at = Timestamp::UNIX_EPOCH;
//! let id = ProjectId::new(created_at, [7; 10]);
//! let mut changes = Changeset::new();
//! changes.insert(Project { id, name: "payments".parse().unwrap(), created_at });
//! store.commit(vec![changes]).await.unwrap()[0].as_ref().unwrap();
//!
//! let found = store.find_as::<Project>(&Lookup::ProjectNamed("payments".parse().unwrap())).await.unwrap();
//! assert_eq!(found.map(|it| (it.id, it.version)), Some((id, 1)));
//! # });
//! ```

mod blobs;
mod constraints;
mod determinism;
mod queries;
mod queue;
mod store;

pub use blobs::MemoryBlobs;
pub use determinism::{ManualClock, SeededEntropy};
pub use queue::MemoryQueue;
pub use store::MemoryStore;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks even after another thread panicked while it held the lock: every change here is made by code that
/// cannot panic half-way, so the data is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
