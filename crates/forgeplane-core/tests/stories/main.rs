//! What the stories of `fencing` and `schedule` leave open: time without end, deliveries in the wrong order, and
//! facts that change between a decision's reads and its commit.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod claims;
mod lost_workers;
mod outcomes;
mod registration;
mod times;
mod waiting;
