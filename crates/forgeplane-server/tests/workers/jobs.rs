//! Jobs pulled through the coordinator keep the contract of a queue.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use forgeplane_core::evidence::Envelope;
use forgeplane_core::id::WorkerId;
use forgeplane_core::memory::MemoryQueue;
use forgeplane_core::model::Job;
use forgeplane_core::ports::*;
use forgeplane_server::workers::{Sessions, WorkerService};
use forgeplane_testkit::{Builder, QueueBuilder, QueueGuard, QueueTiming, Time, queue_conformance};
use tokio_util::sync::CancellationToken;

use crate::served::{PLAINTEXT, Served, client};

/// A coordinator that lets everybody register as the worker named last, so that a story about a queue can be any worker.
#[derive(Clone)]
struct Anybody {
    worker: Arc<Mutex<WorkerId>>,
}

#[async_trait]
impl Sessions for Anybody {
    async fn authenticate(&self, _: &Session) -> Result<(), ControlError> {
        Ok(())
    }
}

fn unused<T>() -> Result<T, ControlError> {
    Err(ControlError::Unavailable("a queue does not need this".into()))
}

#[async_trait]
impl ControlPlane for Anybody {
    async fn challenge(&self) -> Result<Challenge, ControlError> {
        unused()
    }
    async fn register(&self, _: Registration) -> Result<Registered, ControlError> {
        let worker = *self.worker.lock().unwrap();
        Ok(Registered {
            session: Session { worker, incarnation: 1, token: "fps_x".into(), certificate: None },
            coordinator_key: [1; 32],
            heartbeat: Duration::from_secs(5),
        })
    }
    async fn heartbeat(&self, _: &Session, _: Heartbeat) -> Result<Orders, ControlError> {
        unused()
    }
    async fn orders(&self, _: &Session, _: &Orders) -> Result<Orders, ControlError> {
        unused()
    }
    async fn bundle(&self, _: &Session, _: AttemptRef) -> Result<Bundle, ControlError> {
        unused()
    }
    async fn claim(&self, _: &Session, _: ClaimRequest) -> Result<ClaimGrant, ControlError> {
        unused()
    }
    async fn append_log(&self, _: &Session, _: LogAppend) -> Result<u64, ControlError> {
        unused()
    }
    async fn put_state(&self, _: &Session, _: StateWrite) -> Result<u64, ControlError> {
        unused()
    }
    async fn put_artifact(&self, _: &Session, _: ArtifactUpload) -> Result<(), ControlError> {
        unused()
    }
    async fn rotate_key(&self, _: &Session, _: Envelope) -> Result<(), ControlError> {
        unused()
    }
    async fn conclude(&self, _: &Session, _: Envelope) -> Result<ReceiptAnswer, ControlError> {
        unused()
    }
}

/// The coordinator's end publishes into its own queue, the worker's end pulls over the network.
struct Pulled {
    inside: MemoryQueue,
    anybody: Anybody,
    served: Served,
}

#[async_trait]
impl JobQueue for Pulled {
    async fn publish(&self, job: &Job) -> Result<(), QueueError> {
        self.inside.publish(job).await
    }

    async fn subscribe(&self, worker: WorkerId) -> Result<Box<dyn JobStream>, QueueError> {
        *self.anybody.worker.lock().unwrap() = worker;
        let control = client(&[&self.served]);
        let registration = Registration {
            name: "anybody".parse().unwrap(),
            pool: "default".parse().unwrap(),
            capabilities: [].into(),
            max_jobs: 1,
            unsafe_no_isolation: false,
            public_key: [1; 32],
            enrollment_token: None,
            challenge: Challenge("x".into()),
            proof: [1; 64],
            certificate: None,
        };
        control.register(registration).await.unwrap();
        control.queue().subscribe(worker).await
    }
}

#[async_trait]
impl Builder for Pulled {
    type Guard = Self;
    const DURABLE: bool = false;

    async fn build() -> Self {
        let inside = MemoryQueue::default();
        let nobody = forgeplane_testkit::fixtures::Fixtures::new().id();
        let anybody = Anybody { worker: Arc::new(Mutex::new(nobody)) };
        let service = WorkerService::of(anybody.clone(), anybody.clone(), Arc::new(inside.clone()));
        let served = Served::start("127.0.0.1:0", service, PLAINTEXT, CancellationToken::new()).await;
        Self { inside, anybody, served }
    }
}

impl QueueGuard for Pulled {
    fn queue(&self) -> &dyn JobQueue {
        self
    }
}

impl QueueBuilder for Pulled {
    const TIMING: QueueTiming = QueueTiming { time: Time::Real, redelivery: Duration::from_secs(1) };
}

queue_conformance!(Pulled);
