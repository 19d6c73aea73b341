//! Certificates that expire and authorities that are replaced.

use std::fs;

use forgeplane_testkit::installation::Proxy;

use crate::support::{Site, options, passable, patient_tool};

/// B25: a certificate expires while a tool runs, and everything is replaced, also the authority: the worker comes back
/// without being started again, and the run ends as its tool did.
#[tokio::test(flavor = "multi_thread")]
async fn b25_certificates_and_their_authority_are_replaced_while_a_tool_runs() {
    let dir = passable();
    let go = dir.path().join("go");
    let soon = [
        "settings.heartbeat_s = 1",
        "settings.worker_offline_after_s = 3",
        "settings.unresolved_after_s = 5",
    ];
    let (mut site, coordinators) = Site::start(options(false, &soon), &patient_tool(&go), &["alpha"]);
    let alpha = &coordinators[0];
    let network = Proxy::to(alpha.workers.trim_start_matches("https://"));
    let worker = site.worker_behind("w1", alpha, &network);
    site.app(alpha);
    let run = site.preview(alpha, "first").await;
    site.until_ledger("started").await;

    let renewed = "new connections of workers are encrypted with the new certificate";
    site.installation.certify("alpha", true);
    site.until_log(&alpha.process, renewed).await;
    // The connection that was open needs no certificate any more; one that is made anew does.
    network.heal();
    site.until_run(alpha, &run, |view| view["unresolved"] == true).await;

    site.installation.replace_authority();
    site.until_log(&worker.process, "coordinators are reached with the new certificates").await;
    site.installation.certify("alpha", false);
    site.until_run(alpha, &run, |view| view["unresolved"] == false).await;
    assert_eq!(alpha.process.log().matches(renewed).count(), 2);
    fs::write(&go, "").unwrap();
    let view = site.until_status(alpha, &run, "succeeded").await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(site.installation.ledger().matches("started").count(), 1);
    site.installation.check().unwrap();
}
