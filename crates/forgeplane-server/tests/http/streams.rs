//! Live logs and events over a real connection.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forgeplane_core::model::{LogStream, OutcomeKind};
use forgeplane_server::api;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::support::House;

/// Long enough for the slowest machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A house whose API is on a port.
struct Served {
    house: House,
    base: String,
    shutdown: CancellationToken,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Served {
    async fn new() -> Self {
        let house = House::new().await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let serving = forgeplane_server::serve(listener, house.coordinator.clone(), shutdown.clone());
        Self { house, base, shutdown, server: tokio::spawn(serving) }
    }

    async fn open(&self, path: &str, last_event_id: Option<&str>) -> Stream {
        let mut request = reqwest::Client::new()
            .get(format!("{}{path}", self.base))
            .header("authorization", format!("Bearer {}", self.house.viewer));
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Stream { response, buffer: String::new() }
    }
}

struct Stream {
    response: reqwest::Response,
    buffer: String,
}

#[derive(Debug, Default)]
struct Received {
    name: String,
    id: Option<String>,
    data: String,
}

impl Received {
    fn read<T: DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.data).unwrap()
    }
}

impl Stream {
    /// The next event; `None` at the end of the stream. Comments are skipped.
    async fn next(&mut self) -> Option<Received> {
        loop {
            while let Some(end) = self.buffer.find("\n\n") {
                let block: String = self.buffer.drain(..end + 2).collect();
                let mut event = Received::default();
                for line in block.lines() {
                    match line.split_once(": ") {
                        Some(("event", name)) => event.name = name.to_owned(),
                        Some(("id", id)) => event.id = Some(id.to_owned()),
                        Some(("data", data)) => event.data.push_str(data),
                        _ => {}
                    }
                }
                if !event.name.is_empty() {
                    return Some(event);
                }
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await.expect("nothing came");
            self.buffer.push_str(std::str::from_utf8(&chunk.unwrap()?).unwrap());
        }
    }

    async fn frame(&mut self) -> api::LogFrame {
        let event = self.next().await.expect("the stream ended");
        assert_eq!(event.name, "log", "{event:?}");
        let frame: api::LogFrame = event.read();
        assert_eq!(event.id, Some(frame.end.to_string()));
        frame
    }
}

#[tokio::test]
async fn a_log_is_followed_live_from_before_its_attempt_to_its_end() {
    let served = Served::new().await;
    let house = &served.house;
    let run = house.run(&house.instance(0).await, json!({"operation": "preview"})).await;
    let mut stream = served.open(&format!("/api/v1/runs/{}/log/stream", run.id), None).await;
    let mut short = served.open(&format!("/api/v1/runs/{}/log?follow=true", run.id), None).await;

    let worker = house.worker().await;
    let mut job = worker.claim(run.id).await;
    for (source, text) in
        [(LogStream::Worker, "init\n"), (LogStream::Stdout, "one\n"), (LogStream::Stderr, "two\n")]
    {
        // Each line is there before the next is written: nothing waits for a buffer to fill.
        worker.log(&mut job, source, text.as_bytes()).await;
        let frame = stream.frame().await;
        assert_eq!((frame.stream, frame.text.as_str()), (source.into(), text));
        assert_eq!(short.frame().await, frame);
    }
    worker.conclude(job, OutcomeKind::Failed).await;
    let last = stream.next().await.unwrap();
    let end: api::LogEnd = last.read();
    assert_eq!((last.name.as_str(), end.next), ("end", 13));
    assert_eq!(end.attempt.unwrap().state, api::AttemptState::Closed);
    assert!(stream.next().await.is_none(), "the stream ends after `end`");
}

#[tokio::test]
async fn a_log_stream_resumes_without_gap_or_duplicate_however_often_it_breaks() {
    let served = Served::new().await;
    let house = &served.house;
    let worker = house.worker().await;
    let run = house.run(&house.instance(0).await, json!({"operation": "preview"})).await;
    let path = format!("/api/v1/runs/{}/log/stream", run.id);
    let mut job = worker.claim(run.id).await;
    let lines: Vec<Vec<u8>> = (0_u32..400)
        .map(|n| format!("{n:03} {}\n", "x".repeat((n * 7 % 90) as usize)).into_bytes())
        .collect();
    let expected = lines.concat();
    let writing = async {
        for line in &lines {
            worker.log(&mut job, LogStream::Stdout, line).await;
            tokio::task::yield_now().await;
        }
        worker.conclude(job, OutcomeKind::Succeeded).await;
    };
    let reading = async {
        let (mut got, mut last, mut connections) = (Vec::new(), None::<String>, 0);
        loop {
            let mut stream = served.open(&path, last.as_deref()).await;
            connections += 1;
            // Each connection is given up after some events, some of them unread in its buffer.
            for _ in 0..37 {
                let event = stream.next().await.expect("the stream ended early");
                if event.name == "end" {
                    return (got, connections);
                }
                let frame: api::LogFrame = event.read();
                assert_eq!(frame.offset, got.len() as u64, "a gap or a duplicate");
                got.extend(STANDARD.decode(&frame.base64).unwrap());
                last = event.id;
            }
        }
    };
    let ((), (got, connections)) = tokio::join!(writing, reading);
    assert!(got == expected);
    assert!(connections > 5, "{connections}");

    // From the middle of a line.
    let mut stream = served.open(&format!("{path}?from=2&attempt=1"), None).await;
    let frame = stream.frame().await;
    assert_eq!((frame.offset, frame.text.as_bytes()), (2, &lines[0][2..]));
}

#[tokio::test]
async fn a_withdrawn_offer_does_not_end_a_log_stream_but_the_end_of_its_run_does() {
    let served = Served::new().await;
    let house = &served.house;
    let worker = house.worker().await;
    let run = house.run(&house.instance(0).await, json!({"operation": "preview"})).await;
    house.coordinator.settle().await.unwrap();
    let path = format!("/api/v1/runs/{}/log/stream", run.id);
    let mut stream = served.open(&path, None).await;
    // The offer runs out; the worker is heard again and gets a new one.
    house.clock.advance(Duration::from_secs(61));
    house.coordinator.sweep_step().await.unwrap();
    assert_eq!(house.run_now(run.id).await.attempts[0].state, api::AttemptState::Closed);
    worker.beat().await;
    let mut job = worker.claim(run.id).await;
    worker.log(&mut job, LogStream::Stdout, b"second\n").await;
    let frame = stream.frame().await;
    assert_eq!((frame.attempt, frame.text.as_str()), (2, "second\n"));
    worker.conclude(job, OutcomeKind::Succeeded).await;
    assert_eq!(stream.next().await.unwrap().name, "end");

    let canceled = house.run(&house.instance(0).await, json!({"operation": "preview"})).await;
    let mut stream = served.open(&format!("/api/v1/runs/{}/log/stream", canceled.id), None).await;
    house.ask(&house.operator, &format!("/api/v1/runs/{}/cancel", canceled.id)).await.expect::<api::Run>(200);
    let end = stream.next().await.unwrap();
    assert_eq!((end.name.as_str(), end.read::<api::LogEnd>().attempt), ("end", None));
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_up_nobody() {
    let served = Served::new().await;
    let house = &served.house;
    let worker = house.worker().await;
    let run = house.run(&house.instance(0).await, json!({"operation": "preview"})).await;
    let mut job = worker.claim(run.id).await;
    let path = format!("/api/v1/runs/{}/log/stream", run.id);
    let mut idle = served.open(&path, None).await;
    let block = vec![b'x'; 64 << 10];
    let writing = async {
        // 24 MiB, and far more as JSON: no socket buffer takes that.
        for _ in 0..384 {
            worker.log(&mut job, LogStream::Stdout, &block).await;
        }
        worker.conclude(job, OutcomeKind::Succeeded).await;
    };
    tokio::time::timeout(PATIENCE, writing).await.expect("the log could not be written");
    let mut bytes = 0;
    loop {
        let event = idle.next().await.unwrap();
        if event.name == "end" {
            break;
        }
        let frame: api::LogFrame = event.read();
        assert_eq!(frame.offset, bytes);
        bytes = frame.end;
    }
    assert_eq!(bytes, 384 * (64 << 10));
}

#[tokio::test]
async fn events_are_followed_live_and_resumed_by_their_number() {
    let served = Served::new().await;
    let house = &served.house;
    let run = house.run(&house.instance(0).await, json!({"operation": "preview"})).await;
    let mut stream = served.open("/api/v1/events/stream", None).await;
    let mut seen = Vec::new();
    loop {
        let event = stream.next().await.unwrap();
        assert_eq!(event.name, "event");
        let read: api::Event = event.read();
        assert_eq!(event.id, Some(read.seq.to_string()));
        let kind = read.kind.clone();
        seen.push(read);
        if kind == "run.queued" {
            break;
        }
    }
    house.ask(&house.operator, &format!("/api/v1/runs/{}/cancel", run.id)).await.expect::<api::Run>(200);
    let live: api::Event = stream.next().await.unwrap().read();
    assert_eq!((live.kind.as_str(), live.run), ("run.canceled", Some(run.id)));
    seen.push(live);
    drop(stream);

    house.ask(&house.operator, &format!("/api/v1/runs/{}/requeue", run.id)).await.expect::<api::Run>(200);
    let last = seen.last().unwrap().seq.to_string();
    let mut resumed = served.open("/api/v1/events/stream?after=0", Some(&last)).await;
    for kind in ["run.requeued", "run.queued"] {
        let event: api::Event = resumed.next().await.unwrap().read();
        assert_eq!(event.kind, kind);
        seen.push(event);
    }
    let listed: api::Page<api::Event> =
        house.get(&house.viewer, "/api/v1/events?limit=200").await.expect(200);
    assert_eq!(seen, listed.items, "what was streamed is what happened");
}

#[tokio::test]
async fn streams_are_refused_before_they_begin() {
    let house = House::new().await;
    let run = "run_0197b0f0a5c07000800000000000000a";
    house.get(&house.viewer, &format!("/api/v1/runs/{run}/log/stream")).await.problem(404, "not_found");
    house.get("", "/api/v1/events/stream").await.problem(401, "unauthenticated");
    let real = house.run(&house.instance(0).await, json!({"operation": "preview"})).await;
    for (path, header) in [
        (format!("/api/v1/runs/{}/log/stream?attempt=7", real.id), None),
        (format!("/api/v1/runs/{}/log/stream", real.id), Some("x")),
        ("/api/v1/events/stream".to_owned(), Some("-1")),
        ("/api/v1/events/stream?from=1".to_owned(), None),
    ] {
        let mut request = crate::support::request(axum::http::Method::GET, &house.viewer, &path);
        if let Some(id) = header {
            request = request.header("last-event-id", id);
        }
        let answer = house.send(request.body(axum::body::Body::empty()).unwrap()).await;
        assert!(answer.status.is_client_error(), "{path}");
        assert_eq!(answer.header("content-type"), "application/problem+json");
    }
}

#[tokio::test]
async fn a_token_that_ends_takes_its_streams_with_it() {
    let served = Served::new().await;
    let house = &served.house;
    let new = json!({"name": "short", "role": "viewer", "expires_in_s": 60});
    let made: api::CreatedToken = house.post(&house.admin, "/api/v1/tokens", new).await.expect(201);
    use secrecy::ExposeSecret as _;
    let response = reqwest::Client::new()
        .get(format!("{}/api/v1/events/stream", served.base))
        .bearer_auth(made.token.secret().expose_secret())
        .send()
        .await
        .unwrap();
    let mut stream = Stream { response, buffer: String::new() };
    house.clock.advance(Duration::from_secs(61));
    loop {
        let event = stream.next().await.expect("the stream ended without saying why");
        if event.name == "problem" {
            assert_eq!(event.read::<api::Problem>().code, "unauthenticated");
            break;
        }
    }
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn shutdown_ends_streams_and_the_server() {
    let served = Served::new().await;
    let mut stream = served.open("/api/v1/events/stream?after=1000000", None).await;
    let reading = tokio::spawn(async move { stream.next().await.is_none() });
    served.shutdown.cancel();
    assert!(tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap(), "the stream went on");
    tokio::time::timeout(PATIENCE, served.server).await.expect("the server went on").unwrap().unwrap();
}

/// B24: whoever never ends the head of a request is left, and whoever only looks on while it drips in keeps nobody waiting.
#[tokio::test(start_paused = true)]
async fn b24_a_request_that_does_not_arrive_is_left() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let served = Served::new().await;
    let address = served.base.trim_start_matches("http://").to_owned();
    let mut slow = tokio::net::TcpStream::connect(&address).await.unwrap();
    let mut silent = tokio::net::TcpStream::connect(&address).await.unwrap();
    // Time passes by itself whenever nothing happens: a byte per second.
    let drip = async {
        for byte in b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ".iter().chain([b'x'; 600].iter()) {
            if slow.write_all(&[*byte]).await.is_err() {
                return true;
            }
            let end = tokio::time::timeout(Duration::from_secs(1), slow.read(&mut [0; 512])).await;
            if let Ok(Ok(0) | Err(_)) = end {
                return true;
            }
        }
        false
    };
    assert!(drip.await, "a request that takes ten minutes to arrive is waited for");
    let mut answer = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(600), silent.read_to_end(&mut answer)).await;
    assert!(end.is_ok(), "a connection that says nothing is kept for ever");
    served.shutdown.cancel();
    served.server.await.unwrap().unwrap();
}
