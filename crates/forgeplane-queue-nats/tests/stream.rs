//! The stream and the consumers on the broker are what the options say.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod broker;

use std::time::Duration;

use async_nats::jetstream::consumer::AckPolicy;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use broker::{administrator, coordinator, make_job, options, take, worker_jobs};
use forgeplane_core::ports::JobQueue as _;
use forgeplane_queue_nats::{ConnectError, NatsOptions, NatsQueue};
use forgeplane_testkit::fixtures::Fixtures;
use forgeplane_testkit::nats_server::{NatsServer, NatsServerOptions};
use forgeplane_testkit::run::story;

#[test]
fn the_stream_is_durable_and_refuses_rather_than_drops() {
    story(async {
        let server = NatsServer::start();
        coordinator(&server).await;
        let broker = administrator(&server.url()).await;
        let stream = broker.get_stream(options(&server).stream).await.unwrap();
        let config = &stream.cached_info().config;
        assert_eq!(config.retention, RetentionPolicy::WorkQueue);
        assert_eq!(config.storage, StorageType::File);
        assert_eq!(config.discard, DiscardPolicy::New);
        assert_eq!(config.subjects, ["fp.jobs.*"]);
        assert_eq!((config.max_messages, config.max_bytes), (1_000_000, 1 << 30));
        assert_eq!(config.duplicate_window, Duration::from_secs(120));
    });
}

#[test]
fn a_consumer_waits_for_its_worker_for_ever_and_redelivers_without_end() {
    story(async {
        let server = NatsServer::start();
        let queue = coordinator(&server).await;
        let (worker, _) = make_job(&Fixtures::new());
        queue.ensure_worker(worker).await.unwrap();
        let broker = administrator(&server.url()).await;
        let stream = broker.get_stream(options(&server).stream).await.unwrap();
        let config = stream.consumer_info(worker.to_string()).await.unwrap().config;
        assert_eq!(config.durable_name, Some(worker.to_string()));
        assert_eq!(config.deliver_subject, None, "it is pulled");
        assert_eq!(config.filter_subject, format!("fp.jobs.{worker}"));
        assert_eq!(config.ack_policy, AckPolicy::Explicit);
        assert_eq!(config.ack_wait, broker::ACK_WAIT);
        assert_eq!(config.max_deliver, -1);
        assert_eq!(config.inactive_threshold, Duration::ZERO);
        assert!(config.backoff.is_empty());
    });
}

#[test]
fn what_the_options_change_is_changed_on_the_broker_and_jobs_are_kept() {
    story(async {
        let server = NatsServer::start();
        let queue = coordinator(&server).await;
        let (worker, job) = make_job(&Fixtures::new());
        queue.publish(&job).await.unwrap();

        let changed = NatsOptions {
            max_messages: 10,
            max_bytes: 1 << 20,
            duplicate_window: Duration::from_secs(60),
            ack_wait: Duration::from_secs(7),
            ..options(&server)
        };
        let queue = NatsQueue::connect(changed.clone()).await.unwrap();
        queue.ensure_worker(worker).await.unwrap();

        let broker = administrator(&server.url()).await;
        let stream = broker.get_stream(&changed.stream).await.unwrap();
        let config = &stream.cached_info().config;
        assert_eq!((config.max_messages, config.max_bytes), (10, 1 << 20));
        assert_eq!(config.duplicate_window, Duration::from_secs(60));
        let consumer = stream.consumer_info(worker.to_string()).await.unwrap();
        assert_eq!(consumer.config.ack_wait, Duration::from_secs(7));
        take(&mut worker_jobs(changed, worker).await, &job).await;
    });
}

#[test]
fn another_kind_of_stream_of_this_name_is_refused_and_left_alone() {
    story(async {
        let wanted = Config {
            name: NatsOptions::default().stream,
            subjects: vec!["fp.jobs.*".into()],
            retention: RetentionPolicy::WorkQueue,
            ..Config::default()
        };
        let others = [
            ("the retention", Config { retention: RetentionPolicy::Limits, ..wanted.clone() }),
            ("the storage", Config { storage: StorageType::Memory, ..wanted.clone() }),
            ("the subjects", Config { subjects: vec!["orders.*".into()], ..wanted }),
        ];
        for (expected, other) in others {
            let server = NatsServer::start();
            let broker = administrator(&server.url()).await;
            let made = broker.create_stream(other.clone()).await.unwrap().cached_info().config.clone();
            let error = NatsQueue::connect(options(&server)).await.unwrap_err();
            let ConnectError::IncompatibleStream { field, .. } = &error else { panic!("{error}") };
            assert_eq!(*field, expected);
            assert_eq!((error.code(), error.is_retryable()), ("nats_incompatible_stream", false));
            let kept = broker.get_stream(&other.name).await.unwrap().cached_info().config.clone();
            assert_eq!(kept, made);
        }
    });
}

#[test]
fn a_broker_without_jetstream_is_refused() {
    story(async {
        let config = "accounts { PLAIN { users: [ { user: u, password: p } ] } }\nno_auth_user: u".into();
        let server = NatsServer::start_with(&NatsServerOptions { config, ..NatsServerOptions::default() });
        let error = NatsQueue::connect(options(&server)).await.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), ("nats_no_jetstream", false), "{error}");
    });
}

#[test]
fn options_that_cannot_be_used_are_refused_before_anything_is_asked() {
    story(async {
        let server = NatsServer::start();
        let error = NatsQueue::connect(NatsOptions { prefix: "fp.>".into(), ..options(&server) }).await;
        assert_eq!(error.unwrap_err().code(), "nats_invalid_options");
    });
}
