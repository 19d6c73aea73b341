//! The heart of Forgeplane: what an infrastructure run *is*, which steps it may take, and the engine
//! that records each step before anything happens.
//!
//! | module | holds |
//! | --- | --- |
//! | [`id`], [`digest`] | typed identifiers and content digests |
//! | [`model`] | the nouns as plain data |
//! | [`rules`] | pure decisions `(state, command, now) -> Changeset or Refusal` |
//! | [`ports`] | the traits a backend implements |
//! | [`coordinator`] | load → rule → commit → outbox, and the four background loops |
//! | [`evidence`] | signed envelopes and their verification |
//! | [`failpoint`] | where tests let a process die |
//! | [`check`] | whether a store holds what the protocol promises |
//! | [`memory`] | readable reference backends |
//!
//! Nothing in this crate knows SQL, NATS, gRPC, HTTP or an infrastructure tool, and nothing in
//! [`rules`] reads a clock or draws a random number.
//!
//! ```
//! use forgeplane_core::model::{Operation, Tool};
//!
//! // An Ansible instance only executes; a Terraform plan never writes state.
//! assert!(!Tool::Ansible.supports(&Operation::Apply));
//! assert!(!Operation::Plan { destroy: false }.writes_state());
//! ```
#![forbid(unsafe_code)]

pub mod check;
pub mod coordinator;
pub mod digest;
pub mod evidence;
pub mod failpoint;
pub mod id;
pub mod memory;
pub mod model;
pub mod ports;
pub mod refusal;
pub mod rules;
pub mod seal;

pub use jiff::Timestamp;
pub use refusal::{Code, Refusal};
