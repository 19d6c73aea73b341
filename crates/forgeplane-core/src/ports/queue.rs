//! The job queue port: how a worker learns that it has work.

use std::time::Duration;

use async_trait::async_trait;

use super::BoxError;
use crate::id::WorkerId;
use crate::model::Job;

/// A queue that could not answer; the call may be repeated.
#[derive(Debug, thiserror::Error)]
#[error("the job queue is not available: {0}")]
pub struct QueueError(#[source] pub BoxError);

/// Carries jobs to workers. It carries ids, not authority: a queue may lose, duplicate, delay and reorder
/// messages without any run being executed twice, because the claim decides.
///
/// # What an implementation guarantees
///
/// - A published job reaches its worker at least once while the queue is healthy, and is delivered again
///   until it is acknowledged: after `nak(delay)` not before the delay, after a lost consumer eventually.
/// - A worker only ever receives jobs addressed to it.
/// - When [`publish`](JobQueue::publish) returns, the queue has the job as durably as it can.
#[async_trait]
pub trait JobQueue: Send + Sync + 'static {
    /// Hands a job to the queue.
    ///
    /// # Errors
    /// When the queue did not take the job; publishing again is harmless.
    async fn publish(&self, job: &Job) -> Result<(), QueueError>;

    /// Opens the worker's end.
    ///
    /// # Errors
    /// When the queue cannot be reached.
    async fn subscribe(&self, worker: WorkerId) -> Result<Box<dyn JobStream>, QueueError>;
}

/// A worker's end of the queue.
#[async_trait]
pub trait JobStream: Send {
    /// Waits for the next delivery. Dropping the future loses nothing.
    ///
    /// # Errors
    /// When the queue cannot be reached; the caller subscribes again.
    async fn next(&mut self) -> Result<Box<dyn Delivery>, QueueError>;
}

/// One delivery of a job. Dropped without an answer, it is delivered again.
#[async_trait]
pub trait Delivery: Send + Sync {
    /// The job.
    fn job(&self) -> &Job;

    /// The job is done with; do not deliver it again. Only after the attempt is closed (invariant I6).
    ///
    /// # Errors
    /// When the queue cannot be reached; the job will be delivered again, which is harmless.
    async fn ack(self: Box<Self>) -> Result<(), QueueError>;

    /// Deliver again, not before `delay`.
    ///
    /// # Errors
    /// When the queue cannot be reached; the job will be delivered again anyway.
    async fn nak(self: Box<Self>, delay: Duration) -> Result<(), QueueError>;

    /// Still working: do not deliver again yet.
    ///
    /// # Errors
    /// When the queue cannot be reached; a redelivery is harmless.
    async fn in_progress(&self) -> Result<(), QueueError>;
}
