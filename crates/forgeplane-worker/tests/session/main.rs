//! The real worker against a scripted control plane: lost, wrong and missing answers, one at a time.
//!
//! `tests/e2e` shows that the worker and the real coordinator agree; here the coordinator does what the real
//! one never does on request. Tools are real processes, every test has its own directories and user ids.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod answers;
mod bench;
mod isolation;
mod logs;
mod script;
mod state;
mod suspension;
