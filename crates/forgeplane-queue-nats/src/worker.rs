//! [`NatsWorkerQueue`]: a worker's end.

use std::sync::Arc;

use async_trait::async_trait;
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Job;
use forgeplane_core::ports::{JobQueue, JobStream, QueueError};

use crate::error::{ConnectError, Trouble};
use crate::link::Link;
use crate::options::NatsOptions;
use crate::pull::PullStream;

/// A worker's end of the queue: it pulls from the worker's consumer and answers.
///
/// Its user on the broker needs the [permissions](NatsOptions::worker_permissions) of the worker and no others.
/// While the consumer does not exist, because the coordinator has not made it yet or the broker lost it, the
/// worker waits and asks again.
#[derive(Debug, Clone)]
pub struct NatsWorkerQueue {
    link: Link,
    options: Arc<NatsOptions>,
    worker: WorkerId,
}

impl NatsWorkerQueue {
    /// Connects as a worker.
    ///
    /// # Errors
    /// When an option cannot be used, or the broker cannot be reached or refuses.
    pub async fn connect(options: NatsOptions, worker: WorkerId) -> Result<Self, ConnectError> {
        options.check()?;
        let link = Link::connect(&options, &options.worker_inbox(worker)).await?;
        Ok(Self { link, options: Arc::new(options), worker })
    }
}

#[async_trait]
impl JobQueue for NatsWorkerQueue {
    /// Always an error: workers do not publish.
    async fn publish(&self, _: &Job) -> Result<(), QueueError> {
        Err(Trouble::WorkersDoNotPublish.into())
    }

    async fn subscribe(&self, worker: WorkerId) -> Result<Box<dyn JobStream>, QueueError> {
        if worker != self.worker {
            return Err(Trouble::AnotherWorker(self.worker).into());
        }
        Ok(Box::new(PullStream::new(self.link.clone(), &self.options, worker)))
    }
}
