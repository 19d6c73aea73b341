//! Conformance suites for the backends of Forgeplane, and fixtures for its tests.
//!
//! A backend author says how to make a backend and writes one line for it; every promise of its contract
//! becomes a test of its own:
//!
//! ```
//! use forgeplane_core::memory::MemoryStore;
//! use forgeplane_core::ports::Store;
//! use forgeplane_testkit::{Builder, StoreGuard, store_conformance};
//!
//! struct MyStore;
//!
//! #[async_trait::async_trait]
//! impl Builder for MyStore {
//!     type Guard = Running;
//!     const DURABLE: bool = false;
//!
//!     async fn build() -> Running {
//!         Running(MemoryStore::new())
//!     }
//! }
//!
//! /// Would also own the temporary directory or the server of a store that needs one.
//! struct Running(MemoryStore);
//!
//! impl StoreGuard for Running {
//!     fn store(&self) -> &dyn Store {
//!         &self.0
//!     }
//! }
//!
//! store_conformance!(MyStore);
//!
//! // A story is a plain function: it can be told alone, too.
//! forgeplane_testkit::run::story(async {
//!     let guard = MyStore::build().await;
//!     forgeplane_testkit::store::commit::a_conflict_does_not_disturb_its_neighbours(guard.store()).await;
//! });
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | [`store`], [`queue`], [`blob`] | the stories, one public function for each promise of a port |
//! | `executor` | the same for executors; needs the feature `executor` |
//! | [`fixtures`] | sample records |
//! | `house` | a coordinator with a real worker in one process; needs the feature `executor` |
//! | [`run`] | the runtime a story runs in |
//! | `nats_server` | a real NATS server for one test; needs the feature `nats-server` |
//! | `installation` | services, coordinators and workers as processes; needs the feature `installation` |
//!
//! # Nothing is skipped
//!
//! A backend that keeps its content is tested by `store_conformance!(MyStore, durable)`: its guard also
//! implements [`Reopen`], and the stories of [`store::durability`] are told. Which form belongs to a backend is
//! decided by [`Builder::DURABLE`], and the other form does not compile. A backend that cannot be made fails its
//! stories.
#![forbid(unsafe_code)]
// The whole crate is tests: a panic is how a story says that a backend broke its contract.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod blob;
mod builder;
#[cfg(feature = "executor")]
pub mod executor;
pub mod fixtures;
#[cfg(feature = "executor")]
pub mod house;
#[cfg(feature = "installation")]
pub mod installation;
mod macros;
#[cfg(feature = "nats-server")]
pub mod nats_server;
#[cfg(feature = "postgres-server")]
pub mod pgbouncer;
#[cfg(feature = "postgres-server")]
pub mod postgres_server;
pub mod queue;
pub mod run;
pub mod store;

#[cfg(feature = "executor")]
pub use executor::ExecutorKit;

pub use builder::{BlobGuard, Builder, QueueBuilder, QueueGuard, QueueTiming, Reopen, StoreGuard, Time};
