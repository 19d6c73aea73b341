//! A broker that repeats, forgets and loses: messages only carry work, so nothing is started twice and nothing is lost.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::consumer::{Consumer, pull};
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{self, AckKind, Context};
use bytes::Bytes;
use forgeplane_testkit::installation::{Coordinator, Installation, Proxy, Worker};
use forgeplane_testkit::nats_server::NatsServer;
use futures_util::StreamExt as _;

use crate::support::{Site, options, patient_tool, until, word};

/// The stream of jobs, as the coordinator sees it.
struct Jobs {
    context: Context,
    stream: Stream,
}

/// A job as it was published.
#[derive(Debug, Clone)]
struct Message {
    subject: String,
    payload: Bytes,
}

impl Jobs {
    async fn of(installation: &Installation) -> Self {
        let (ca, user, password) = installation.broker_access();
        let options = async_nats::ConnectOptions::with_user_and_password(user.into(), password.into())
            .require_tls(true)
            .add_root_certificates(ca.to_owned());
        let url = installation.nats.as_ref().unwrap().url();
        let context = jetstream::new(options.connect(url).await.unwrap());
        let stream = context.get_stream("FORGEPLANE_JOBS").await.unwrap();
        Self { context, stream }
    }

    async fn waiting(&self) -> u64 {
        self.stream.get_info().await.unwrap().state.messages
    }

    /// The newest job in the stream, once there is one.
    async fn newest(&self) -> Message {
        until("no job is published", async || {
            let last = self.stream.get_info().await.unwrap().state.last_sequence;
            let message = self.stream.get_raw_message(last).await.map_err(|e| e.to_string())?;
            Ok(Message { subject: message.subject.to_string(), payload: message.payload })
        })
        .await
    }

    /// Publishes a job again, as a broker would that delivers it more than once.
    async fn repeat(&self, message: &Message, times: usize) {
        for _ in 0..times {
            let published = self.context.publish(message.subject.clone(), message.payload.clone());
            published.await.unwrap().await.unwrap();
        }
    }

    async fn until_empty(&self) {
        until("jobs are left in the stream", async || match self.waiting().await {
            0 => Ok(()),
            left => Err(format!("{left} are left")),
        })
        .await;
    }

    async fn consumer(&self, worker: &Worker) -> Consumer<pull::Config> {
        self.stream.get_consumer(&worker.id).await.unwrap()
    }
}

/// A coordinator, a worker that may be far from its broker, and a tool that waits for a word.
struct Brokered {
    site: Site,
    alpha: Coordinator,
    worker: Worker,
    go: PathBuf,
    /// Between the worker and the broker.
    network: Proxy,
    _dir: tempfile::TempDir,
}

impl Brokered {
    /// A job that is not answered for a second is delivered again.
    async fn start() -> Self {
        let (dir, go) = word();
        let soon = ["settings.heartbeat_s = 1", "settings.worker_offline_after_s = 30"];
        let (mut site, mut coordinators) = Site::start(options(true, &soon), &patient_tool(&go), &["alpha"]);
        let mut alpha = coordinators.remove(0);
        let mut worker = site.worker("w1", &[&alpha]);
        let broker = site.installation.nats.as_ref().unwrap().port();
        let network = Proxy::to(&format!("127.0.0.1:{broker}"));
        worker.process.terminate();
        alpha.process.terminate();
        for name in ["alpha", "w1"] {
            site.installation.reconfigure(name, "[nats]\n", "[nats]\nack_wait_seconds = 1\n");
        }
        let near = format!("127.0.0.1:{broker}");
        site.installation.reconfigure("w1", &near, &network.address().to_string());
        alpha.process.start("workers: ");
        worker.process.start("ready");
        site.app(&alpha);
        site.until_workers(&alpha, |workers| workers[0]["status"] == "idle").await;
        Self { site, alpha, worker, go, network, _dir: dir }
    }

    fn go(&self) {
        fs::write(&self.go, "").unwrap();
    }

    fn wait(&self) {
        fs::remove_file(&self.go).unwrap();
    }

    fn starts(&self) -> usize {
        self.site.installation.ledger().matches("started").count()
    }

    async fn until_succeeded(&self, run: &str) {
        let view = self.site.until_status(&self.alpha, run, "succeeded").await;
        assert_eq!(view["attempts"].as_array().unwrap().len(), 1, "{view:#}");
    }
}

/// B4 and B5: every job comes five times, in any order, also long after its attempt has ended and while another one runs.
#[tokio::test(flavor = "multi_thread")]
async fn b4_b5_jobs_that_come_again_and_again_start_one_tool_each() {
    let mut it = Brokered::start().await;
    let jobs = Jobs::of(&it.site.installation).await;
    it.worker.process.kill();
    let first = it.site.preview(&it.alpha, "first").await;
    let one = jobs.newest().await;
    jobs.repeat(&one, 4).await;
    it.worker.process.start("ready");
    it.site.until_ledger("started").await;
    it.go();
    it.until_succeeded(&first).await;
    jobs.until_empty().await;

    it.wait();
    let second = it.site.preview(&it.alpha, "second").await;
    it.site.until_run(&it.alpha, &second, |view| view["run"]["status"] == "running").await;
    let other = jobs.newest().await;
    assert_ne!(one.payload, other.payload);
    for _ in 0..2 {
        jobs.repeat(&other, 2).await;
        jobs.repeat(&one, 3).await;
    }
    it.go();
    it.until_succeeded(&second).await;
    jobs.until_empty().await;
    assert_eq!(it.starts(), 2);
    it.site.installation.check().unwrap();
}

/// B6: nobody hears that the job is being worked on, so the broker gives it to whoever asks, while its tool runs.
#[tokio::test(flavor = "multi_thread")]
async fn b6_a_job_that_is_delivered_again_while_its_tool_runs_is_not_started_again() {
    let it = Brokered::start().await;
    let jobs = Jobs::of(&it.site.installation).await;
    let run = it.site.preview(&it.alpha, "first").await;
    it.site.until_ledger("started").await;
    it.network.lose_requests();
    for delivery in 2..4 {
        let consumer = jobs.consumer(&it.worker).await;
        let mut asked =
            consumer.fetch().max_messages(1).expires(Duration::from_secs(60)).messages().await.unwrap();
        let again = asked.next().await.expect("the job is delivered again").unwrap();
        assert_eq!(again.info().unwrap().delivered, delivery);
        again.ack_with(AckKind::Nak(None)).await.unwrap();
    }
    it.network.heal();
    it.go();
    it.until_succeeded(&run).await;
    jobs.until_empty().await;
    assert_eq!(it.starts(), 1);
    it.site.installation.check().unwrap();
}

/// B7: the last acknowledgement is lost; the job comes again when everything is over, and goes away.
#[tokio::test(flavor = "multi_thread")]
async fn b7_a_job_whose_acknowledgement_was_lost_goes_away_with_the_next_delivery() {
    let it = Brokered::start().await;
    let jobs = Jobs::of(&it.site.installation).await;
    let run = it.site.preview(&it.alpha, "first").await;
    it.site.until_ledger("started").await;
    it.network.lose_requests();
    it.go();
    it.until_succeeded(&run).await;
    assert_eq!(jobs.waiting().await, 1);
    it.network.heal();
    jobs.until_empty().await;
    assert_eq!(it.starts(), 1);
    it.site.installation.check().unwrap();
}

/// What the broker has forgotten or remembers wrongly, with runs that run and runs that wait.
async fn forgetful(forget: impl Fn(&mut NatsServer)) {
    let mut it = Brokered::start().await;
    let first = it.site.preview(&it.alpha, "first").await;
    it.site.until_ledger("started").await;
    // One worker takes one job, so this one waits.
    let second = it.site.preview(&it.alpha, "second").await;
    let broker = it.site.installation.nats.as_mut().unwrap();
    broker.kill();
    // B1: without a broker what runs goes on and is told, and what is new is admitted.
    it.go();
    it.until_succeeded(&first).await;
    let third = it.site.preview(&it.alpha, "third").await;
    assert_eq!(it.site.run(&it.alpha, &third).await["run"]["status"], "queued");
    let broker = it.site.installation.nats.as_mut().unwrap();
    forget(broker);
    broker.restart();
    it.until_succeeded(&second).await;
    it.until_succeeded(&third).await;
    assert_eq!(it.starts(), 3);
    Jobs::of(&it.site.installation).await.until_empty().await;
    it.site.installation.check().unwrap();
}

/// B1: down for a while.
#[tokio::test(flavor = "multi_thread")]
async fn b1_without_a_broker_runs_end_and_wait() {
    forgetful(|_| {}).await;
}

/// B3: wiped.
#[tokio::test(flavor = "multi_thread")]
async fn b3_a_broker_that_was_wiped_is_given_everything_again() {
    forgetful(|broker| broker.wipe()).await;
}

/// B2: put back to an older copy, with jobs of attempts that have ended since.
#[tokio::test(flavor = "multi_thread")]
async fn b2_a_broker_that_was_put_back_repeats_what_has_ended_and_nothing_is_started() {
    let mut it = Brokered::start().await;
    it.worker.process.kill();
    let first = it.site.preview(&it.alpha, "first").await;
    let jobs = Jobs::of(&it.site.installation).await;
    jobs.newest().await;
    let broker = it.site.installation.nats.as_mut().unwrap();
    broker.stop();
    let copy = broker.snapshot();
    broker.restart();
    it.go();
    it.worker.process.start("ready");
    it.until_succeeded(&first).await;
    let second = it.site.preview(&it.alpha, "second").await;
    it.until_succeeded(&second).await;
    let broker = it.site.installation.nats.as_mut().unwrap();
    broker.stop();
    broker.restore(&copy);
    broker.restart();
    let third = it.site.preview(&it.alpha, "third").await;
    it.until_succeeded(&third).await;
    Jobs::of(&it.site.installation).await.until_empty().await;
    assert_eq!(it.starts(), 3);
    it.site.installation.check().unwrap();
}
