//! Probes, metrics, logs, and how a coordinator ends.

use std::time::{Duration, Instant};

use crate::support::{Site, options, until};

/// Waits until the readiness probe answers with this status.
async fn until_ready(site: &Site, probes: &str, status: u16) {
    until("readiness does not change", async || {
        let (found, text) = site.probe(probes, "/readyz").await;
        if found == status { Ok(()) } else { Err(format!("it is {found}, not {status}: {text}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_follows_the_database_and_liveness_does_not() {
    let (mut site, coordinators) =
        Site::start(options(false, &["log.format = \"json\""]), "exit 0", &["alpha"]);
    let alpha = &coordinators[0];
    until_ready(&site, &alpha.probes, 200).await;
    site.installation.postgres().kill();
    until_ready(&site, &alpha.probes, 503).await;
    assert_eq!(site.probe(&alpha.probes, "/healthz").await.0, 200);
    assert!(site.client.try_ask(&alpha.api, None, "/runs").await.is_none());
    site.installation.postgres().resume();
    until_ready(&site, &alpha.probes, 200).await;
    site.get(alpha, "/runs").await;

    // Every line of the log is JSON with a level and a message; none has the database's password.
    let log = alpha.process.log();
    assert!(!log.contains(site.installation.postgres().password()), "{log}");
    let lines: Vec<serde_json::Value> =
        log.lines().filter(|l| l.starts_with('{')).map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(lines.iter().any(|l| l["level"].is_string() && l["message"].is_string()), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_what_goes_on() {
    let (mut site, coordinators) =
        Site::start(options(false, &["settings.heartbeat_s = 1"]), "exit 0", &["alpha"]);
    let alpha = &coordinators[0];
    let worker = site.worker("w1", &[alpha]);
    site.app(alpha);
    let run = site.preview(alpha, "once").await;
    site.until_status(alpha, &run, "succeeded").await;
    let wanted = [
        "forgeplane_ready 1",
        "forgeplane_workers{status=\"idle\"} 1",
        "forgeplane_queued_runs 0",
        "forgeplane_commit_seconds_count",
        "forgeplane_commit_batch_size_count",
        "forgeplane_step_seconds_count",
        "forgeplane_http_request_seconds_count",
    ];
    until("the metrics are not told", async || {
        let (_, text) = site.probe(&alpha.probes, "/metrics").await;
        let missing: Vec<_> = wanted.iter().filter(|line| !text.contains(**line)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} are not in\n{text}")) }
    })
    .await;
    let (status, text) = site.probe(&worker.probes, "/metrics").await;
    assert_eq!(status, 200);
    assert!(text.contains("forgeplane_worker_attempts_total{outcome=\"succeeded\"} 1"), "{text}");
    assert_eq!(site.probe(&worker.probes, "/readyz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_open_streams_and_the_process() {
    let (site, mut coordinators) = Site::start(options(false, &[]), "exit 0", &["alpha"]);
    let alpha = &mut coordinators[0];
    let mut follower = site.installation.cli(alpha, &site.admin);
    let mut follower = follower.args(["run", "list"]).spawn().unwrap();
    follower.wait().unwrap();
    let stream = reqwest::Client::new()
        .get(format!("{}/api/v1/events/stream", alpha.api))
        .bearer_auth(std::fs::read_to_string(&site.admin).unwrap())
        .send()
        .await
        .unwrap();
    assert_eq!(stream.status(), 200);
    let reading = tokio::spawn(stream.bytes());
    let begun = Instant::now();
    let status = alpha.process.terminate();
    assert!(status.success(), "{status}\n{}", alpha.process.log());
    assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
    // Ended properly, not cut off.
    reading.await.unwrap().unwrap();
}
