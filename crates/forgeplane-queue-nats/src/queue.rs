//! [`NatsQueue`]: the coordinator's end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{ContextBuilder, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{Context, ErrorCode};
use async_trait::async_trait;
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Job;
use forgeplane_core::ports::{JobQueue, JobStream, QueueError};
use tokio::sync::RwLock;
use tokio::time::Instant;

use crate::error::{ConnectError, ServerCode as _, Trouble};
use crate::link::{ANSWER, Link, LinkState, within};
use crate::options::NatsOptions;
use crate::pull::PullStream;
use crate::topology::{ensure_consumer, ensure_stream};

/// How many publications may be on their way at once.
const WINDOW: usize = 256;

/// How long a publication may take with everything that may have to be made for it first.
const PATIENCE: Duration = Duration::from_secs(10);

/// The coordinator's end of the queue: it makes the stream and the consumers, and publishes.
///
/// Clones share one connection.
#[derive(Debug, Clone)]
pub struct NatsQueue {
    link: Link,
    context: Context,
    options: Arc<NatsOptions>,
    known: Arc<RwLock<Known>>,
}

/// For how long a consumer that was made sure of is believed to exist. One that an administrator removed is made
/// again with the first publication after this.
const BELIEF: Duration = Duration::from_secs(30);

/// What is known to exist on the broker.
#[derive(Debug, Default)]
struct Known {
    /// As of how many losses of the connection. A broker that was away may have come back with less.
    losses: u64,
    /// Grows whenever the stream had to be made sure of again.
    generation: u64,
    /// Workers with a consumer, and when that was made sure of.
    workers: BTreeMap<WorkerId, Instant>,
}

impl NatsQueue {
    /// Connects, and makes the stream or changes it to what the options say.
    ///
    /// # Errors
    /// When an option cannot be used, the broker cannot be reached or refuses, or there is a stream of this name
    /// that cannot hold jobs.
    pub async fn connect(options: NatsOptions) -> Result<Self, ConnectError> {
        options.check()?;
        let inbox = options.inbox_prefix.as_deref().unwrap_or("_INBOX");
        let link = Link::connect(&options, inbox).await?;
        let context = ContextBuilder::new()
            .timeout(ANSWER)
            .ack_timeout(ANSWER)
            .max_ack_inflight(WINDOW)
            .build(link.client.clone());
        ensure_stream(&context, &options).await?;
        Ok(Self { link, context, options: Arc::new(options), known: Arc::default() })
    }

    /// Makes sure that a worker's consumer exists, so that the worker can pull. Publishing and subscribing do it too;
    /// doing it when a worker is enrolled spares the first job the time.
    ///
    /// # Errors
    /// When the broker cannot be reached or refuses; the call may be repeated.
    pub async fn ensure_worker(&self, worker: WorkerId) -> Result<(), QueueError> {
        let asking = self.link.through_losses(|state| async move {
            self.make_consumer(&mut *self.known.write().await, state, worker).await
        });
        Ok(within(PATIENCE, asking).await?)
    }

    /// Makes sure of the worker's consumer unless it is known to exist, and returns the generation of that knowledge.
    async fn ensure(&self, state: LinkState, worker: WorkerId) -> Result<u64, Trouble> {
        {
            let known = self.known.read().await;
            if known.has(state, worker) {
                return Ok(known.generation);
            }
        }
        let mut known = self.known.write().await;
        // Of many publications that find it missing together, the first one makes it.
        if !known.has(state, worker) {
            self.make_consumer(&mut known, state, worker).await?;
        }
        Ok(known.generation)
    }

    async fn make_consumer(
        &self,
        known: &mut Known,
        state: LinkState,
        worker: WorkerId,
    ) -> Result<(), Trouble> {
        if known.losses != state.losses {
            known.forget();
            known.losses = state.losses;
        }
        let stream = self.context.get_stream_no_info(&self.options.stream).await;
        let stream = stream.map_err(|e| ConnectError::Stream(e.into()))?;
        match ensure_consumer(&stream, &self.options, worker).await {
            Err(Trouble::Consumer(error)) if error.server_code() == Some(ErrorCode::STREAM_NOT_FOUND) => {
                known.forget();
                ensure_stream(&self.context, &self.options).await?;
                ensure_consumer(&stream, &self.options, worker).await?;
            }
            other => other?,
        }
        known.workers.insert(worker, Instant::now());
        Ok(())
    }

    /// Makes sure of the stream after a publication of this generation found none.
    async fn rebuild(&self, generation: u64) -> Result<(), Trouble> {
        let mut known = self.known.write().await;
        // Of many publications that fail together, the first one does it.
        if known.generation == generation {
            ensure_stream(&self.context, &self.options).await?;
            known.forget();
        }
        Ok(())
    }

    async fn send(&self, job: &Job) -> Result<(), Trouble> {
        let payload = serde_json::to_vec(job).map_err(|e| {
            async_nats::jetstream::context::PublishError::with_source(PublishErrorKind::Other, e)
        })?;
        let message = PublishMessage::build()
            .payload(payload.into())
            .message_id(job.message_id())
            .expected_stream(&self.options.stream);
        self.context.send_publish(self.options.subject(job.worker), message).await?.await?;
        Ok(())
    }

    async fn publish_or_rebuild(&self, state: LinkState, job: &Job) -> Result<(), Trouble> {
        let generation = self.ensure(state, job.worker).await?;
        match self.send(job).await {
            Err(Trouble::Publish(error)) if error.kind() == PublishErrorKind::StreamNotFound => {
                tracing::warn!(stream = self.options.stream, "the stream of jobs is gone; it is made again");
                self.rebuild(generation).await?;
                self.ensure(state, job.worker).await?;
                self.send(job).await
            }
            other => other,
        }
    }
}

impl Known {
    fn has(&self, state: LinkState, worker: WorkerId) -> bool {
        self.losses == state.losses && self.workers.get(&worker).is_some_and(|since| since.elapsed() < BELIEF)
    }

    fn forget(&mut self) {
        self.workers.clear();
        self.generation += 1;
    }
}

#[async_trait]
impl JobQueue for NatsQueue {
    async fn publish(&self, job: &Job) -> Result<(), QueueError> {
        // Published twice because the first answer was lost, the broker knows the message id.
        let publishing = self.link.through_losses(|state| self.publish_or_rebuild(state, job));
        Ok(within(PATIENCE, publishing).await?)
    }

    async fn subscribe(&self, worker: WorkerId) -> Result<Box<dyn JobStream>, QueueError> {
        self.ensure_worker(worker).await?;
        Ok(Box::new(PullStream::new(self.link.clone(), &self.options, worker)))
    }
}
