//! Both ends of a queue on a real NATS server.
#![allow(dead_code, reason = "each test program needs some of this")]

use std::time::Duration;

use async_nats::jetstream;
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Job;
use forgeplane_core::ports::{Delivery, JobQueue as _, JobStream};
use forgeplane_queue_nats::{NatsAuth, NatsOptions, NatsQueue, NatsWorkerQueue};
use forgeplane_testkit::fixtures::Fixtures;
use forgeplane_testkit::nats_server::NatsServer;
use tokio::time::timeout;

/// The ack wait of these tests.
pub const ACK_WAIT: Duration = Duration::from_secs(2);

/// Longer than anything takes that is to happen.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn options(server: &NatsServer) -> NatsOptions {
    NatsOptions { servers: vec![server.url()], ack_wait: ACK_WAIT, ..NatsOptions::default() }
}

/// The coordinator's end.
pub async fn coordinator(server: &NatsServer) -> NatsQueue {
    coordinator_with(server, None).await
}

/// The coordinator's end on a server that asks who it is.
pub async fn coordinator_with(server: &NatsServer, auth: Option<NatsAuth>) -> NatsQueue {
    NatsQueue::connect(NatsOptions { auth, ..options(server) }).await.unwrap()
}

/// A worker's jobs, by the worker's end.
pub async fn worker_jobs(options: NatsOptions, worker: WorkerId) -> Box<dyn JobStream> {
    NatsWorkerQueue::connect(options, worker).await.unwrap().subscribe(worker).await.unwrap()
}

/// A new worker and a job for it.
pub fn make_job(make: &Fixtures) -> (WorkerId, Job) {
    let worker = make.id();
    (worker, make.job_for(worker))
}

/// Requires that the next delivery is of this job.
pub async fn receive(jobs: &mut Box<dyn JobStream>, job: &Job) -> Box<dyn Delivery> {
    let delivery = timeout(PATIENCE, jobs.next()).await.expect("a job is delivered").unwrap();
    assert_eq!(delivery.job(), job);
    delivery
}

/// Receives this job and is done with it.
pub async fn take(jobs: &mut Box<dyn JobStream>, job: &Job) {
    receive(jobs, job).await.ack().await.unwrap();
}

/// Requires that nothing is delivered while everything that was not answered would be.
pub async fn nothing_comes(jobs: &mut Box<dyn JobStream>) {
    if let Ok(delivery) = timeout(ACK_WAIT * 2, jobs.next()).await {
        panic!("{:?} was delivered", delivery.unwrap().job());
    }
}

/// The broker as its administrator sees it.
pub async fn administrator(url: &str) -> jetstream::Context {
    jetstream::new(async_nats::connect(url).await.unwrap())
}
