//! How a backend author hands fresh backends to the suites.

use std::time::Duration;

use async_trait::async_trait;
use forgeplane_core::ports::{BlobStore, JobQueue, Store};

/// Makes one fresh, empty backend for each story.
#[async_trait]
pub trait Builder {
    /// What keeps the backend alive: a temporary directory, a server, a database of its own. Dropping it
    /// takes everything away again.
    type Guard: Send;

    /// Whether content survives [`Reopen::reopen`]. The macros refuse at compile time to run a durable
    /// backend without its durability stories, so that nothing is left out by accident.
    const DURABLE: bool;

    /// Makes an empty backend; panics if it cannot be made, for a story without its backend has failed.
    async fn build() -> Self::Guard;
}

/// A backend that can be closed and opened again.
#[async_trait]
pub trait Reopen {
    /// Closes everything that is open and opens the same content anew, as a restarted process would.
    async fn reopen(&mut self);
}

/// A living store.
pub trait StoreGuard: Send + Sync {
    /// The store.
    fn store(&self) -> &dyn Store;
}

/// A living job queue.
pub trait QueueGuard: Send + Sync {
    /// The queue.
    fn queue(&self) -> &dyn JobQueue;
}

/// A living blob store.
pub trait BlobGuard: Send + Sync {
    /// The blob store.
    fn blobs(&self) -> &dyn BlobStore;
}

/// How time passes in the stories of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// Tokio's clock stands still and jumps to the next timer when every task waits: for queues that tell
    /// time by Tokio and do no IO.
    Paused,
    /// Wall-clock time: for queues that speak to a server.
    Real,
}

/// What a suite must know about a queue's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueTiming {
    /// How time passes.
    pub time: Time,
    /// After this long, a job whose delivery was dropped or whose consumer was lost has been delivered again.
    /// A story that says that nothing comes watches for as long.
    pub redelivery: Duration,
}

/// The timing of the queues a [`Builder`] makes.
pub trait QueueBuilder: Builder {
    /// The timing.
    const TIMING: QueueTiming;
}
