//! What a worker pulls: nothing is lost or stuck, and what is no job is removed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod broker;
#[path = "broker/proxy.rs"]
mod proxy;

use std::time::Duration;

use async_nats::jetstream::message::PublishMessage;
use broker::{
    ACK_WAIT, administrator, coordinator, make_job, nothing_comes, options, receive, take, worker_jobs,
};
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Job;
use forgeplane_core::ports::JobQueue as _;
use forgeplane_queue_nats::{NatsOptions, NatsQueue};
use forgeplane_testkit::fixtures::Fixtures;
use forgeplane_testkit::nats_server::NatsServer;
use forgeplane_testkit::run::story;
use proxy::Proxy;
use tokio::time::{Instant, timeout};

#[test]
fn b8_a_request_that_was_lost_is_made_again_within_15_seconds() {
    story(async {
        let server = NatsServer::start();
        let queue = coordinator(&server).await;
        let (worker, job) = make_job(&Fixtures::new());
        queue.ensure_worker(worker).await.unwrap();
        let proxy = Proxy::to(server.port()).await;
        let behind = NatsOptions { servers: vec![proxy.url.clone()], ..options(&server) };
        let mut jobs = worker_jobs(behind, worker).await;

        proxy.lose_next_request();
        let asked = Instant::now();
        assert!(timeout(Duration::from_secs(1), jobs.next()).await.is_err());
        queue.publish(&job).await.unwrap();
        take(&mut jobs, &job).await;

        assert_eq!(proxy.lost(), 1);
        let waited = asked.elapsed();
        assert!((Duration::from_secs(9)..Duration::from_secs(15)).contains(&waited), "{waited:?}");
    });
}

#[test]
fn b8_a_broker_that_stood_still_delivers_again() {
    story(async {
        let server = NatsServer::start();
        let queue = coordinator(&server).await;
        let (worker, job) = make_job(&Fixtures::new());
        queue.ensure_worker(worker).await.unwrap();
        let mut jobs = worker_jobs(options(&server), worker).await;
        assert!(timeout(Duration::from_millis(500), jobs.next()).await.is_err());

        server.freeze();
        // Long enough for the worker to take its request for lost.
        assert!(timeout(Duration::from_secs(12), jobs.next()).await.is_err());
        server.thaw();

        while queue.publish(&job).await.is_err() {}
        take(&mut jobs, &job).await;
        nothing_comes(&mut jobs).await;
    });
}

#[test]
fn a_delivery_that_nobody_waited_for_comes_again() {
    story(async {
        let server = NatsServer::start();
        let queue = coordinator(&server).await;
        let (worker, job) = make_job(&Fixtures::new());
        queue.ensure_worker(worker).await.unwrap();
        let mut jobs = worker_jobs(options(&server), worker).await;
        // The request is out, and nobody waits while the job arrives and becomes old.
        assert!(timeout(Duration::from_millis(500), jobs.next()).await.is_err());
        queue.publish(&job).await.unwrap();
        tokio::time::sleep(ACK_WAIT * 2).await;

        // What comes then is a delivery of which the broker knows: it is not delivered a second time meanwhile.
        let delivery = receive(&mut jobs, &job).await;
        delivery.in_progress().await.unwrap();
        assert!(timeout(ACK_WAIT * 3 / 4, jobs.next()).await.is_err());
        delivery.ack().await.unwrap();
        nothing_comes(&mut jobs).await;
    });
}

#[test]
fn a_worker_that_goes_away_leaves_no_job_stuck() {
    story(async {
        let server = NatsServer::start();
        // A job that is stuck would come again by itself long after this story.
        let options = NatsOptions { ack_wait: Duration::from_secs(600), ..options(&server) };
        let queue = NatsQueue::connect(options.clone()).await.unwrap();
        let make = Fixtures::new();
        let worker = make.id();
        queue.ensure_worker(worker).await.unwrap();
        // Gone at any moment around the arrival of a job, with the whole connection; with the delivery in hand, or
        // without having seen it.
        for moment_ms in [0, 1, 2, 3, 5, 20] {
            let job = make.job_for(worker);
            let mut jobs = worker_jobs(options.clone(), worker).await;
            let (gone, published) =
                tokio::join!(timeout(Duration::from_millis(moment_ms), jobs.next()), queue.publish(&job));
            published.unwrap();
            drop((gone, jobs));

            let mut jobs = worker_jobs(options.clone(), worker).await;
            take(&mut jobs, &job).await;
        }
    });
}

#[test]
fn a_worker_that_was_killed_keeps_a_job_no_longer_than_the_ack_wait() {
    story(async {
        let server = NatsServer::start();
        let queue = coordinator(&server).await;
        let (worker, job) = make_job(&Fixtures::new());
        queue.publish(&job).await.unwrap();
        let (at_worker, worker_options) = (job.clone(), options(&server));
        // A runtime that ends takes everything under way with it, as a process does; and nothing is said on the way out.
        let killed = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let mut jobs = worker_jobs(worker_options, worker).await;
                let delivery = receive(&mut jobs, &at_worker).await;
                std::mem::forget((delivery, jobs));
            });
            runtime.shutdown_background();
        });
        killed.await.unwrap();

        let mut jobs = worker_jobs(options(&server), worker).await;
        let gone = Instant::now();
        take(&mut jobs, &job).await;
        assert!(gone.elapsed() < ACK_WAIT + Duration::from_secs(1), "{:?}", gone.elapsed());
    });
}

#[test]
fn what_is_no_job_is_removed_and_the_next_job_comes() {
    story(async {
        let server = NatsServer::start();
        let queue = coordinator(&server).await;
        let make = Fixtures::new();
        let (worker, job) = make_job(&make);
        queue.ensure_worker(worker).await.unwrap();
        let broker = administrator(&server.url()).await;
        let subject = format!("{}.{worker}", options(&server).prefix);
        let another = serde_json::to_vec(&make.job_for(make.id())).unwrap();
        let padded = [serde_json::to_vec(&job).unwrap(), vec![b' '; 2_000]].concat();
        let largest = vec![b'{'; 1_000_000];
        let garbage = [vec![], b"{}".to_vec(), b"\xff\xfe".to_vec(), another, padded, largest];
        for payload in garbage {
            broker.publish(subject.clone(), payload.into()).await.unwrap().await.unwrap();
        }
        queue.publish(&job).await.unwrap();

        let mut jobs = worker_jobs(options(&server), worker).await;
        take(&mut jobs, &job).await;
        nothing_comes(&mut jobs).await;
        let stream = broker.get_stream(options(&server).stream).await.unwrap();
        assert_eq!(stream.cached_info().state.messages, 0, "what was removed is not kept");
    });
}

#[test]
fn duplicates_of_a_publication_are_swallowed_and_a_new_publication_is_not() {
    story(async {
        let server = NatsServer::start();
        let queue = coordinator(&server).await;
        let (worker, job) = make_job(&Fixtures::new());
        for _ in 0..5 {
            queue.publish(&job).await.unwrap();
        }
        let mut jobs = worker_jobs(options(&server), worker).await;
        take(&mut jobs, &job).await;
        nothing_comes(&mut jobs).await;
        queue.publish(&job).await.unwrap();
        nothing_comes(&mut jobs).await;

        let again = Job { publication: 2, ..job };
        queue.publish(&again).await.unwrap();
        take(&mut jobs, &again).await;
    });
}

#[test]
fn the_broker_is_told_the_message_id_of_the_publication() {
    story(async {
        let server = NatsServer::start();
        let queue = coordinator(&server).await;
        let (worker, job) = make_job(&Fixtures::new());
        queue.publish(&job).await.unwrap();
        // Another message with this id is a duplicate.
        let broker = administrator(&server.url()).await;
        let duplicate = PublishMessage::build().message_id(job.message_id()).payload("x".into());
        let subject = format!("{}.{worker}", options(&server).prefix);
        let ack = broker.send_publish(subject, duplicate).await.unwrap().await.unwrap();
        assert!(ack.duplicate);
    });
}

#[test]
fn a_thousand_publications_at_once_are_on_their_way_together_and_all_arrive() {
    story(async {
        let server = NatsServer::start();
        // One after the other they would take 40 seconds.
        let far_away = Proxy::with_latency(server.port(), Duration::from_millis(20)).await;
        let servers = vec![far_away.url.clone()];
        let queue = NatsQueue::connect(NatsOptions { servers, ..options(&server) }).await.unwrap();
        let make = Fixtures::new();
        let workers: Vec<WorkerId> = (0..10).map(|_| make.id()).collect();
        let jobs: Vec<Job> = (0..1_000).map(|n| make.job_for(workers[n % workers.len()])).collect();

        let began = Instant::now();
        futures_util::future::try_join_all(jobs.iter().map(|job| queue.publish(job))).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());

        let mut arrived = vec![];
        for worker in workers {
            let mut stream = worker_jobs(options(&server), worker).await;
            for _ in 0..100 {
                let delivery = stream.next().await.unwrap();
                arrived.push(delivery.job().clone());
                delivery.ack().await.unwrap();
            }
        }
        arrived.sort_by_key(|job| job.fence);
        assert_eq!(arrived, jobs);
    });
}
