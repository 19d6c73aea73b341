//! Several coordinators on one database.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Site, options, patient_tool};

/// Heartbeats far apart: whatever happens sooner was not carried by one.
const RARE: &[&str] = &["settings.heartbeat_s = 25", "settings.worker_offline_after_s = 80"];

/// A cancel given to one coordinator reaches the worker of the other one at once.
async fn a_cancel_goes_through_the_other_coordinator(nats: bool) {
    let never = std::path::Path::new("/nowhere/go");
    let (mut site, coordinators) = Site::start(options(nats, RARE), &patient_tool(never), &["alpha", "beta"]);
    let (alpha, beta) = (&coordinators[0], &coordinators[1]);
    let _worker = site.worker("w1", &[alpha]);
    site.app(beta);
    // Created there, executed here.
    let run = site.preview(beta, "first").await;
    site.until_ledger("started").await;
    let begun = Instant::now();
    site.post(beta, &format!("/runs/{run}/cancel"), json!({})).await;
    site.until_ledger("interrupted").await;
    let took = begun.elapsed();
    site.until_status(beta, &run, "canceled").await;
    assert!(took < Duration::from_secs(10), "the cancel took {took:?}: it waited for a heartbeat");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_a_worker_of_another_coordinator_at_once() {
    a_cancel_goes_through_the_other_coordinator(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_a_worker_of_another_coordinator_at_once_with_a_broker() {
    a_cancel_goes_through_the_other_coordinator(true).await;
}

/// One that dies leaves nothing behind that only it could do; its worker goes to the next one.
async fn the_other_coordinator_takes_over(nats: bool) {
    let fast = ["settings.heartbeat_s = 1", "settings.worker_offline_after_s = 5"];
    let (mut site, mut coordinators) = Site::start(
        options(nats, &fast),
        "[ \"$1\" = plan ] && echo $ATTEMPT >> $LEDGER; exit 0",
        &["alpha", "beta"],
    );
    let both: Vec<_> = coordinators.iter().collect();
    let _worker = site.worker("w1", &both);
    site.app(&coordinators[0]);
    let run = site.preview(&coordinators[0], "before").await;
    site.until_status(&coordinators[1], &run, "succeeded").await;
    coordinators[0].process.kill();
    let begun = Instant::now();
    let run = site.preview(&coordinators[1], "after").await;
    site.until_status(&coordinators[1], &run, "succeeded").await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "the other coordinator needed {took:?}");
    // And back again.
    coordinators[0].process.start("workers: ");
    coordinators[1].process.kill();
    let run = site.preview(&coordinators[0], "again").await;
    site.until_status(&coordinators[0], &run, "succeeded").await;
    assert_eq!(site.installation.ledger().lines().count(), 3);
    site.installation.check().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_coordinator_takes_over_within_seconds() {
    the_other_coordinator_takes_over(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_coordinator_takes_over_within_seconds_with_a_broker() {
    the_other_coordinator_takes_over(true).await;
}

/// Events of all coordinators come to a follower of any of them, in order and once.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_hears_the_events_of_the_other_coordinator() {
    use futures_util::StreamExt as _;
    let (mut site, coordinators) =
        Site::start(options(false, &["settings.heartbeat_s = 1"]), "exit 0", &["alpha", "beta"]);
    let (alpha, beta) = (&coordinators[0], &coordinators[1]);
    let _worker = site.worker("w1", &[alpha]);
    site.app(alpha);
    site.preview(alpha, "one").await;
    let url = format!("{}/api/v1/events/stream", beta.api);
    let token = std::fs::read_to_string(&site.admin).unwrap();
    let stream = reqwest::Client::new().get(url).bearer_auth(token).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let (mut heard, mut bytes) = (String::new(), stream.bytes_stream());
    let begun = Instant::now();
    while !heard.contains("run.succeeded") {
        heard += std::str::from_utf8(&bytes.next().await.expect("the stream goes on").unwrap()).unwrap();
        assert!(begun.elapsed() < crate::support::PATIENCE, "{heard}");
    }
    for kind in ["run.queued", "run.running", "run.succeeded"] {
        assert_eq!(heard.matches(&format!("\"kind\":\"{kind}\"")).count(), 1, "{kind} in\n{heard}");
    }
}

/// 0 pauses everything, on whatever coordinator the run was made, and every run says why it waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_zero_pauses_and_is_explained() {
    let paused = ["settings.heartbeat_s = 1", "settings.worker_max_concurrent_jobs = 0"];
    let (mut site, coordinators) = Site::start(options(false, &paused), "exit 0", &["alpha", "beta"]);
    let _worker = site.worker("w1", &[&coordinators[0]]);
    site.app(&coordinators[0]);
    let run = site.preview(&coordinators[1], "one").await;
    for coordinator in &coordinators {
        let why = site.get(coordinator, &format!("/runs/{run}/explain")).await.to_string();
        assert!(why.contains("\"paused\"") && why.contains("worker_max_concurrent_jobs"), "{why}");
    }
}
