//! Coordinators as operators run them: real processes, a real database, a real broker, real workers.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod addresses;
mod broker;
mod cables;
mod certificates;
mod clocks;
mod configuration;
mod crawling;
mod database;
mod disk;
mod draining;
mod failpoints;
mod frozen;
mod identity;
mod memory;
mod partitions;
mod recovery;
mod regression;
mod serving;
mod several;
mod streams;
mod support;
mod thousand;
mod writers;
