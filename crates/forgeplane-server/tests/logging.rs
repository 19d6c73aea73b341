//! What is logged, in a process of its own: which log lines are on is decided for a whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

#[path = "http/support.rs"]
mod support;
#[path = "http/worker.rs"]
mod worker;

use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use axum::http::Method;
use serde_json::{Value, json};

use support::{House, json_request};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_failure_is_logged_once_under_its_request_and_no_secret_is_ever_logged() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let house = House::new().await;
    let guard = tracing::subscriber::set_default(subscriber);
    let put = json_request(
        Method::PUT,
        &house.operator,
        "/api/v1/secrets/db",
        &json!({"value": "canary-5f2c0b77", "valeu": "canary"}),
    );
    house.send(put).await.problem(400, "invalid_field");
    let put = json_request(
        Method::PUT,
        &house.operator,
        "/api/v1/secrets/db",
        &json!({"value": "canary-5f2c0b77"}),
    );
    house.send(put).await.expect::<Value>(200);
    house.get("fpt_not-a-token-canary", "/api/v1/secrets").await.problem(401, "unauthenticated");
    house
        .get(&house.viewer, "/api/v1/runs/run_0197b0f0a5c07000800000000000000a")
        .await
        .problem(404, "not_found");
    house.trouble.unusable.store(true, Ordering::SeqCst);
    let failed = house.get(&house.viewer, "/api/v1/runs").await.problem(500, "store_unusable");
    drop(guard);

    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains("canary"), "{text}");
    for token in [&house.operator, &house.viewer] {
        assert!(!text.contains(token.as_str()), "a token was logged");
    }
    let about: Vec<_> = text.lines().filter(|l| l.contains("ERROR")).collect();
    assert_eq!(about.len(), 1, "{text}");
    assert!(about[0].contains(&failed.request_id) && about[0].contains("db-7"), "{}", about[0]);
    assert!(text.contains("path=\"/api/v1/runs/{id}\"") && text.contains("caller=usr_"), "{text}");
}
