//! The queue suite: what [`JobQueue`] promises, one story per promise.
//!
//! Every story gets the [`QueueTiming`] of its queue, so that a story about a delay knows how long to wait.

use std::time::Duration;

use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Job;
use forgeplane_core::ports::{Delivery, JobQueue, JobStream};
use tokio::time::{Instant, timeout};

use crate::builder::{QueueGuard, QueueTiming, Reopen};
use crate::fixtures::Fixtures;

async fn publish(queue: &dyn JobQueue, job: &Job) {
    queue.publish(job).await.expect("the queue takes the job");
}

async fn subscribe(queue: &dyn JobQueue, worker: WorkerId) -> Box<dyn JobStream> {
    queue.subscribe(worker).await.expect("the queue can be reached")
}

/// The next delivery, which must come within twice the time of a redelivery.
async fn next(stream: &mut Box<dyn JobStream>, timing: &QueueTiming) -> Box<dyn Delivery> {
    let patience = timing.redelivery * 2 + Duration::from_secs(10);
    let delivery = timeout(patience, stream.next()).await;
    delivery.expect("a job is delivered").expect("the queue can be reached")
}

/// Requires that the next delivery is of this job.
async fn receive(stream: &mut Box<dyn JobStream>, job: &Job, timing: &QueueTiming) -> Box<dyn Delivery> {
    let delivery = next(stream, timing).await;
    assert_eq!(delivery.job(), job);
    delivery
}

/// Receives this job and is done with it.
async fn take(stream: &mut Box<dyn JobStream>, job: &Job, timing: &QueueTiming) {
    let delivery = receive(stream, job, timing).await;
    delivery.ack().await.expect("the queue can be reached");
}

/// Requires that nothing comes while a job that was not acknowledged would have come.
async fn nothing_comes(stream: &mut Box<dyn JobStream>, timing: &QueueTiming) {
    if let Ok(delivery) = timeout(timing.redelivery, stream.next()).await {
        panic!("{:?} was delivered", delivery.expect("the queue can be reached").job());
    }
}

/// A published job reaches its worker as it was published.
pub async fn a_published_job_reaches_its_worker(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let job = Job { publication: u32::MAX, ..make.job_for(make.id()) };
    let mut stream = subscribe(queue, job.worker).await;
    publish(queue, &job).await;
    take(&mut stream, &job, timing).await;
}

/// A job that was published before anybody listened waits.
pub async fn a_job_waits_for_its_worker(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let job = make.job_for(make.id());
    publish(queue, &job).await;
    take(&mut subscribe(queue, job.worker).await, &job, timing).await;
}

/// A worker that already waits is woken.
pub async fn a_waiting_worker_is_woken(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let job = make.job_for(make.id());
    let mut stream = subscribe(queue, job.worker).await;
    let publishing = async {
        tokio::task::yield_now().await;
        publish(queue, &job).await;
    };
    let ((), ()) = tokio::join!(take(&mut stream, &job, timing), publishing);
}

/// A worker only receives jobs addressed to it.
pub async fn a_worker_receives_its_own_jobs_only(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let workers: [WorkerId; 3] = [make.id(), make.id(), make.id()];
    let mut streams = vec![];
    for worker in workers {
        streams.push(subscribe(queue, worker).await);
    }
    let jobs = [1, 0, 1].map(|to: usize| make.job_for(workers[to]));
    for job in &jobs {
        publish(queue, job).await;
    }
    take(&mut streams[0], &jobs[1], timing).await;
    take(&mut streams[1], &jobs[0], timing).await;
    take(&mut streams[1], &jobs[2], timing).await;
    for stream in &mut streams {
        nothing_comes(stream, timing).await;
    }
}

/// A worker's jobs come in the order in which they were published.
pub async fn jobs_of_a_worker_come_in_order(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let worker = make.id();
    let jobs: Vec<Job> = (0..20).map(|_| make.job_for(worker)).collect();
    for job in &jobs {
        publish(queue, job).await;
    }
    let mut stream = subscribe(queue, worker).await;
    for job in &jobs {
        take(&mut stream, job, timing).await;
    }
}

/// Each publication of an attempt is a message of its own: a republication is never swallowed.
pub async fn a_republication_is_delivered_again(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let first = make.job_for(make.id());
    let second = Job { publication: 2, ..first.clone() };
    let mut stream = subscribe(queue, first.worker).await;
    publish(queue, &first).await;
    take(&mut stream, &first, timing).await;
    publish(queue, &second).await;
    take(&mut stream, &second, timing).await;
}

/// A job that was acknowledged is not delivered again: not to this subscriber, not to the next.
pub async fn an_acknowledged_job_is_gone(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let job = make.job_for(make.id());
    publish(queue, &job).await;
    let mut stream = subscribe(queue, job.worker).await;
    take(&mut stream, &job, timing).await;
    nothing_comes(&mut stream, timing).await;
    drop(stream);
    nothing_comes(&mut subscribe(queue, job.worker).await, timing).await;
}

/// A job that was refused comes again, not before the delay, and then can be acknowledged.
pub async fn a_refused_job_comes_again_after_the_delay(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let job = make.job_for(make.id());
    let mut stream = subscribe(queue, job.worker).await;
    publish(queue, &job).await;
    for delay in [Duration::from_millis(1_200), Duration::from_millis(300)] {
        let delivery = receive(&mut stream, &job, timing).await;
        let refused = Instant::now();
        delivery.nak(delay).await.expect("the queue can be reached");
        let again = receive(&mut stream, &job, timing).await;
        assert!(refused.elapsed() >= delay, "{:?} is before {delay:?}", refused.elapsed());
        again.nak(Duration::ZERO).await.expect("the queue can be reached");
    }
    take(&mut stream, &job, timing).await;
    nothing_comes(&mut stream, timing).await;
}

/// A job that waits out its delay does not hold up the others.
pub async fn a_delayed_job_does_not_hold_up_others(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let worker = make.id();
    let (delayed, prompt) = (make.job_for(worker), make.job_for(worker));
    let mut stream = subscribe(queue, worker).await;
    publish(queue, &delayed).await;
    let delivery = receive(&mut stream, &delayed, timing).await;
    delivery.nak(Duration::from_secs(2)).await.expect("the queue can be reached");
    publish(queue, &prompt).await;
    take(&mut stream, &prompt, timing).await;
    take(&mut stream, &delayed, timing).await;
}

/// A delivery that is dropped without an answer is delivered again.
pub async fn a_dropped_delivery_comes_again(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let job = make.job_for(make.id());
    let mut stream = subscribe(queue, job.worker).await;
    publish(queue, &job).await;
    for _ in 0..3 {
        drop(receive(&mut stream, &job, timing).await);
    }
    take(&mut stream, &job, timing).await;
    nothing_comes(&mut stream, timing).await;
}

/// What a lost subscriber did not acknowledge comes to the next one, and what it acknowledged does not.
pub async fn a_new_subscriber_gets_what_was_not_acknowledged(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let worker = make.id();
    let (done, held, unseen) = (make.job_for(worker), make.job_for(worker), make.job_for(worker));
    for job in [&done, &held, &unseen] {
        publish(queue, job).await;
    }
    let mut stream = subscribe(queue, worker).await;
    take(&mut stream, &done, timing).await;
    let delivery = receive(&mut stream, &held, timing).await;
    drop(stream);
    drop(delivery);

    let mut stream = subscribe(queue, worker).await;
    let mut received = vec![];
    for _ in 0..2 {
        let delivery = next(&mut stream, timing).await;
        received.push(delivery.job().clone());
        delivery.ack().await.expect("the queue can be reached");
    }
    received.sort_by_key(|it| it.fence);
    assert_eq!(received, [held, unseen]);
    nothing_comes(&mut stream, timing).await;
}

/// Giving up on `next` before it is ready loses no job, however often it happens.
pub async fn dropping_next_loses_nothing(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let worker = make.id();
    let jobs: Vec<Job> = (0..5).map(|_| make.job_for(worker)).collect();
    let mut stream = subscribe(queue, worker).await;
    for job in &jobs {
        // Polled once and dropped while there is nothing, then raced against the arrival.
        assert!(timeout(Duration::ZERO, stream.next()).await.is_err(), "nothing was published yet");
        publish(queue, job).await;
        let mut received = None;
        for patience_ms in [0, 1, 5, 20, 100].into_iter().chain(std::iter::repeat_n(1_000, 60)) {
            if let Ok(delivery) = timeout(Duration::from_millis(patience_ms), stream.next()).await {
                received = Some(delivery.expect("the queue can be reached"));
                break;
            }
        }
        let delivery = received.expect("the job is still delivered");
        assert_eq!(delivery.job(), job);
        delivery.ack().await.expect("the queue can be reached");
    }
    nothing_comes(&mut stream, timing).await;
}

/// A worker that says it still works is not disturbed, for longer than a redelivery takes, and then is done.
pub async fn work_in_progress_is_not_delivered_again(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let job = make.job_for(make.id());
    let mut stream = subscribe(queue, job.worker).await;
    publish(queue, &job).await;
    let delivery = receive(&mut stream, &job, timing).await;
    for _ in 0..8 {
        delivery.in_progress().await.expect("the queue can be reached");
        let disturbed = timeout(timing.redelivery / 4, stream.next()).await;
        assert!(disturbed.is_err(), "the job was delivered again while its worker reported progress");
    }
    delivery.ack().await.expect("the queue can be reached");
    nothing_comes(&mut stream, timing).await;
}

/// Many publishers at once: every job arrives, once each while all are acknowledged.
pub async fn jobs_of_many_publishers_all_arrive(queue: &dyn JobQueue, timing: &QueueTiming) {
    let make = Fixtures::new();
    let worker = make.id();
    let mut jobs: Vec<Job> = (0..50).map(|_| make.job_for(worker)).collect();
    let mut stream = subscribe(queue, worker).await;
    futures_util::future::join_all(jobs.iter().map(|job| publish(queue, job))).await;
    let mut received = vec![];
    for _ in 0..jobs.len() {
        let delivery = next(&mut stream, timing).await;
        received.push(delivery.job().clone());
        delivery.ack().await.expect("the queue can be reached");
    }
    jobs.sort_by_key(|it| it.fence);
    received.sort_by_key(|it| it.fence);
    assert_eq!(received, jobs);
    nothing_comes(&mut stream, timing).await;
}

/// What was published and not acknowledged is there after the queue was opened again.
pub async fn unacknowledged_jobs_survive<G: QueueGuard + Reopen>(guard: &mut G, timing: &QueueTiming) {
    let make = Fixtures::new();
    let worker = make.id();
    let (done, waiting) = (make.job_for(worker), make.job_for(worker));
    publish(guard.queue(), &done).await;
    publish(guard.queue(), &waiting).await;
    let mut stream = subscribe(guard.queue(), worker).await;
    take(&mut stream, &done, timing).await;
    drop(stream);
    guard.reopen().await;
    let mut stream = subscribe(guard.queue(), worker).await;
    take(&mut stream, &waiting, timing).await;
    nothing_comes(&mut stream, timing).await;
}
