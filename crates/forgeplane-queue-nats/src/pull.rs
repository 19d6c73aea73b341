//! The pull: one request for one job, watched until it is answered.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::{Client, Message, StatusCode, Subject, Subscriber};
use async_trait::async_trait;
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Job;
use forgeplane_core::ports::{Delivery, JobStream, QueueError};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, sleep_until};

use crate::delivery::{NatsDelivery, drain};
use crate::error::Trouble;
use crate::link::{Link, LinkState, backoff};
use crate::options::NatsOptions;

/// How long the broker keeps one request for a job.
const EXPIRES: Duration = Duration::from_secs(30);

/// How often the broker says that it still has the request.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// After this long without a word the request is taken for lost.
const SILENCE: Duration = Duration::from_secs(10);

/// A request that ends sooner than this was refused rather than expired.
const SHORT: Duration = Duration::from_secs(1);

/// A job is ids only; whatever is longer is not one.
const MAX_PAYLOAD: usize = 1024;

/// A worker's jobs.
pub(crate) struct PullStream {
    link: Link,
    worker: WorkerId,
    /// Where the broker takes requests for this worker's jobs.
    api: Subject,
    /// The request on its way. It outlives the future of `next`, so that dropping that loses nothing.
    pull: Option<Pull>,
    /// How many requests in a row came to nothing.
    failures: usize,
    /// Not to ask again before this.
    pause_until: Instant,
    /// When somebody last waited for a job.
    waited: Arc<Mutex<Instant>>,
    /// A delivery nobody waited for is given back when it may be older than this.
    keep: Duration,
}

impl PullStream {
    pub(crate) fn new(link: Link, options: &NatsOptions, worker: WorkerId) -> Self {
        let now = Instant::now();
        Self {
            api: format!("$JS.API.CONSUMER.MSG.NEXT.{}.{worker}", options.stream).into(),
            link,
            worker,
            pull: None,
            failures: 0,
            pause_until: now,
            waited: Arc::new(Mutex::new(now)),
            keep: options.ack_wait / 4,
        }
    }

    /// Asks for one job, unless that is under way.
    async fn ask(&mut self) -> Result<&mut Pull, Trouble> {
        if self.pull.is_none() {
            sleep_until(self.pause_until).await;
            let state = self.link.up().await?;
            let client = self.link.client.clone();
            // An inbox for every request: what the broker still sends to an older one is not taken for an answer to
            // this one, and a request whose inbox is gone is dropped by the broker.
            let inbox: Subject = client.new_inbox().into();
            let subscription = client.subscribe(inbox.clone()).await;
            let subscription = subscription.map_err(|_| Trouble::Disconnected)?;
            let now = Instant::now();
            self.pull = Some(Pull {
                client,
                inbox,
                subscription: Some(subscription),
                asked: None,
                heard: now,
                state,
            });
        }
        let Some(pull) = self.pull.as_mut() else { return Err(Trouble::Disconnected) };
        if pull.asked.is_none() {
            let sent = pull.client.publish_with_reply(self.api.clone(), pull.inbox.clone(), request());
            sent.await.map_err(|_| Trouble::Disconnected)?;
            // Nothing can be awaited between the sending and this note of it.
            let now = Instant::now();
            (pull.asked, pull.heard) = (Some(now), now);
        }
        Ok(pull)
    }

    /// Lets go of a request that the broker has ended, and returns how long it lived.
    fn end(&mut self) -> Duration {
        let asked = self.pull.take().and_then(|mut it| it.asked.take());
        asked.map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Asks again after a while, because the request that lived this long came to nothing.
    fn pause(&mut self, what: &str, lived: Duration) {
        self.failures = if lived < SHORT { self.failures + 1 } else { 1 };
        let pause = backoff(self.failures + 1, Duration::from_millis(200), Duration::from_secs(5));
        self.pause_until = Instant::now() + pause;
        tracing::debug!(worker = %self.worker, what, failures = self.failures, "asking for a job again");
    }

    /// Nothing may have been read from the connection while nobody waited: a delivery that lay there for long has
    /// perhaps been given up by the broker. It is given back rather than worked on twice, and that is waited for: the
    /// broker might take up a new request first, redeliver for it, and then be told to deliver again.
    async fn give_back_what_lay_around(&mut self) {
        let waited = *self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        if waited.elapsed() <= self.keep {
            return;
        }
        let Some(mut pull) = self.pull.take() else { return };
        while let Some(Some(message)) = tokio::task::unconstrained(pull.next()).now_or_never() {
            if let (None, Some(reply)) = (message.status, message.reply)
                && let Err(error) = self.link.answer(&reply, AckKind::Nak(None)).await
            {
                tracing::debug!(%error, "a delivery could not be given back; it comes again after the ack wait");
            }
        }
    }

    /// What a message of the broker means: a delivery, or that one must go on waiting.
    async fn receive(&mut self, message: Message) -> Option<NatsDelivery> {
        let Some(status) = message.status else { return self.receive_job(message).await };
        if status == StatusCode::IDLE_HEARTBEAT {
            self.failures = 0;
            return None;
        }
        let first_failure = self.failures == 0;
        let lived = self.end();
        match status {
            // It expired, which is how most requests end.
            StatusCode::TIMEOUT | StatusCode::NOT_FOUND if lived >= SHORT => self.failures = 0,
            StatusCode::NO_RESPONDERS => {
                if first_failure {
                    tracing::warn!(
                        worker = %self.worker,
                        "the worker's consumer does not exist; the coordinator makes it with the next job"
                    );
                }
                self.pause("there is no consumer", lived);
            }
            _ => {
                let description = message.description.as_deref().unwrap_or_default();
                tracing::info!(worker = %self.worker, %status, description, "the broker ended the wait for a job");
                self.pause("the broker ended the wait", lived);
            }
        }
        None
    }

    async fn receive_job(&mut self, message: Message) -> Option<NatsDelivery> {
        let Some(reply) = message.reply else {
            tracing::warn!(worker = %self.worker, "a message that is no delivery was ignored");
            return None;
        };
        // A request brings one job, and then it is over.
        self.end();
        self.failures = 0;
        match read(&message.payload, self.worker) {
            Ok(job) => Some(NatsDelivery::new(self.link.clone(), reply, job)),
            Err(why) => {
                let bytes = message.payload.len();
                tracing::error!(worker = %self.worker, bytes, why, "a message that is no job is removed from the queue");
                if self.link.client.publish(reply, AckKind::Term.into()).await.is_err() {
                    tracing::warn!("it could not be removed and will come again");
                }
                None
            }
        }
    }

    async fn next_delivery(&mut self) -> Result<NatsDelivery, Trouble> {
        self.give_back_what_lay_around().await;
        let _waiting = Waiting(Arc::clone(&self.waited));
        let mut link = self.link.clone();
        loop {
            let pull = self.ask().await?;
            let silent = pull.heard + SILENCE;
            let state = pull.state;
            let message = tokio::select! {
                biased;
                message = pull.next() => message,
                () = link.lost_since(state) => {
                    self.pull = None;
                    continue;
                }
                () = sleep_until(silent) => {
                    tracing::warn!(worker = %self.worker, "the broker is silent; asking for a job again");
                    self.pull = None;
                    continue;
                }
            };
            let Some(message) = message else {
                let lived = self.end();
                self.pause("the subscription ended", lived);
                continue;
            };
            pull.heard = Instant::now();
            if let Some(delivery) = self.receive(message).await {
                return Ok(delivery);
            }
        }
    }
}

#[async_trait]
impl JobStream for PullStream {
    async fn next(&mut self) -> Result<Box<dyn Delivery>, QueueError> {
        Ok(Box::new(self.next_delivery().await?))
    }
}

/// A request for one job.
struct Pull {
    client: Client,
    inbox: Subject,
    /// Present until this is dropped.
    subscription: Option<Subscriber>,
    /// When it was sent; absent before, and when the broker has ended it.
    asked: Option<Instant>,
    /// When the broker last said anything about it.
    heard: Instant,
    /// The state of the connection it was sent on.
    state: LinkState,
}

impl Pull {
    async fn next(&mut self) -> Option<Message> {
        self.subscription.as_mut()?.next().await
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        if let (Some(_), Some(subscription)) = (self.asked, self.subscription.take()) {
            drain(self.client.clone(), subscription);
        }
    }
}

/// Notes when somebody stops waiting, also by dropping the future.
struct Waiting(Arc<Mutex<Instant>>);

impl Drop for Waiting {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

fn request() -> bytes::Bytes {
    let (expires, heartbeat) = (EXPIRES.as_nanos(), HEARTBEAT.as_nanos());
    format!(r#"{{"batch":1,"expires":{expires},"idle_heartbeat":{heartbeat}}}"#).into()
}

/// The job in a message, which is not trusted.
fn read(payload: &[u8], worker: WorkerId) -> Result<Job, &'static str> {
    if payload.len() > MAX_PAYLOAD {
        return Err("it is too long");
    }
    let job: Job = serde_json::from_slice(payload).map_err(|_| "it cannot be read")?;
    if job.worker == worker { Ok(job) } else { Err("it is for another worker") }
}
