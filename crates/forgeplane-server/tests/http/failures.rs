//! Failures: who may try again is told so, and nobody learns what is inside.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::support::{House, push_request};

#[tokio::test]
async fn a_store_that_is_away_is_a_503_to_be_tried_again() {
    let house = House::new().await;
    house.get("", "/readyz").await.expect::<Value>(200);
    house.trouble.unavailable.store(true, Ordering::SeqCst);
    for (token, path) in [("", "/readyz"), (house.viewer.as_str(), "/api/v1/runs")] {
        let answer = house.get(token, path).await;
        answer.problem(503, "store_unavailable");
        assert_eq!(answer.header("retry-after"), "1");
        assert!(!answer.text().contains("db-7"), "{}", answer.text());
    }
    house.get("", "/healthz").await.expect::<Value>(200);
    house.trouble.unavailable.store(false, Ordering::SeqCst);
    house.get(&house.viewer, "/api/v1/runs").await.expect::<Value>(200);
}

#[tokio::test]
async fn a_store_that_cannot_be_used_is_a_500_without_internals() {
    let house = House::new().await;
    house.trouble.unusable.store(true, Ordering::SeqCst);
    let answer = house.get(&house.viewer, "/api/v1/runs").await;
    let problem = answer.problem(500, "store_unusable");
    assert!(problem.way_out.unwrap().contains("request id"));
    assert_eq!(answer.header("retry-after"), "");
    assert!(!answer.text().contains("db-7") && !answer.text().contains("table"), "{}", answer.text());
}

#[tokio::test]
async fn a_panic_is_a_500_and_not_the_end() {
    let house = House::new().await;
    let metadata = json!({"name": "net", "tool": "terraform"});
    let answer = house.send(push_request(&house.operator, &metadata, b"\x1f\x8b panic")).await;
    answer.problem(500, "internal");
    assert!(!answer.text().contains("panics"));
    house.push(metadata).await.expect::<Value>(201);
}
