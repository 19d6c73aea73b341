//! Coordinators that are not where they were.

use std::fs;
use std::path::Path;

use forgeplane_testkit::installation::{Proxy, in_the_place_of, own_mounts};

use crate::support::{Site, options, patient_tool, word};

/// B26: the name that a worker knows moves to another coordinator while a tool runs.
#[tokio::test(flavor = "multi_thread")]
async fn b26_a_name_that_moves_to_another_coordinator_is_followed() {
    let (dir, go) = word();
    let hosts = dir.path().join("hosts");
    let named = |address: &str| fs::write(&hosts, format!("{address} coordinator.test\n")).unwrap();
    named("127.0.0.1");
    own_mounts();
    in_the_place_of(Path::new("/etc/hosts"), &hosts);
    let soon = ["settings.heartbeat_s = 1", "settings.worker_offline_after_s = 5"];
    let (mut site, mut coordinators) =
        Site::start(options(false, &soon), &patient_tool(&go), &["alpha", "beta"]);
    let beta = coordinators.pop().unwrap();
    let mut alpha = coordinators.pop().unwrap();
    let [to_alpha, to_beta] = [&alpha, &beta].map(|it| it.workers.trim_start_matches("https://").to_owned());
    // The same port at two addresses.
    let first = Proxy::to(&to_alpha);
    let second = Proxy::at(&format!("127.0.0.2:{}", first.address().port()), &to_beta);
    let mut worker = site.worker_behind("w1", &alpha, &first);
    worker.process.terminate();
    site.installation.reconfigure("w1", "https://127.0.0.1:", "https://coordinator.test:");
    worker.process.start("ready");
    site.app(&alpha);
    let run = site.preview(&alpha, "first").await;
    site.until_ledger("started").await;

    named("127.0.0.2");
    alpha.process.kill();
    first.heal();
    site.until_run(&beta, &run, |view| view["unresolved"] == false).await;
    fs::write(&go, "").unwrap();
    let view = site.until_status(&beta, &run, "succeeded").await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1);
    let next = site.preview(&beta, "second").await;
    site.until_status(&beta, &next, "succeeded").await;
    assert_eq!(site.installation.ledger().matches("started").count(), 2);
    site.installation.check().unwrap();
    drop(second);
}
