//! Which run goes to which worker, in which order, and why the others wait.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod placement;
mod reasons;
mod steps;
