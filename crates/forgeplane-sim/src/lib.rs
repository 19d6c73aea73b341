//! Whether the protocol holds in every order of events, not only in those that a test thinks of.
//!
//! [`model`] puts the production rules of `forgeplane-core` behind a network and a broker that lose, repeat and reorder
//! everything, lets workers crash with and without their journal, leases expire, operators decide, and visits every
//! state that can be reached. The invariants are those of `protocol.md` 1.12.
//!
//! [`simulation`] runs the production coordinator and the production worker in a world that is made up from a seed.
//!
//! ```
//! use forgeplane_sim::model::{Limits, Protocol};
//! use stateright::{Checker, Model};
//!
//! let model = Protocol::new(Limits { attempts: 1, crashes: 0, ..Limits::default() });
//! model.checker().spawn_bfs().join().assert_properties();
//! ```
#![forbid(unsafe_code)]

pub mod model;
pub mod simulation;
