//! [`MemoryQueue`]: the queue of a coordinator and its worker in one process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::lock;
use crate::id::WorkerId;
use crate::model::Job;
use crate::ports::{Delivery, JobQueue, JobStream, QueueError};

/// Carries jobs between tasks of one process, without polling.
///
/// A job that was delivered stays until it is acknowledged. It is ready again when its [`Delivery`] is
/// dropped without an answer, when the delay of a `nak` is over, and when the worker subscribes again: that
/// means the former subscriber has lost track. Jobs end with the process; the coordinator publishes those
/// of open attempts again when it starts.
#[derive(Clone, Default)]
pub struct MemoryQueue {
    lines: Arc<Mutex<BTreeMap<WorkerId, Arc<Line>>>>,
}

impl MemoryQueue {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn line(&self, worker: WorkerId) -> Arc<Line> {
        Arc::clone(lock(&self.lines).entry(worker).or_default())
    }
}

/// The jobs of one worker.
#[derive(Default)]
struct Line {
    jobs: Mutex<Jobs>,
    /// Signalled whenever a job becomes ready or delayed.
    changed: Notify,
}

/// Every job that is not acknowledged, by the order of publication, and where it is: ready, delayed, or
/// (in neither list) with a subscriber.
#[derive(Default)]
struct Jobs {
    last: u64,
    pending: BTreeMap<u64, Pending>,
    ready: VecDeque<u64>,
    delayed: BTreeSet<(Instant, u64)>,
}

struct Pending {
    job: Job,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Ready,
    Delayed(Instant),
    /// Delivered; the number says for the how-manieth time, so that only the last delivery can give it back.
    Delivered(u64),
}

impl Jobs {
    fn publish(&mut self, job: Job) {
        self.last += 1;
        self.pending.insert(self.last, Pending { job, place: Place::Ready });
        self.ready.push_back(self.last);
    }

    /// The next ready job, or when the first delayed one is ready.
    fn deliver(&mut self, now: Instant) -> Result<(u64, u64, Job), Option<Instant>> {
        while let Some(&(at, number)) = self.delayed.first()
            && at <= now
        {
            self.delayed.pop_first();
            self.make_ready(number);
        }
        while let Some(number) = self.ready.pop_front() {
            // A late acknowledgement leaves its number here; there is nothing to deliver any more.
            if let Some(pending) = self.pending.get_mut(&number) {
                self.last += 1;
                pending.place = Place::Delivered(self.last);
                return Ok((number, self.last, pending.job.clone()));
            }
        }
        Err(self.delayed.first().map(|(at, _)| *at))
    }

    fn make_ready(&mut self, number: u64) {
        if let Some(pending) = self.pending.get_mut(&number) {
            pending.place = Place::Ready;
            self.ready.push_back(number);
        }
    }

    fn acknowledge(&mut self, number: u64) {
        if let Some(Pending { place: Place::Delayed(at), .. }) = self.pending.remove(&number) {
            self.delayed.remove(&(at, number));
        }
    }

    fn is_with(&self, number: u64, delivery: u64) -> bool {
        self.pending.get(&number).is_some_and(|it| it.place == Place::Delivered(delivery))
    }

    /// Takes a job back from a delivery, unless it has been given to another one since.
    fn take_back(&mut self, number: u64, delivery: u64, until: Option<Instant>) {
        if !self.is_with(number, delivery) {
            return;
        }
        match (until, self.pending.get_mut(&number)) {
            (Some(at), Some(pending)) => {
                pending.place = Place::Delayed(at);
                self.delayed.insert((at, number));
            }
            _ => self.make_ready(number),
        }
    }

    fn take_all_back(&mut self) {
        let delivered = |it: &Pending| matches!(it.place, Place::Delivered(_));
        let numbers: Vec<u64> =
            self.pending.iter().filter(|(_, it)| delivered(it)).map(|(number, _)| *number).collect();
        for number in numbers {
            self.make_ready(number);
        }
    }
}

#[async_trait]
impl JobQueue for MemoryQueue {
    async fn publish(&self, job: &Job) -> Result<(), QueueError> {
        let line = self.line(job.worker);
        lock(&line.jobs).publish(job.clone());
        line.changed.notify_one();
        Ok(())
    }

    async fn subscribe(&self, worker: WorkerId) -> Result<Box<dyn JobStream>, QueueError> {
        let line = self.line(worker);
        lock(&line.jobs).take_all_back();
        line.changed.notify_one();
        Ok(Box::new(MemoryStream { line }))
    }
}

struct MemoryStream {
    line: Arc<Line>,
}

#[async_trait]
impl JobStream for MemoryStream {
    async fn next(&mut self) -> Result<Box<dyn Delivery>, QueueError> {
        loop {
            // Jobs are looked at before waiting, and a signal given in between is kept by `Notify`.
            let delivered = lock(&self.line.jobs).deliver(Instant::now());
            match delivered {
                Ok((number, delivery, job)) => {
                    return Ok(Box::new(MemoryDelivery {
                        line: Arc::clone(&self.line),
                        number,
                        delivery,
                        job,
                    }));
                }
                Err(None) => self.line.changed.notified().await,
                Err(Some(ready_at)) => tokio::select! {
                    biased;
                    () = self.line.changed.notified() => {}
                    () = tokio::time::sleep_until(ready_at) => {}
                },
            }
        }
    }
}

struct MemoryDelivery {
    line: Arc<Line>,
    number: u64,
    delivery: u64,
    job: Job,
}

#[async_trait]
impl Delivery for MemoryDelivery {
    fn job(&self) -> &Job {
        &self.job
    }

    async fn ack(self: Box<Self>) -> Result<(), QueueError> {
        lock(&self.line.jobs).acknowledge(self.number);
        Ok(())
    }

    async fn nak(self: Box<Self>, delay: Duration) -> Result<(), QueueError> {
        // A delay beyond the end of the clock is as good as a year.
        const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
        let ready_at = Instant::now() + delay.min(LONGEST);
        lock(&self.line.jobs).take_back(self.number, self.delivery, Some(ready_at));
        self.line.changed.notify_one();
        Ok(())
    }

    async fn in_progress(&self) -> Result<(), QueueError> {
        // A delivery that is held is never delivered again by time alone.
        Ok(())
    }
}

impl Drop for MemoryDelivery {
    /// Without an answer the job is ready again. After one this does nothing: it is gone or elsewhere.
    fn drop(&mut self) {
        let mut jobs = lock(&self.line.jobs);
        if jobs.is_with(self.number, self.delivery) {
            jobs.take_back(self.number, self.delivery, None);
            self.line.changed.notify_one();
        }
    }
}
