//! `forgeplane dev` and the command line as people use them: real processes, a real Terraform, real signals.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod commands;
mod crash;
mod refusals;
mod support;
