//! Pure decisions: `fn(state, command, now) -> Result<Changeset, Refusal>`.
//!
//! No rule does IO, reads a clock or draws a random number; ids and nonces come in with the command. The
//! coordinator loads the state, asks the rule, commits the changeset, and on a conflict starts over with
//! fresh state. What must hold under concurrency is guarded again by versions and database constraints.
//!
//! | file | decides |
//! | --- | --- |
//! | [`lifecycle`] | which status follows which command |
//! | [`inputs`] | schema, defaults, secret paths |
//! | [`admission`] | whether a run comes into being, and its frozen snapshot |
//! | [`promotion`] | whether a plan becomes an apply |
//! | [`approval`] | what a review does |
//! | [`capacity`] | what a worker can take |
//! | [`schedule`] | which run goes to which worker, and why the others wait |
//! | [`claim`] | whether the execution fence may be crossed |
//! | [`cancel`] | what a stop request does |
//! | [`state`] | whether a state document becomes a generation |
//! | [`log`] | whether log frames continue the log |
//! | [`outcome`] | what a signed statement does |
//! | [`requeue`] | whether a run may be tried again |
//! | [`resolve`] | what an operator's decision does |
//! | [`sweep`] | what the passing of time does |
//! | [`registration`] | whether a worker may join |
//! | [`rotation`] | whether a worker's key is replaced, and what an untrusted one still counts |

pub mod admission;
pub mod approval;
pub mod cancel;
pub mod capacity;
pub mod claim;
mod draft;
pub mod environment;
pub mod inputs;
pub mod lifecycle;
pub mod log;
pub mod outcome;
pub mod promotion;
pub mod registration;
pub mod regression;
pub mod requeue;
pub mod resolve;
pub mod rotation;
pub mod schedule;
mod settings;
pub mod state;
pub mod sweep;

pub(crate) use draft::RunDraft;
pub use draft::object;
pub use settings::Settings;
