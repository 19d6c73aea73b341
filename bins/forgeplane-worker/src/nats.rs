//! Jobs through NATS: connected when the worker knows who it is.

use async_trait::async_trait;
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Job;
use forgeplane_core::ports::{JobQueue, JobStream, QueueError};
use forgeplane_queue_nats::{NatsOptions, NatsWorkerQueue};
use tokio::sync::Mutex;

/// The worker's end of the queue in NATS. The broker is reached with the first subscription, because what a worker may
/// read there depends on its id, which it learns by registering.
pub struct NatsJobs {
    options: NatsOptions,
    connected: Mutex<Option<(WorkerId, NatsWorkerQueue)>>,
}

impl NatsJobs {
    pub fn new(options: NatsOptions) -> Self {
        Self { options, connected: Mutex::default() }
    }
}

#[async_trait]
impl JobQueue for NatsJobs {
    /// Only coordinators publish.
    async fn publish(&self, _: &Job) -> Result<(), QueueError> {
        Err(QueueError("workers do not publish jobs".into()))
    }

    async fn subscribe(&self, worker: WorkerId) -> Result<Box<dyn JobStream>, QueueError> {
        let mut connected = self.connected.lock().await;
        let queue = match connected.take().filter(|(of, _)| *of == worker) {
            Some((_, queue)) => queue,
            None => NatsWorkerQueue::connect(self.options.clone(), worker)
                .await
                .map_err(|error| QueueError(Box::new(error)))?,
        };
        let stream = queue.subscribe(worker).await;
        *connected = Some((worker, queue));
        stream
    }
}
