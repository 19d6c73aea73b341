//! [`GrpcQueue`]: jobs pulled through the coordinator.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Job;
use forgeplane_core::ports::{BoxError, ControlError, Delivery, JobQueue, JobStream, QueueError};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::{CALL, Chosen, GrpcControlPlane, request};
use crate::v1::pull_request::Request as Pull;
use crate::v1::pull_response::Response as Pushed;
use crate::{from_status, v1};

/// How long an answer to a delivery may stay unconfirmed.
const SETTLE: Duration = Duration::from_secs(15);

/// The worker's end of a job queue that is pulled through the coordinator. It uses the session of the control plane's
/// latest registration.
#[derive(Debug, Clone)]
pub struct GrpcQueue {
    control: GrpcControlPlane,
}

fn failed(error: impl Into<BoxError>) -> QueueError {
    QueueError(error.into())
}

impl GrpcQueue {
    pub(super) const fn new(control: GrpcControlPlane) -> Self {
        Self { control }
    }
}

#[async_trait]
impl JobQueue for GrpcQueue {
    /// Only coordinators publish.
    async fn publish(&self, _: &Job) -> Result<(), QueueError> {
        Err(failed("workers do not publish jobs"))
    }

    async fn subscribe(&self, worker: WorkerId) -> Result<Box<dyn JobStream>, QueueError> {
        let session = self.control.session().ok_or_else(|| failed("this worker has not registered yet"))?;
        if session.worker != worker {
            return Err(failed(format!("this worker is {}, not {worker}", session.worker)));
        }
        let (requests, messages) = mpsc::unbounded_channel();
        let Chosen { index, mut client } = self.control.chosen();
        let messages = UnboundedReceiverStream::new(messages);
        let call = client.pull_jobs(request(&session, messages).map_err(failed)?);
        let pushed = self.control.answer(index, CALL, call).await.map_err(failed)?.into_inner();
        let (deliver, deliveries) = mpsc::unbounded_channel();
        let conversation = Arc::new(Conversation { requests, settling: Mutex::new(Some(HashMap::new())) });
        tokio::spawn(listen(self.control.clone(), index, Arc::clone(&conversation), pushed, deliver));
        Ok(Box::new(PullStream { conversation, deliveries, asked: false }))
    }
}

/// What a stream and its deliveries share.
struct Conversation {
    requests: mpsc::UnboundedSender<v1::PullRequest>,
    /// Who waits for the confirmation of which answer; `None` once the stream has ended.
    settling: Mutex<Option<HashMap<u64, oneshot::Sender<()>>>>,
}

impl Conversation {
    fn say(&self, request: Pull) -> Result<(), QueueError> {
        let message = v1::PullRequest { request: Some(request) };
        self.requests.send(message).map_err(|_| failed("the stream of jobs has ended"))
    }

    /// Says an answer and waits until the queue took it.
    async fn settle(&self, delivery: u64, answer: Pull) -> Result<(), QueueError> {
        let (settled, confirmation) = oneshot::channel();
        {
            let mut settling = self.settling.lock().unwrap_or_else(PoisonError::into_inner);
            let settling = settling.as_mut().ok_or_else(|| failed("the stream of jobs has ended"))?;
            settling.insert(delivery, settled);
        }
        self.say(answer)?;
        tokio::time::timeout(SETTLE, confirmation).await.map_err(failed)?.map_err(failed)
    }

    fn confirm(&self, delivery: u64) {
        let mut settling = self.settling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = settling.as_mut().and_then(|it| it.remove(&delivery)) {
            // Who does not wait any more does not need to know.
            let _ = waiting.send(());
        }
    }

    /// Nothing will be confirmed any more.
    fn end(&self) {
        self.settling.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Hands on what the coordinator says, until it says nothing more.
async fn listen(
    control: GrpcControlPlane,
    index: usize,
    conversation: Arc<Conversation>,
    mut pushed: Streaming<v1::PullResponse>,
    deliver: mpsc::UnboundedSender<Result<(u64, Job), QueueError>>,
) {
    let error = loop {
        match pushed.message().await {
            Ok(Some(v1::PullResponse { response: Some(Pushed::Delivery(it)) })) => {
                let delivery = it.delivery;
                let delivered = Job::try_from(it).map(|job| (delivery, job)).map_err(failed);
                if deliver.send(delivered).is_err() {
                    break None;
                }
            }
            Ok(Some(v1::PullResponse { response: Some(Pushed::Settled(delivery)) })) => {
                conversation.confirm(delivery)
            }
            // An answer of a newer coordinator that means nothing here.
            Ok(Some(v1::PullResponse { response: None })) => {}
            Ok(None) => {
                break Some(from_status(Status::unavailable("the coordinator ended the stream of jobs")));
            }
            Err(status) => break Some(from_status(status)),
        }
    };
    conversation.end();
    if let Some(error) = error {
        let error: ControlError = control.failed(index, error);
        let _ = deliver.send(Err(failed(error)));
    }
}

struct PullStream {
    conversation: Arc<Conversation>,
    deliveries: mpsc::UnboundedReceiver<Result<(u64, Job), QueueError>>,
    /// Whether a job was asked for that has not come yet.
    asked: bool,
}

#[async_trait]
impl JobStream for PullStream {
    async fn next(&mut self) -> Result<Box<dyn Delivery>, QueueError> {
        if !self.asked {
            self.conversation.say(Pull::Next(v1::PullNext {}))?;
            self.asked = true;
        }
        let delivered = self.deliveries.recv().await;
        self.asked = false;
        let (delivery, job) = delivered.unwrap_or_else(|| Err(failed("the stream of jobs has ended")))?;
        Ok(Box::new(PullDelivery {
            conversation: Arc::clone(&self.conversation),
            delivery,
            job,
            answered: false,
        }))
    }
}

struct PullDelivery {
    conversation: Arc<Conversation>,
    delivery: u64,
    job: Job,
    answered: bool,
}

#[async_trait]
impl Delivery for PullDelivery {
    fn job(&self) -> &Job {
        &self.job
    }

    async fn ack(mut self: Box<Self>) -> Result<(), QueueError> {
        self.answered = true;
        self.conversation.settle(self.delivery, Pull::Ack(self.delivery)).await
    }

    async fn nak(mut self: Box<Self>, delay: Duration) -> Result<(), QueueError> {
        self.answered = true;
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let nak = v1::PullNak { delivery: self.delivery, delay_ms };
        self.conversation.settle(self.delivery, Pull::Nak(nak)).await
    }

    async fn in_progress(&self) -> Result<(), QueueError> {
        self.conversation.say(Pull::InProgress(self.delivery))
    }
}

impl Drop for PullDelivery {
    /// Without an answer the job is ready again at once.
    fn drop(&mut self) {
        if !self.answered {
            let nak = v1::PullNak { delivery: self.delivery, delay_ms: 0 };
            // If the stream has ended, the coordinator has given the job back itself.
            let _ = self.conversation.say(Pull::Nak(nak));
        }
    }
}
