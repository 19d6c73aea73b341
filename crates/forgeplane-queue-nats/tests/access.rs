//! Who may do what on the broker, and how one proves who one is.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod broker;

use std::time::Duration;

use async_nats::{ConnectOptions, Event};
use broker::{ACK_WAIT, coordinator_with, nothing_comes, options, receive, take, worker_jobs};
use forgeplane_core::id::WorkerId;
use forgeplane_core::ports::JobQueue as _;
use forgeplane_queue_nats::{NatsAuth, NatsOptions, NatsQueue, NatsWorkerQueue};
use forgeplane_testkit::fixtures::Fixtures;
use forgeplane_testkit::nats_server::{NatsServer, NatsServerOptions, Version};
use forgeplane_testkit::run::story;
use tokio::sync::mpsc;
use tokio::time::timeout;

fn start(config: String) -> NatsServer {
    start_version(Version::Current, config)
}

fn start_version(version: Version, config: String) -> NatsServer {
    NatsServer::start_with(&NatsServerOptions { version, config, ..NatsServerOptions::default() })
}

fn password(name: &str, password: &str) -> Option<NatsAuth> {
    Some(NatsAuth::Password { name: name.into(), password: password.to_owned().into() })
}

/// A server with a coordinator that may do everything and workers that may do what a worker needs.
fn server_with_workers(version: Version, workers: &[WorkerId]) -> NatsServer {
    let mut users = "{ user: coordinator, password: secret }\n".to_owned();
    for worker in workers {
        let needed = NatsOptions::default().worker_permissions(*worker);
        let (publish, subscribe) = (&needed.publish, &needed.subscribe);
        users += &format!(
            "{{ user: {worker}, password: secret, permissions: {{ publish: {publish:?}, subscribe: {subscribe:?} }} }}\n"
        );
    }
    start_version(version, format!("authorization {{ users: [\n{users}] }}"))
}

#[test]
fn a_worker_with_its_narrow_permissions_does_all_that_a_worker_does() {
    story(worker_with_narrow_permissions(Version::Current));
}

#[test]
fn a_worker_with_its_narrow_permissions_does_all_that_a_worker_does_on_2_9() {
    story(worker_with_narrow_permissions(Version::V2_9));
}

async fn worker_with_narrow_permissions(version: Version) {
    let make = Fixtures::new();
    let workers: [WorkerId; 2] = [make.id(), make.id()];
    let server = server_with_workers(version, &workers);
    let queue = coordinator_with(&server, password("coordinator", "secret")).await;
    let jobs = [make.job_for(workers[0]), make.job_for(workers[1]), make.job_for(workers[0])];
    let as_worker =
        |worker: WorkerId| NatsOptions { auth: password(&worker.to_string(), "secret"), ..options(&server) };
    let mut mine = worker_jobs(as_worker(workers[0]), workers[0]).await;

    // It waits before there is a stream for it, pulls, reports progress, refuses and acknowledges.
    assert!(timeout(Duration::from_millis(500), mine.next()).await.is_err());
    for job in &jobs {
        queue.publish(job).await.unwrap();
    }
    let delivery = receive(&mut mine, &jobs[0]).await;
    for _ in 0..4 {
        tokio::time::sleep(ACK_WAIT / 2).await;
        delivery.in_progress().await.unwrap();
    }
    delivery.nak(Duration::ZERO).await.unwrap();
    take(&mut mine, &jobs[0]).await;
    take(&mut mine, &jobs[2]).await;
    nothing_comes(&mut mine).await;
    take(&mut worker_jobs(as_worker(workers[1]), workers[1]).await, &jobs[1]).await;
    assert!(!server.log().contains("Violation"), "{}", server.log());
}

#[test]
fn a_stolen_worker_credential_reaches_no_other_workers_jobs() {
    story(async {
        let make = Fixtures::new();
        let (thief, victim): (WorkerId, WorkerId) = (make.id(), make.id());
        let server = server_with_workers(Version::Current, &[thief, victim]);
        let queue = coordinator_with(&server, password("coordinator", "secret")).await;
        let job = make.job_for(victim);
        queue.publish(&job).await.unwrap();
        let stream = &options(&server).stream;

        let (violations, mut seen) = mpsc::unbounded_channel();
        let client = ConnectOptions::with_user_and_password(thief.to_string(), "secret".into())
            .event_callback(move |event| {
                if let Event::ServerError(error) = event {
                    violations.send(error.to_string()).unwrap();
                }
                std::future::ready(())
            })
            .connect(server.url())
            .await
            .unwrap();
        let forbidden = [
            format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{victim}"),
            format!("$JS.ACK.{stream}.{victim}.1.1.1.1.0"),
            format!("$JS.API.CONSUMER.CREATE.{stream}"),
            format!("$JS.API.CONSUMER.CREATE.{stream}.{thief}"),
            format!("$JS.API.CONSUMER.CREATE.{stream}.{thief}.fp.jobs.{victim}"),
            format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{thief}"),
            format!("$JS.API.CONSUMER.DELETE.{stream}.{victim}"),
            format!("$JS.API.CONSUMER.INFO.{stream}.{victim}"),
            format!("$JS.API.STREAM.MSG.GET.{stream}"),
            format!("$JS.API.STREAM.MSG.DELETE.{stream}"),
            format!("$JS.API.DIRECT.GET.{stream}"),
            format!("$JS.API.STREAM.INFO.{stream}"),
            format!("$JS.API.STREAM.PURGE.{stream}"),
            format!("$JS.API.STREAM.DELETE.{stream}"),
            "$JS.API.STREAM.CREATE.MINE".to_owned(),
            format!("fp.jobs.{victim}"),
            format!("fp.jobs.{thief}"),
        ];
        let mut violation = async |subject: &str| {
            let told = timeout(Duration::from_secs(30), seen.recv()).await.expect(subject).unwrap();
            assert!(told.contains("Permissions Violation") && told.contains(subject), "{subject}: {told}");
        };
        for subject in &forbidden {
            client.publish(subject.clone(), "{}".into()).await.unwrap();
            violation(subject).await;
        }
        for subject in [">", "fp.jobs.>", "_INBOX.>", &format!("_INBOX_{victim}.>"), "$JS.>"] {
            let _refused = client.subscribe(subject.to_owned()).await.unwrap();
            violation(subject).await;
        }

        let as_thief = NatsOptions { auth: password(&thief.to_string(), "secret"), ..options(&server) };
        let thief_queue = NatsWorkerQueue::connect(as_thief, thief).await.unwrap();
        assert!(thief_queue.publish(&job).await.unwrap_err().to_string().contains("workers do not publish"));
        let error = thief_queue.subscribe(victim).await.err().unwrap();
        assert!(error.to_string().contains("belongs to"), "{error}");
        // The job is where it was.
        let as_victim = NatsOptions { auth: password(&victim.to_string(), "secret"), ..options(&server) };
        take(&mut worker_jobs(as_victim, victim).await, &job).await;
    });
}

#[test]
fn a_wrong_password_is_a_clear_error_without_the_password() {
    story(async {
        let server = start("authorization { user: coordinator, password: right }".into());
        let wrong = NatsOptions { auth: password("coordinator", "wr0ng-pa55"), ..options(&server) };
        let nobody = options(&server);
        for options in [wrong, nobody] {
            let error = NatsQueue::connect(options.clone()).await.unwrap_err();
            assert_eq!((error.code(), error.is_retryable()), ("nats_unauthorized", false));
            let shown = format!("{error} {error:?} {options:?}");
            assert!(shown.contains("refused the credentials") && !shown.contains("wr0ng-pa55"), "{shown}");
        }
        coordinator_with(&server, password("coordinator", "right")).await;
    });
}

#[test]
fn a_token_is_accepted() {
    story(async {
        let server = start("authorization { token: t0ken }".into());
        let wrong = NatsOptions { auth: Some(NatsAuth::Token("other".into())), ..options(&server) };
        assert_eq!(NatsQueue::connect(wrong).await.unwrap_err().code(), "nats_unauthorized");
        coordinator_with(&server, Some(NatsAuth::Token("t0ken".into()))).await;
    });
}

#[test]
fn an_nkey_is_accepted_and_another_one_is_not() {
    story(async {
        let key = nkeys::KeyPair::new_user();
        let server = start(format!("authorization {{ users: [ {{ nkey: {} }} ] }}", key.public_key()));
        let another = nkeys::KeyPair::new_user().seed().unwrap();
        for seed in [another.as_str(), "SUNOTASEED"] {
            let auth = Some(NatsAuth::NkeySeed(seed.into()));
            let wrong = NatsOptions { auth, ..options(&server) };
            let error = NatsQueue::connect(wrong.clone()).await.unwrap_err();
            assert_eq!(error.code(), "nats_unauthorized", "{error}");
            assert!(!format!("{error} {error:?} {wrong:?}").contains(seed));
        }
        coordinator_with(&server, Some(NatsAuth::NkeySeed(key.seed().unwrap().into()))).await;
    });
}

#[test]
fn a_credentials_file_that_cannot_be_read_is_named() {
    story(async {
        let server = NatsServer::start();
        let auth = Some(NatsAuth::CredentialsFile("/does/not/exist.creds".into()));
        let error = NatsQueue::connect(NatsOptions { auth, ..options(&server) }).await.unwrap_err();
        assert_eq!(error.code(), "nats_file_unreadable");
        assert!(error.to_string().contains("/does/not/exist.creds"), "{error}");
    });
}
