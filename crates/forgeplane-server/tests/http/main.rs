//! The HTTP API from outside: a router over a coordinator in memory, and a worker that does as it is told.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod commands;
mod failures;
mod openapi;
mod reading;
mod requests;
mod streams;
mod support;
mod tenancy;
mod transitions;
mod worker;
