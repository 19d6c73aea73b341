//! The SQLite store: one file, one process, no service.
//!
//! - WAL with `synchronous = FULL`: a commit that returned survives a power loss.
//! - One writer thread; what waits is committed in one `BEGIN IMMEDIATE` transaction, each changeset under a
//!   savepoint of its own, so that one that conflicts leaves its neighbours alone.
//! - Reads run on read-only connections beside the writer.
//! - The guards of [`forgeplane_core::ports::Constraint`] are unique indexes, and history is protected by triggers.
//! - The file belongs to one process: a second one is refused while a lock file is held.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use forgeplane_core::model::{Changeset, Project};
//! use forgeplane_core::ports::{Lookup, Store, StoreExt};
//! use forgeplane_store_sqlite::SqliteStore;
//!
//! let dir = tempfile::tempdir().unwrap();
//! let store = SqliteStore::open(dir.path().join("forgeplane.db")).unwrap();
//! assert!(store.find_as::<Project>(&Lookup::ProjectNamed("default".parse().unwrap())).await.unwrap().is_none());
//! # });
//! ```
#![forbid(unsafe_code)]

mod error;
mod migrate;
mod open;
mod read;
mod row;
mod select;
mod store;
mod write;

pub use error::OpenError;
pub use store::SqliteStore;
