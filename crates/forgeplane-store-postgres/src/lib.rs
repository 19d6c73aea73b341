//! The PostgreSQL store: any number of coordinators on one database.
//!
//! - A batch is one transaction with one statement per table, rows travelling as arrays.
//! - The guards of [`forgeplane_core::ports::Constraint`] are unique indexes, and history is protected by triggers.
//! - Events are numbered in commit order and without gaps, so that a reader needs nothing but the last number it saw.
//! - No session state is used: no session locks, no `LISTEN`, no settings. Behind a pooler that gives out connections
//!   by transaction, set [`PostgresOptions::prepared_statements`] to `false`.
//! - The result of a COMMIT that failed is [unknown](forgeplane_core::ports::StoreError::Unknown) and never repeated
//!   blindly.
//! - The server must be durable (`fsync`, `full_page_writes`, `synchronous_commit`), or it is refused.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use forgeplane_store_postgres::{PostgresOptions, PostgresStore};
//!
//! let store = PostgresStore::open(&PostgresOptions::new("postgres://forgeplane@localhost/forgeplane")).await?;
//! let clock = store.clock();
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod blobs;
mod clock;
mod error;
mod migrate;
mod open;
mod options;
mod partition;
mod read;
mod row;
mod select;
mod statement;
mod store;
mod write;

pub use blobs::PostgresBlobs;
pub use clock::DatabaseClock;
pub use error::OpenError;
pub use options::PostgresOptions;
pub use store::PostgresStore;
