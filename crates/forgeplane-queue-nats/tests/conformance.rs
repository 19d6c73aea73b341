//! The queue keeps the contract of a job queue, with the current NATS server and with 2.9.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use async_trait::async_trait;
use forgeplane_core::ports::JobQueue;
use forgeplane_queue_nats::{NatsOptions, NatsQueue};
use forgeplane_testkit::nats_server::{NatsServer, NatsServerOptions, Version};
use forgeplane_testkit::{Builder, QueueBuilder, QueueGuard, QueueTiming, Reopen, Time, queue_conformance};

/// A server and the coordinator's end of its queue.
struct Broker {
    queue: NatsQueue,
    server: NatsServer,
}

impl Broker {
    async fn start(version: Version) -> Self {
        let server = NatsServer::start_with(&NatsServerOptions { version, ..NatsServerOptions::default() });
        Self { queue: connect(&server).await, server }
    }
}

async fn connect(server: &NatsServer) -> NatsQueue {
    let options = NatsOptions {
        servers: vec![server.url()],
        ack_wait: Duration::from_secs(2),
        ..NatsOptions::default()
    };
    NatsQueue::connect(options).await.unwrap()
}

impl QueueGuard for Broker {
    fn queue(&self) -> &dyn JobQueue {
        &self.queue
    }
}

#[async_trait]
impl Reopen for Broker {
    /// Coordinator and broker are both restarted.
    async fn reopen(&mut self) {
        self.server.stop();
        self.server.restart();
        self.queue = connect(&self.server).await;
    }
}

/// Builds queues on servers of the current version, or of the oldest supported one.
struct Queues<const OLDEST: bool>;

#[async_trait]
impl<const OLDEST: bool> Builder for Queues<OLDEST> {
    type Guard = Broker;
    const DURABLE: bool = true;

    async fn build() -> Broker {
        Broker::start(if OLDEST { Version::V2_9 } else { Version::Current }).await
    }
}

impl<const OLDEST: bool> QueueBuilder for Queues<OLDEST> {
    /// Longer than the ack wait.
    const TIMING: QueueTiming = QueueTiming { time: Time::Real, redelivery: Duration::from_secs(3) };
}

mod current {
    use super::*;
    queue_conformance!(Queues<false>, durable);
}

mod v2_9 {
    use super::*;
    queue_conformance!(Queues<true>, durable);
}
