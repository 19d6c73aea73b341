//! Who may start a tool, who may say how it ended, and what is left of everybody else's words.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod claim;
mod contact;
mod enrollment;
mod forgery;
mod outcome;
mod resolve;
mod rotation;
mod state;
