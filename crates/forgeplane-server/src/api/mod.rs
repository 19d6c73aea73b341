//! What travels over HTTP: requests and responses, apart from the model so that each can change alone.
//!
//! Conventions of every type here:
//!
//! - ids, names and digests travel as their text (`run_…`, `payments`, `sha256:…`);
//! - times are RFC 3339, durations are whole seconds in fields that end in `_s`;
//! - tools, operations and statuses travel as their labels, such as [`RunStatus`];
//! - a list is a [`Page`]; give its `next` back as `?after=` to go on;
//! - a request with a field nobody knows is refused; a response may get more fields over time;
//! - an error is a [`Problem`].

mod actor;
mod approval;
mod attempt;
mod event;
mod instance;
mod labels;
mod log;
mod page;
mod problem;
mod run;
mod secret;
mod snapshot;
mod state;
mod template;
mod token;
mod worker;

pub use actor::*;
pub use approval::*;
pub use attempt::*;
pub use event::*;
pub use instance::*;
pub use labels::*;
pub use log::*;
pub use page::*;
pub use problem::*;
pub use run::*;
pub use secret::*;
pub use snapshot::*;
pub use state::*;
pub use template::*;
pub use token::*;
pub use worker::*;
