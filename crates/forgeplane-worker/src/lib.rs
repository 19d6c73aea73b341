//! The worker: it takes attempts, runs the tool in a box of its own and signs what came of it.
//!
//! | module | holds |
//! | --- | --- |
//! | [`host`] | what a worker needs of the machine it is on, so that it also runs on a simulated one |
//! | [`sandbox`] | starts a tool under its own UID, interrupts it, and proves that nothing of it is left |
//! | [`uid_lock`] | makes sure that one host never lends one UID to two workers |
//! | [`unpack`] | source bundles: refused whole before anything is written |
//! | [`redact`] | masks secrets in output, however the output is cut into pieces |
//!
//! ```
//! use forgeplane_worker::redact::Redactor;
//!
//! let redactor = Redactor::new(&["hunter2-hunter2".to_owned().into()]);
//! let mut stream = redactor.stream();
//! let mut shown = stream.push(b"password=hunter2-");
//! shown.extend(stream.push(b"hunter2\n"));
//! shown.extend(stream.finish());
//! assert_eq!(shown, b"password=[redacted]\n");
//! ```
#![deny(unsafe_code)]

mod attempt;
mod bundle;
mod config;
mod durable;
mod ending;
mod error;
pub mod executor;
mod heartbeat;
pub mod host;
mod identity;
mod journal;
mod link;
mod logs;
mod recovery;
pub mod redact;
mod retry;
pub mod sandbox;
mod state_server;
mod stop;
mod tools;
pub mod uid_lock;
pub mod unpack;
mod unsaved;
mod worker;
mod workspace;

pub use config::{Tools, WorkerConfig};
pub use error::WorkerError;
pub use logs::LogWriter;
pub use tools::FoundTool;
pub use worker::{Shutdown, Started, Worker};
pub use workspace::Workspace;
