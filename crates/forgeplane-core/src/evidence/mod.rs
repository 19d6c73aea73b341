//! Signed statements (DSSE) and their verification, used by the coordinator, the worker and
//! `forgeplane verify`.
//!
//! A statement's bytes are produced once and travel as bytes: verification checks the signature over them
//! and then parses those same bytes. Each kind of statement has its own payload type, so a signature made
//! for one can never be read as another (`protocol.md` 1.8).

mod dsse;
mod statement;
mod verify;

pub use dsse::*;
pub use statement::*;
pub use verify::*;
