//! The gRPC API for workers over real sockets: the whole conversation, sessions, encryption, failure.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod conversation;
mod encryption;
mod failure;
mod herd;
mod jobs;
mod served;
mod sessions;
#[allow(dead_code, reason = "shared with the tests of the HTTP API")]
#[path = "../http/support.rs"]
mod support;
#[allow(dead_code, reason = "shared with the tests of the HTTP API")]
#[path = "../http/worker.rs"]
mod worker;
