//! The traits a backend or an embedder implements. Each trait's documentation is its contract; the
//! testkit has a suite for each.

mod blob;
mod clock;
mod control_plane;
mod events;
mod keys;
mod policy;
mod queue;
mod shared;
mod store;

pub use blob::*;
pub use clock::*;
pub use control_plane::*;
pub use events::*;
pub use keys::*;
pub use policy::*;
pub use queue::*;
pub use store::*;

/// A boxed source of an error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
