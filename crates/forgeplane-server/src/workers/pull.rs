//! Jobs pulled through the coordinator, from whatever queue it has.

use std::collections::HashMap;
use std::time::Duration;

use forgeplane_core::ports::{Delivery, JobStream, QueueError, Session};
use forgeplane_proto::v1::pull_request::Request as Pull;
use forgeplane_proto::v1::pull_response::Response as Pushed;
use forgeplane_proto::{InvalidMessage, delivery_of, into_status, invalid, v1};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::WorkerService;

/// How often the session of an open stream is checked without occasion.
const CHECK: Duration = Duration::from_secs(2);

type Answers = mpsc::Sender<Result<v1::PullResponse, Status>>;

/// One worker's stream of jobs. Whatever it holds when it is dropped is delivered again.
pub(super) struct Relay {
    service: WorkerService,
    session: Session,
    jobs: Box<dyn JobStream>,
    requests: Streaming<v1::PullRequest>,
    answers: Answers,
    held: HashMap<u64, Box<dyn Delivery>>,
    last: u64,
    /// How many jobs were asked for that have not come yet.
    asked: u64,
}

fn unavailable(error: &QueueError) -> Status {
    tracing::warn!(%error, "a worker's jobs cannot be pulled");
    Status::unavailable("the job queue is not available")
}

impl Relay {
    pub(super) fn new(
        service: WorkerService,
        session: Session,
        jobs: Box<dyn JobStream>,
        requests: Streaming<v1::PullRequest>,
        answers: Answers,
    ) -> Self {
        Self { service, session, jobs, requests, answers, held: HashMap::new(), last: 0, asked: 0 }
    }

    /// Relays until one side ends it.
    pub(super) async fn run(mut self) {
        let shutdown = self.service.shutdown.clone();
        let ended = tokio::select! {
            ended = self.relay() => ended,
            () = shutdown.cancelled() => Err(Status::unavailable("the coordinator is shutting down")),
        };
        if let Err(status) = ended {
            // A worker that is gone does not need to know why.
            let _ = self.answers.send(Err(status)).await;
        }
    }

    async fn relay(&mut self) -> Result<(), Status> {
        let mut check = tokio::time::interval(CHECK);
        loop {
            tokio::select! {
                _ = check.tick() => self.authenticate().await?,
                request = self.requests.message() => match request? {
                    Some(request) => self.take(request).await?,
                    None => return Ok(()),
                },
                // Dropping this future loses nothing.
                delivery = self.jobs.next(), if self.asked > 0 => {
                    let delivery = delivery.map_err(|error| unavailable(&error))?;
                    self.deliver(delivery).await?;
                }
            }
        }
    }

    async fn authenticate(&mut self) -> Result<(), Status> {
        self.service.sessions.authenticate(&self.session).await.map_err(|error| into_status(&error))
    }

    async fn deliver(&mut self, delivery: Box<dyn Delivery>) -> Result<(), Status> {
        // A session that died while this stream waited gets no job.
        self.authenticate().await?;
        self.asked -= 1;
        self.last += 1;
        let message = delivery_of(self.last, delivery.job());
        self.held.insert(self.last, delivery);
        self.say(Pushed::Delivery(message)).await
    }

    async fn take(&mut self, request: v1::PullRequest) -> Result<(), Status> {
        self.authenticate().await?;
        match request.request {
            Some(Pull::Next(_)) => self.asked += 1,
            Some(Pull::InProgress(id)) => {
                if let Some(delivery) = self.held.get(&id) {
                    delivery.in_progress().await.map_err(|error| unavailable(&error))?;
                }
            }
            Some(Pull::Ack(id)) => {
                if let Some(delivery) = self.held.remove(&id) {
                    delivery.ack().await.map_err(|error| unavailable(&error))?;
                }
                self.say(Pushed::Settled(id)).await?;
            }
            Some(Pull::Nak(nak)) => {
                if let Some(delivery) = self.held.remove(&nak.delivery) {
                    let delay = Duration::from_millis(nak.delay_ms);
                    delivery.nak(delay).await.map_err(|error| unavailable(&error))?;
                }
                self.say(Pushed::Settled(nak.delivery)).await?;
            }
            None => return Err(invalid(&InvalidMessage { field: "request", rule: "is a known request" })),
        }
        Ok(())
    }

    async fn say(&mut self, response: Pushed) -> Result<(), Status> {
        let message = v1::PullResponse { response: Some(response) };
        self.answers.send(Ok(message)).await.map_err(|_| Status::cancelled("the worker is gone"))
    }
}
