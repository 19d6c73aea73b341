//! The nouns of `spec.md` §1 as plain data, one file each. Nothing here decides anything.

mod actor;
mod approval;
mod artifact;
mod attempt;
mod event;
mod evidence;
mod instance;
mod log;
mod name;
mod operation;
mod project;
mod record;
mod run;
mod secret;
mod snapshot;
mod state;
mod template;
mod worker;

pub use actor::*;
pub use approval::*;
pub use artifact::*;
pub use attempt::*;
pub use event::*;
pub use evidence::*;
pub use instance::*;
pub use log::*;
pub use name::*;
pub use operation::*;
pub use project::*;
pub use record::*;
pub use run::*;
pub use secret::*;
pub use snapshot::*;
pub use state::*;
pub use template::*;
pub use worker::*;

/// A JSON object: inputs, event data, schemas.
pub type Object = serde_json::Map<String, serde_json::Value>;
