//! One delivery, and its answer.

use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::{Client, Message, Subject, Subscriber};
use async_trait::async_trait;
use forgeplane_core::model::Job;
use forgeplane_core::ports::{Delivery, QueueError};
use futures_util::{FutureExt as _, StreamExt as _};

use crate::link::{ANSWER, Link};

/// A delayed redelivery beyond this is as good as one after it, and the broker counts in 64-bit nanoseconds.
const LONGEST_DELAY: Duration = Duration::from_secs(366 * 24 * 3600);

/// A job that the broker waits to hear about.
pub(crate) struct NatsDelivery {
    link: Link,
    /// Where to answer.
    reply: Subject,
    job: Job,
    answered: bool,
}

impl NatsDelivery {
    pub(crate) const fn new(link: Link, reply: Subject, job: Job) -> Self {
        Self { link, reply, job, answered: false }
    }

    async fn answer(mut self: Box<Self>, kind: AckKind) -> Result<(), QueueError> {
        // From here on nothing is given back: an answer that fails may have arrived all the same.
        self.answered = true;
        Ok(self.link.answer(&self.reply, kind).await?)
    }
}

#[async_trait]
impl Delivery for NatsDelivery {
    fn job(&self) -> &Job {
        &self.job
    }

    async fn ack(self: Box<Self>) -> Result<(), QueueError> {
        self.answer(AckKind::Ack).await
    }

    async fn nak(self: Box<Self>, delay: Duration) -> Result<(), QueueError> {
        let delay = Some(delay.min(LONGEST_DELAY)).filter(|it| !it.is_zero());
        self.answer(AckKind::Nak(delay)).await
    }

    async fn in_progress(&self) -> Result<(), QueueError> {
        Ok(self.link.answer(&self.reply, AckKind::Progress).await?)
    }
}

impl Drop for NatsDelivery {
    fn drop(&mut self) {
        if !self.answered {
            give_back(&self.link.client, self.reply.clone());
        }
    }
}

/// Asks for redelivery at once, without waiting. If this fails, the redelivery comes after the ack wait.
fn give_back(client: &Client, reply: Subject) {
    let sending = tokio::task::unconstrained(client.publish(reply, AckKind::Nak(None).into()));
    if !matches!(sending.now_or_never(), Some(Ok(()))) {
        tracing::debug!("a delivery could not be given back; it comes again after the ack wait");
        return;
    }
    // A client whose last handle is dropped forgets what it has not written yet.
    let client = client.clone();
    in_the_background(async move {
        let _ = client.flush().await;
    });
}

/// Ends a request for a job, and gives back what the broker has sent for it: what has arrived at once, and what is still
/// on its way in the background.
pub(crate) fn drain(client: Client, mut subscription: Subscriber) {
    while let Some(Some(message)) = tokio::task::unconstrained(subscription.next()).now_or_never() {
        take_back(&client, message);
    }
    in_the_background(async move {
        if subscription.drain().await.is_err() {
            return;
        }
        while let Some(message) = subscription.next().await {
            take_back(&client, message);
        }
    });
}

fn take_back(client: &Client, message: Message) {
    // Heartbeats and ends of requests have a status.
    if let (None, Some(reply)) = (message.status, message.reply) {
        give_back(client, reply);
    }
}

/// Does what can be done on the way out: for as long as the runtime lives, and not for long.
fn in_the_background(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(tokio::time::timeout(ANSWER, work));
    }
}
