//! The NATS JetStream job queue: jobs reach workers on other hosts.
//!
//! - One stream with work-queue retention holds the jobs; the subject of a job is `<prefix>.<worker id>`.
//! - One durable pull consumer per worker, made by the coordinator's end ([`NatsQueue`]). A worker's end
//!   ([`NatsWorkerQueue`]) needs the few [permissions](NatsOptions::worker_permissions) to pull and to answer,
//!   and neither creates consumers nor sees another worker's jobs.
//! - A publication returns when the broker has stored it. Many at once are pipelined.
//! - A pull asks for one job and is watched: when its heartbeats stop, the connection breaks or the consumer
//!   goes away, the worker asks again.
//! - The broker is never trusted to be complete: a broker that lost its store gets stream and consumers back
//!   with the next publication, and what it lost is published again by the coordinator.
//!
//! Works with nats-server 2.9 and newer.
//!
//! ```no_run
//! use forgeplane_core::ports::JobQueue;
//! use forgeplane_queue_nats::{NatsAuth, NatsOptions, NatsQueue, NatsWorkerQueue};
//!
//! # async fn example(job: forgeplane_core::model::Job) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! // The coordinator.
//! let options = NatsOptions {
//!     servers: vec!["tls://nats.example.org:4222".into()],
//!     auth: Some(NatsAuth::CredentialsFile("/etc/forgeplane/nats.creds".into())),
//!     ..NatsOptions::default()
//! };
//! let queue = NatsQueue::connect(options.clone()).await?;
//! queue.publish(&job).await?;
//!
//! // The worker, with credentials of its own.
//! let queue = NatsWorkerQueue::connect(options, job.worker).await?;
//! let mut jobs = queue.subscribe(job.worker).await?;
//! let delivery = jobs.next().await?;
//! assert_eq!(delivery.job(), &job);
//! delivery.ack().await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod delivery;
mod error;
mod link;
mod options;
mod pull;
mod queue;
mod topology;
mod worker;

pub use error::ConnectError;
pub use options::{InvalidOptions, NatsAuth, NatsOptions, NatsTls, WorkerPermissions};
pub use queue::NatsQueue;
pub use worker::NatsWorkerQueue;
