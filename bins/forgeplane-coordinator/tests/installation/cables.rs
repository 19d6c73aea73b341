//! A worker on a host of its own, at the end of a cable that is pulled.

use std::fs;

use forgeplane_testkit::installation::{FarHost, own_network};

use crate::support::{SOON, Site, options, patient_tool, word};

/// B17 and B20 by the kernel's own means: packets are gone, in both directions, and no connection is told.
#[tokio::test]
async fn b17_b20_a_cable_that_is_pulled_stops_no_tool() {
    own_network();
    let far = FarHost::connect();
    let (_dir, go) = word();
    let (mut site, mut coordinators) = Site::start(options(false, SOON), &patient_tool(&go), &["alpha"]);
    let mut alpha = coordinators.remove(0);
    let mut worker = site.worker("w1", &[&alpha]);
    worker.process.terminate();
    alpha.process.terminate();
    // Workers are served at this end of the cable, and the worker moves to the other one.
    let here = alpha.workers.replace("127.0.0.1", FarHost::HERE);
    for (name, url) in [("alpha", (&alpha.workers, &here)), ("w1", (&alpha.workers, &here))] {
        let bare = |url: &str| url.trim_start_matches("https://").to_owned();
        site.installation.reconfigure(name, &bare(url.0), &bare(url.1));
    }
    alpha.process.start("workers: ");
    worker.process.run_by(&far.enter());
    worker.process.start("ready");
    site.app(&alpha);
    let run = site.preview(&alpha, "first").await;
    site.until_ledger("started").await;

    far.unplug();
    site.until_run(&alpha, &run, |view| view["unresolved"] == true).await;
    fs::write(&go, "").unwrap();
    site.until_ledger("ended").await;
    assert_eq!(site.run(&alpha, &run).await["run"]["status"], "running");
    far.plug();
    let view = site.until_status(&alpha, &run, "succeeded").await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1);

    // Pulled and plugged in again while nothing happens: the worker is there for the next run.
    far.unplug();
    site.until_workers(&alpha, |workers| workers[0]["status"] == "offline").await;
    far.plug();
    let run = site.preview(&alpha, "second").await;
    site.until_status(&alpha, &run, "succeeded").await;
    assert_eq!(site.installation.ledger().matches("started").count(), 2);
    site.installation.check().unwrap();
}
