//! [`OutboxQueue`]: the store's outbox as the job queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::signals::{Listener, Signals};
use crate::id::{OutboxId, WorkerId};
use crate::model::{Changeset, Job, OutboxMessage};
use crate::ports::{
    Delivery, Entropy as _, JobQueue, JobStream, QueueError, Store, StoreError, SystemEntropy,
};

/// How often a stream looks without having been woken: only to repair missed wake-ups.
const REPAIR: Duration = Duration::from_secs(2);
/// How many messages a stream reads beyond those it has delivered.
const AHEAD: usize = 16;

/// Delivers jobs from the outbox itself: no broker, and any coordinator on the same store can serve any worker.
///
/// A message stays in the outbox until its worker acknowledges it. Nothing is published anywhere, so a coordinator
/// with this queue runs no dispatcher ([`Builder::outbox_queue`](super::Builder::outbox_queue)).
#[derive(Clone)]
pub struct OutboxQueue {
    store: Arc<dyn Store>,
    signals: Signals,
    /// Of this queue's own publications: the last id's time and place within it.
    last: Arc<Mutex<(i64, u32)>>,
}

impl std::fmt::Debug for OutboxQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboxQueue").finish_non_exhaustive()
    }
}

fn unavailable(error: StoreError) -> QueueError {
    QueueError(Box::new(error))
}

impl OutboxQueue {
    /// The outbox of a store as a queue of its own.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::of_coordinator(store, Signals::default())
    }

    /// The outbox of a coordinator, woken by what it commits.
    pub(super) fn of_coordinator(store: Arc<dyn Store>, signals: Signals) -> Self {
        Self { store, signals, last: Arc::default() }
    }

    /// An id after every other one that this queue made.
    fn next_id(&self) -> OutboxId {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Timestamp::now().as_millisecond();
        *last = if now > last.0 { (now, 0) } else { (last.0, last.1.saturating_add(1)) };
        let mut random = [0; 10];
        SystemEntropy.fill(&mut random[7..]);
        // Behind the bits that say which kind of id it is.
        random[3..7].copy_from_slice(&last.1.to_be_bytes());
        OutboxId::new(Timestamp::from_millisecond(last.0).unwrap_or(Timestamp::MAX), random)
    }
}

async fn commit(store: &dyn Store, changes: Changeset) -> Result<(), QueueError> {
    let results = store.commit(vec![changes]).await.map_err(unavailable)?;
    match results.into_iter().next() {
        Some(Err(conflict)) => Err(QueueError(Box::new(conflict))),
        _ => Ok(()),
    }
}

#[async_trait]
impl JobQueue for OutboxQueue {
    async fn publish(&self, job: &Job) -> Result<(), QueueError> {
        let message = OutboxMessage { id: self.next_id(), job: job.clone() };
        commit(&*self.store, Changeset { outbox: vec![message], ..Changeset::default() }).await?;
        self.signals.wake_jobs();
        Ok(())
    }

    async fn subscribe(&self, worker: WorkerId) -> Result<Box<dyn JobStream>, QueueError> {
        Ok(Box::new(OutboxStream {
            store: Arc::clone(&self.store),
            worker,
            jobs: self.signals.jobs(),
            places: Arc::default(),
        }))
    }
}

/// Where a message is that must not be delivered now.
#[derive(Debug, Clone, Copy)]
enum Place {
    Delivered,
    Delayed(Instant),
}

/// The messages of one stream that are not ready, and a signal that one may have become so.
#[derive(Default)]
struct Places {
    of: Mutex<HashMap<OutboxId, Place>>,
    changed: Notify,
}

impl Places {
    fn set(&self, id: OutboxId, place: Option<Place>) {
        let mut places = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        match place {
            Some(place) => places.insert(id, place),
            None => places.remove(&id),
        };
        drop(places);
        self.changed.notify_one();
    }

    /// The first message that may be delivered now, marked as delivered; else when to look again at the latest.
    fn take(&self, messages: Vec<OutboxMessage>, now: Instant) -> Result<OutboxMessage, Instant> {
        let mut places = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let mut again = now + REPAIR;
        for message in messages {
            match places.get(&message.id) {
                Some(Place::Delivered) => {}
                Some(Place::Delayed(until)) if *until > now => again = again.min(*until),
                _ => {
                    places.insert(message.id, Place::Delivered);
                    return Ok(message);
                }
            }
        }
        Err(again)
    }

    fn len(&self) -> usize {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

struct OutboxStream {
    store: Arc<dyn Store>,
    worker: WorkerId,
    jobs: Listener,
    places: Arc<Places>,
}

#[async_trait]
impl JobStream for OutboxStream {
    async fn next(&mut self) -> Result<Box<dyn Delivery>, QueueError> {
        loop {
            self.jobs.mark_unchanged();
            let limit = self.places.len() + AHEAD;
            let messages = self.store.outbox_of(self.worker, limit).await.map_err(unavailable)?;
            match self.places.take(messages, Instant::now()) {
                Ok(message) => {
                    return Ok(Box::new(OutboxDelivery {
                        store: Arc::clone(&self.store),
                        places: Arc::clone(&self.places),
                        message,
                        answered: false,
                    }));
                }
                Err(again) => tokio::select! {
                    biased;
                    () = self.jobs.changed() => {}
                    () = self.places.changed.notified() => {}
                    () = tokio::time::sleep_until(again) => {}
                },
            }
        }
    }
}

struct OutboxDelivery {
    store: Arc<dyn Store>,
    places: Arc<Places>,
    message: OutboxMessage,
    answered: bool,
}

#[async_trait]
impl Delivery for OutboxDelivery {
    fn job(&self) -> &Job {
        &self.message.job
    }

    async fn ack(mut self: Box<Self>) -> Result<(), QueueError> {
        let published = vec![self.message.id];
        commit(&*self.store, Changeset { published, ..Changeset::default() }).await?;
        self.answered = true;
        self.places.set(self.message.id, None);
        Ok(())
    }

    async fn nak(mut self: Box<Self>, delay: Duration) -> Result<(), QueueError> {
        // A delay beyond the end of the clock is as good as a year.
        const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
        self.answered = true;
        self.places.set(self.message.id, Some(Place::Delayed(Instant::now() + delay.min(LONGEST))));
        Ok(())
    }

    async fn in_progress(&self) -> Result<(), QueueError> {
        // A delivery that is held is never delivered again by time alone.
        Ok(())
    }
}

impl Drop for OutboxDelivery {
    /// Without an answer the job is ready again.
    fn drop(&mut self) {
        if !self.answered {
            self.places.set(self.message.id, None);
        }
    }
}
