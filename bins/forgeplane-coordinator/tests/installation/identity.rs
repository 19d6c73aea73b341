//! Two workers with one identity.

use forgeplane_testkit::installation::Worker;

use crate::support::{Site, options, patient_tool, until, word};

/// Waits until a worker has been there for longer than a newcomer.
async fn until_established(site: &Site, worker: &Worker) {
    let answered = |text: &str| -> Option<f64> {
        let line = text
            .lines()
            .find(|l| l.starts_with("forgeplane_worker_heartbeats_total{result=\"answered\"}"))?;
        line.rsplit_once(' ')?.1.parse().ok()
    };
    until("its heartbeats are not answered", async || {
        let (_, text) = site.probe(&worker.probes, "/metrics").await;
        if answered(&text).is_some_and(|beats| beats >= 8.0) { Ok(()) } else { Err(text) }
    })
    .await;
}

/// A copy of a state directory, taken while a tool runs, says that the tool may have been started. Its worker waits for the
/// one that it is a copy of to come forward, and gives way without having said anything of the attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_worker_gives_way_and_disturbs_nothing() {
    let (_dir, go) = word();
    let (mut site, coordinators) =
        Site::start(options(false, &["settings.heartbeat_s = 1"]), &patient_tool(&go), &["alpha"]);
    let alpha = &coordinators[0];
    let worker = site.worker("w1", &[alpha]);
    site.app(alpha);
    let run = site.preview(alpha, "once").await;
    site.until_ledger("started").await;
    until_established(&site, &worker).await;

    let mut copy = site.installation.copy_of("w1");
    copy.start("ready");
    let status = tokio::task::block_in_place(|| copy.ended());
    assert!(!status.success(), "{}", copy.log());
    assert!(copy.log().contains("another worker uses this worker's identity"), "{}", copy.log());
    assert_eq!(site.run(alpha, &run).await["run"]["status"], "running");

    std::fs::write(&go, "").unwrap();
    let view = site.until_status(alpha, &run, "succeeded").await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(site.installation.ledger().matches("started").count(), 1);
    assert!(worker.process.log().contains("another worker has registered"), "{}", worker.process.log());
    // The original serves on.
    let next = site.preview(alpha, "next").await;
    site.until_status(alpha, &next, "succeeded").await;
    site.installation.check().unwrap();
}
