//! The real worker against the real coordinator, with real tools and real processes.
//!
//! Every test has its own directories and its own user ids. There is no OpenTofu here: tests of `tofu` run
//! Terraform behind a wrapper script of that name, which the test writes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod ansible;
mod recovery;
mod refusals;
mod stopping;
mod support;
mod terraform;
