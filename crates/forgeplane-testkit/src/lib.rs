//! Conformance suites for backends.
#![forbid(unsafe_code)]
// The whole crate is tests: a panic is how a story says that a backend broke its contract.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod blob;
mod builder;
pub mod fixtures;
mod macros;
pub mod queue;
pub mod run;
pub mod store;

pub use builder::{BlobGuard, Builder, QueueBuilder, QueueGuard, QueueTiming, Reopen, StoreGuard, Time};
