//! The HTTP API of Forgeplane.
#![forbid(unsafe_code)]

pub mod api;
