//! A broker that loses, repeats, delays and reorders messages, and forgets everything now and then.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Job;
use forgeplane_core::ports::{Delivery, JobQueue, JobStream, QueueError};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::life::Life;
use super::lock;
use super::world::World;

/// How long a delivery may go without an answer before it is made again.
const ACK_WAIT: Duration = Duration::from_secs(20);

/// The broker.
pub(super) struct Broker {
    world: Arc<World>,
    messages: Mutex<Messages>,
    changed: Notify,
}

#[derive(Default)]
struct Messages {
    next: u64,
    down_until: Option<Instant>,
    by_number: BTreeMap<u64, Message>,
}

struct Message {
    job: Job,
    /// When it may be delivered.
    at: Instant,
}

impl Broker {
    pub(super) fn new(world: Arc<World>) -> Self {
        Self { world, messages: Mutex::default(), changed: Notify::new() }
    }

    fn messages(&self) -> MutexGuard<'_, Messages> {
        lock(&self.messages)
    }

    /// Every message is gone.
    pub(super) fn wipe(&self) {
        self.messages().by_number.clear();
    }

    pub(super) fn take_down(&self, how_long: Duration) {
        self.messages().down_until = Some(Instant::now() + how_long);
    }

    pub(super) fn heal(&self) {
        self.messages().down_until = None;
    }

    fn reach(&self) -> Result<(), QueueError> {
        if self.messages().down_until.is_some_and(|until| Instant::now() < until) || self.world.fate.fails(10)
        {
            self.world.count(|c| c.losses += 1);
            return Err(QueueError("the simulated broker does not answer".into()));
        }
        Ok(())
    }

    fn keep(&self, job: &Job) {
        let mut messages = self.messages();
        messages.next += 1;
        let number = messages.next;
        let at = Instant::now() + self.world.fate.latency();
        messages.by_number.insert(number, Message { job: job.clone(), at });
        drop(messages);
        self.changed.notify_waiters();
    }

    /// The next message for a worker, or when to look again.
    fn take(&self, worker: WorkerId) -> Result<(u64, Job), Option<Instant>> {
        let mut messages = self.messages();
        let now = Instant::now();
        let mine = messages.by_number.iter_mut().filter(|(_, m)| m.job.worker == worker);
        let Some((number, message)) = mine.min_by_key(|(_, m)| m.at) else { return Err(None) };
        if message.at > now {
            return Err(Some(message.at));
        }
        message.at = now + ACK_WAIT;
        Ok((*number, message.job.clone()))
    }
}

/// A connection to the broker, of a coordinator or a worker.
#[derive(Clone)]
pub(super) struct BrokerEnd {
    pub(super) broker: Arc<Broker>,
    pub(super) life: Life,
}

#[async_trait]
impl JobQueue for BrokerEnd {
    async fn publish(&self, job: &Job) -> Result<(), QueueError> {
        self.life.pass().await;
        self.broker.reach()?;
        let fate = &self.broker.world.fate;
        if fate.fails(20) {
            self.broker.world.count(|c| c.losses += 1);
            return Ok(());
        }
        self.broker.keep(job);
        if fate.fails(50) {
            self.broker.world.count(|c| c.duplicates += 1);
            self.broker.keep(job);
        }
        // Taken, and the confirmation lost.
        self.broker.reach()
    }

    async fn subscribe(&self, worker: WorkerId) -> Result<Box<dyn JobStream>, QueueError> {
        self.life.pass().await;
        self.broker.reach()?;
        Ok(Box::new(Stream { end: self.clone(), worker }))
    }
}

struct Stream {
    end: BrokerEnd,
    worker: WorkerId,
}

#[async_trait]
impl JobStream for Stream {
    async fn next(&mut self) -> Result<Box<dyn Delivery>, QueueError> {
        loop {
            self.end.life.alive().await;
            let changed = self.end.broker.changed.notified();
            match self.end.broker.take(self.worker) {
                Ok((number, job)) => {
                    self.end.life.pass().await;
                    self.end.broker.reach()?;
                    return Ok(Box::new(Taken { end: self.end.clone(), number, job }));
                }
                Err(Some(at)) => {
                    let _ = tokio::time::timeout_at(at, changed).await;
                }
                Err(None) => changed.await,
            }
        }
    }
}

struct Taken {
    end: BrokerEnd,
    number: u64,
    job: Job,
}

impl Taken {
    fn again_at(&self, at: Instant) {
        if let Some(message) = self.end.broker.messages().by_number.get_mut(&self.number) {
            message.at = at;
        }
        self.end.broker.changed.notify_waiters();
    }
}

#[async_trait]
impl Delivery for Taken {
    fn job(&self) -> &Job {
        &self.job
    }

    async fn ack(self: Box<Self>) -> Result<(), QueueError> {
        self.end.life.pass().await;
        self.end.broker.reach()?;
        if !self.end.broker.world.fate.fails(30) {
            self.end.broker.messages().by_number.remove(&self.number);
        }
        Ok(())
    }

    async fn nak(self: Box<Self>, delay: Duration) -> Result<(), QueueError> {
        self.end.life.pass().await;
        self.end.broker.reach()?;
        self.again_at(Instant::now() + delay);
        Ok(())
    }

    async fn in_progress(&self) -> Result<(), QueueError> {
        self.end.life.pass().await;
        self.end.broker.reach()?;
        self.again_at(Instant::now() + ACK_WAIT);
        Ok(())
    }
}
