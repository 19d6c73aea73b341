//! What breaks between coordinator, broker and worker, and how the queue goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod broker;

use std::collections::BTreeSet;
use std::time::Duration;

use broker::{administrator, coordinator, make_job, nothing_comes, options, receive, take, worker_jobs};
use forgeplane_core::model::{Fence, Job};
use forgeplane_core::ports::JobQueue as _;
use forgeplane_queue_nats::{NatsOptions, NatsQueue, NatsWorkerQueue};
use forgeplane_testkit::fixtures::Fixtures;
use forgeplane_testkit::nats_server::NatsServer;
use forgeplane_testkit::run::story;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Publishes until the broker takes it, as the relay of the outbox does.
async fn publish_until_taken(queue: &NatsQueue, job: &Job) {
    // Each attempt waits for the connection itself.
    while queue.publish(job).await.is_err() {}
}

#[test]
fn b1_jobs_go_on_after_the_broker_was_killed() {
    story(async {
        let mut server = NatsServer::start();
        let queue = coordinator(&server).await;
        let make = Fixtures::new();
        let (worker, first) = make_job(&make);
        let second = make.job_for(worker);
        queue.publish(&first).await.unwrap();
        let mut jobs = worker_jobs(options(&server), worker).await;
        let in_work = receive(&mut jobs, &first).await;

        server.kill();
        server.restart();

        // What was in work is acknowledged to the new process, what was not is published to it and pulled from it.
        publish_until_taken(&queue, &second).await;
        in_work.ack().await.unwrap();
        take(&mut jobs, &second).await;
        nothing_comes(&mut jobs).await;
    });
}

#[test]
fn b1_a_broker_that_is_down_is_an_error_in_bounded_time() {
    story(async {
        let mut server = NatsServer::start();
        let queue = coordinator(&server).await;
        let (worker, job) = make_job(&Fixtures::new());
        queue.publish(&job).await.unwrap();

        server.kill();

        let asked = Instant::now();
        assert!(queue.publish(&Job { publication: 2, ..job }).await.is_err());
        assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
        let errors = [
            NatsQueue::connect(options(&server)).await.unwrap_err(),
            NatsWorkerQueue::connect(options(&server), worker).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!((error.code(), error.is_retryable()), ("nats_unreachable", true), "{error}");
        }
    });
}

#[test]
fn b2_an_old_copy_of_the_broker_delivers_again_and_nothing_is_stuck() {
    story(async {
        let mut server = NatsServer::start();
        let queue = coordinator(&server).await;
        let make = Fixtures::new();
        let (worker, done) = make_job(&make);
        queue.publish(&done).await.unwrap();
        server.stop();
        let copy = server.snapshot();
        server.restart();
        let mut jobs = worker_jobs(options(&server), worker).await;
        take(&mut jobs, &done).await;
        let lost = make.job_for(worker);
        publish_until_taken(&queue, &lost).await;

        server.stop();
        server.restore(&copy);
        server.restart();

        take(&mut jobs, &done).await;
        // The reconciler publishes what the broker lost; that is a new publication.
        let republished = Job { publication: 2, ..lost };
        publish_until_taken(&queue, &republished).await;
        take(&mut jobs, &republished).await;
        nothing_comes(&mut jobs).await;
    });
}

#[test]
fn b3_a_wiped_broker_gets_stream_and_consumer_back_with_the_next_publication() {
    story(async {
        let mut server = NatsServer::start();
        let queue = coordinator(&server).await;
        let (worker, job) = make_job(&Fixtures::new());
        queue.publish(&job).await.unwrap();
        let mut jobs = worker_jobs(options(&server), worker).await;

        server.kill();
        server.wipe();
        server.restart();

        // The worker asks a broker that has neither stream nor consumer.
        assert!(timeout(Duration::from_secs(2), jobs.next()).await.is_err());
        let republished = Job { publication: 2, ..job };
        publish_until_taken(&queue, &republished).await;
        take(&mut jobs, &republished).await;
    });
}

#[test]
fn b3_a_stream_that_was_removed_is_made_again_by_many_publications_at_once() {
    story(async {
        let server = NatsServer::start();
        let queue = coordinator(&server).await;
        let make = Fixtures::new();
        let (worker, first) = make_job(&make);
        queue.publish(&first).await.unwrap();
        administrator(&server.url()).await.delete_stream(options(&server).stream).await.unwrap();

        let lost: Vec<Job> = (0..50).map(|_| make.job_for(worker)).collect();
        // The server may still be removing the files of the old stream, and then does not make a new one yet.
        join_all(lost.iter().map(|job| publish_until_taken(&queue, job))).await;

        let mut jobs = worker_jobs(options(&server), worker).await;
        let mut fences = vec![];
        for _ in &lost {
            let delivery = jobs.next().await.unwrap();
            fences.push(delivery.job().fence);
            delivery.ack().await.unwrap();
        }
        fences.sort_unstable();
        assert_eq!(fences, lost.iter().map(|job| job.fence).collect::<Vec<_>>());
    });
}

#[test]
fn a_worker_waits_until_its_consumer_exists() {
    story(async {
        let server = NatsServer::start();
        let (worker, job) = make_job(&Fixtures::new());
        // No stream yet, then no consumer yet.
        let mut jobs = worker_jobs(options(&server), worker).await;
        assert!(timeout(Duration::from_secs(1), jobs.next()).await.is_err());
        let queue = coordinator(&server).await;
        assert!(timeout(Duration::from_secs(1), jobs.next()).await.is_err());

        queue.ensure_worker(worker).await.unwrap();
        queue.publish(&job).await.unwrap();
        take(&mut jobs, &job).await;
    });
}

#[test]
fn a_consumer_that_was_removed_is_made_again() {
    story(async {
        let server = NatsServer::start();
        let queue = coordinator(&server).await;
        let (worker, job) = make_job(&Fixtures::new());
        queue.ensure_worker(worker).await.unwrap();
        let mut jobs = worker_jobs(options(&server), worker).await;
        assert!(timeout(Duration::from_millis(500), jobs.next()).await.is_err());
        let stream = administrator(&server.url()).await.get_stream(options(&server).stream).await.unwrap();
        stream.delete_consumer(&worker.to_string()).await.unwrap();

        // The coordinator believes for a while that it exists; a later publication finds out.
        for publication in 1.. {
            queue.publish(&Job { publication, ..job.clone() }).await.unwrap();
            if let Ok(delivery) = timeout(Duration::from_secs(3), jobs.next()).await {
                let delivery = delivery.unwrap();
                // What was published while there was no consumer is not lost either.
                assert_eq!(delivery.job(), &Job { publication: 1, ..job });
                break;
            }
            assert!(publication < 20, "the consumer is not made again");
        }
    });
}

#[test]
fn b8_jobs_keep_coming_while_the_broker_restarts_under_load() {
    story(async {
        let mut server = NatsServer::start();
        let queue = coordinator(&server).await;
        let make = Fixtures::new();
        let worker = make.id();
        let jobs: Vec<Job> = (0..600).map(|_| make.job_for(worker)).collect();
        let expected: BTreeSet<Fence> = jobs.iter().map(|job| job.fence).collect();
        let mut stream = worker_jobs(options(&server), worker).await;
        let (received, mut progress) = watch::channel(BTreeSet::<Fence>::new());
        let all = expected.len();
        let receiving = tokio::spawn(async move {
            while received.borrow().len() < all {
                let delivery = stream.next().await.unwrap();
                received.send_modify(|it| {
                    it.insert(delivery.job().fence);
                });
                // An answer that is lost only means that the job comes again.
                let _ = delivery.ack().await;
            }
        });
        let publishing = tokio::spawn(async move {
            for job in jobs {
                publish_until_taken(&queue, &job).await;
            }
        });

        // Killed three times, each time in the middle of the work.
        for reached in [100, 250, 400] {
            progress.wait_for(|it| it.len() >= reached).await.unwrap();
            server.restart();
        }

        let both = async { tokio::try_join!(publishing, receiving) };
        timeout(Duration::from_secs(15), both).await.expect("jobs keep coming").unwrap();
        assert_eq!(*progress.borrow(), expected);
    });
}

#[test]
fn b9_a_full_stream_refuses_a_job_and_takes_it_later() {
    story(async {
        let server = NatsServer::start();
        let queue = NatsQueue::connect(NatsOptions { max_messages: 1, ..options(&server) }).await.unwrap();
        let make = Fixtures::new();
        let (worker, first) = make_job(&make);
        let second = make.job_for(worker);
        queue.publish(&first).await.unwrap();

        let error = queue.publish(&second).await.unwrap_err();
        assert!(error.to_string().contains("maximum messages exceeded"), "{error}");

        let mut jobs = worker_jobs(options(&server), worker).await;
        take(&mut jobs, &first).await;
        queue.publish(&second).await.unwrap();
        take(&mut jobs, &second).await;
    });
}
