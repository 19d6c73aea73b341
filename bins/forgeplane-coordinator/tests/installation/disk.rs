//! Disks that are full.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use forgeplane_testkit::installation::{Coordinator, InstallationOptions, own_mounts, small_disk};
use serde_json::json;

use crate::support::{Site, options, passable, patient_tool, word};

/// Leaves no room on the disk that a file is to be on.
fn fill(file: &Path) {
    let mut filling = File::create(file).unwrap();
    for block in [1 << 16, 1 << 12, 1] {
        while filling.write_all(&vec![0; block]).is_ok() {}
    }
}

/// A tool that waits, a full disk, and room again: nothing is half there, and everything goes on.
async fn goes_on_after_a_full_disk(site: &Site, alpha: &Coordinator, go: &Path, disk: &Path) {
    let run = site.preview(alpha, "before").await;
    site.until_ledger("started").await;
    let filling = disk.join("filling");
    fill(&filling);
    // What still fits into the pages there are is taken; what does not is refused, and its key stays free.
    let mut taken = vec![run.clone()];
    let refused = loop {
        let key = format!("during-{}", taken.len());
        let body = json!({"instance": "app", "operation": "preview"});
        match site.client.try_ask(&alpha.api, Some((&key, body)), "/runs").await {
            Some(run) => taken.push(run["id"].as_str().unwrap().to_owned()),
            None => break key,
        }
        assert!(taken.len() < 10_000, "the disk is never full");
    };
    let answered = site.get(alpha, &format!("/runs/{run}")).await;
    assert_eq!(answered["run"]["status"], "running", "what reads is answered");
    // The outcome comes while there is no room, and is kept by the worker until there is.
    fs::write(go, "").unwrap();
    site.until_ledger("ended").await;

    fs::remove_file(&filling).unwrap();
    taken.push(site.preview(alpha, &refused).await);
    for run in &taken {
        let view = site.until_status(alpha, run, "succeeded").await;
        assert_eq!(view["attempts"].as_array().unwrap().len(), 1);
    }
    assert_eq!(site.installation.ledger().matches("started").count(), taken.len());
    site.installation.check().unwrap();
}

/// B12: the database's tables are on a disk that is full.
#[tokio::test(flavor = "multi_thread")]
async fn b12_a_full_disk_of_the_database_stops_nothing_for_good() {
    let (_dir, go) = word();
    own_mounts();
    let (mut site, mut coordinators) =
        Site::start(options(false, &["settings.heartbeat_s = 1"]), &patient_tool(&go), &["alpha"]);
    let mut alpha = coordinators.remove(0);
    alpha.process.terminate();
    let disk = site.installation.directory().join("small");
    fs::create_dir(&disk).unwrap();
    // The server does not run yet with what is mounted for it.
    site.installation.postgres().stop();
    small_disk(&disk, 40 << 20);
    site.installation.postgres().resume();
    site.installation.postgres().move_tables_to(&disk.join("tables"));
    alpha.process.start("workers: ");
    let _worker = site.worker("w1", &[&alpha]);
    site.app(&alpha);
    goes_on_after_a_full_disk(&site, &alpha, &go, &disk).await;
}

/// B12, with everything in one file.
#[tokio::test(flavor = "multi_thread")]
async fn b12_a_full_disk_of_a_single_coordinator_stops_nothing_for_good() {
    let (_dir, go) = word();
    own_mounts();
    let with = InstallationOptions { sqlite: true, ..options(false, &["settings.heartbeat_s = 1"]) };
    let (mut site, mut coordinators) = Site::start(with, &patient_tool(&go), &["alpha"]);
    let mut alpha = coordinators.remove(0);
    alpha.process.terminate();
    let records = site.installation.records();
    small_disk(&records, 8 << 20);
    alpha.process.start("workers: ");
    let _worker = site.worker("w1", &[&alpha]);
    site.app(&alpha);
    goes_on_after_a_full_disk(&site, &alpha, &go, &records).await;
}

/// E17: a tool fills the disk that workspaces, spool and journal share. It fails, its outcome is signed and told, and the
/// worker takes nothing new while there is no room, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn e17_a_tool_that_fills_the_workers_disk_fails_alone() {
    let dir = passable();
    let keep = dir.path().join("keep");
    own_mounts();
    let tool = format!(
        "[ \"$1\" = plan ] || exit 0\necho started $ATTEMPT >> $LEDGER\n[ -e {keep} ] || exit 0\n\
         dd if=/dev/zero of=filling bs=65536 2>&1\ncat filling >/dev/null; echo full $ATTEMPT >> $LEDGER\n\
         while [ -e {keep} ]; do sleep 0.05; done; exit 3",
        keep = keep.display()
    );
    let (mut site, coordinators) =
        Site::start(options(false, &["settings.heartbeat_s = 1"]), &tool, &["alpha"]);
    let alpha = &coordinators[0];
    let mut worker = site.worker("w1", &[alpha]);
    worker.process.terminate();
    small_disk(&site.installation.directory().join("workers/w1"), 16 << 20);
    site.installation.reconfigure("w1", "[coordinator]", "min_free_mib = 4\n[coordinator]");
    worker.process.start("ready");
    site.app(alpha);
    fs::write(&keep, "").unwrap();
    let run = site.preview(alpha, "first").await;
    site.until_ledger("full").await;
    let workers = site.until_workers(alpha, |workers| !workers[0]["short_of"].is_null()).await;
    let why = workers[0]["short_of"].as_str().unwrap();
    assert!(why.contains("0 MiB are free") && why.contains("4 are wanted"), "{why}");
    assert_eq!(workers[0]["status"], "draining");
    let next = site.preview(alpha, "second").await;
    fs::remove_file(&keep).unwrap();
    let view = site.until_status(alpha, &run, "failed").await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1, "{view:#}");
    site.until_log(&worker.process, "the room that was kept for the journal is used").await;
    // The workspace is gone, and its room is there again.
    site.until_status(alpha, &next, "succeeded").await;
    site.until_workers(alpha, |workers| workers[0]["short_of"].is_null()).await;
    assert_eq!(site.installation.ledger().matches("started").count(), 2);
    site.installation.check().unwrap();
}
