//! Workers that are asked to end while a tool runs.

use nix::sys::signal::Signal;

use crate::support::{Site, options, patient_tool, word};

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_lets_its_tool_end_and_takes_nothing_new() {
    let (_dir, go) = word();
    let (mut site, coordinators) =
        Site::start(options(false, &["settings.heartbeat_s = 1"]), &patient_tool(&go), &["alpha"]);
    let alpha = &coordinators[0];
    let mut worker = site.worker("w1", &[alpha]);
    site.app(alpha);
    let run = site.preview(alpha, "first").await;
    site.until_ledger("started").await;
    let next = site.preview(alpha, "second").await;
    worker.process.signal(Signal::SIGTERM);
    // It says so at once: the run that waits is explained by it, and the worker is not ready.
    let reason = |view: &serde_json::Value| view.to_string().contains("drain");
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    while !reason(&site.get(alpha, &format!("/runs/{next}/explain")).await) {
        assert!(std::time::Instant::now() < deadline, "nothing says that the worker drains");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(site.probe(&worker.probes, "/readyz").await.0, 503);
    std::fs::write(&go, "").unwrap();
    let status = worker.process.ended();
    assert!(status.success(), "{status}\n{}", worker.process.log());
    assert_eq!(site.run(alpha, &run).await["run"]["status"], "succeeded");
    assert_eq!(site.run(alpha, &next).await["run"]["status"], "queued");
    // The next worker takes it.
    worker.process.start("ready");
    site.until_status(alpha, &next, "succeeded").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn asked_twice_a_worker_interrupts_its_tool_and_delivers_the_outcome() {
    let never = std::path::Path::new("/nowhere/go");
    let (mut site, coordinators) =
        Site::start(options(false, &["settings.heartbeat_s = 1"]), &patient_tool(never), &["alpha"]);
    let alpha = &coordinators[0];
    let mut worker = site.worker("w1", &[alpha]);
    site.app(alpha);
    let run = site.preview(alpha, "first").await;
    site.until_ledger("started").await;
    worker.process.signal(Signal::SIGTERM);
    while !worker.process.log().contains("draining") {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    worker.process.signal(Signal::SIGTERM);
    let status = worker.process.ended();
    assert!(status.success(), "{status}\n{}", worker.process.log());
    let view = site.run(alpha, &run).await;
    assert_eq!(view["run"]["status"], "canceled", "{view:#}");
    assert_eq!(site.installation.ledger().matches("interrupted").count(), 1);
}
