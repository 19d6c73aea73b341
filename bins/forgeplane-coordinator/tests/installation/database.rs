//! A database that answers and takes nothing, and who talks to it.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use crate::support::{Site, options, patient_tool, word};

/// B12: while the database takes nothing, what would change something is told to come back, what reads is answered, a tool
/// that runs goes on, and afterwards nothing is missing.
#[tokio::test(flavor = "multi_thread")]
async fn b12_a_database_that_only_reads_stops_nothing_for_good() {
    let (_dir, go) = word();
    let (mut site, coordinators) =
        Site::start(options(false, &["settings.heartbeat_s = 1"]), &patient_tool(&go), &["alpha"]);
    let alpha = &coordinators[0];
    let _worker = site.worker("w1", &[alpha]);
    site.app(alpha);
    let run = site.preview(alpha, "before").await;
    site.until_ledger("started").await;

    site.installation.postgres().restart_with(&["default_transaction_read_only=on"]);
    site.until_answers(alpha).await;
    let body = json!({"instance": "app", "operation": "preview"});
    let asked = site.client.try_ask(&alpha.api, Some(("during", body)), "/runs").await;
    assert!(asked.is_none(), "a database that only reads has taken {asked:?}");
    assert_eq!(site.run(alpha, &run).await["run"]["status"], "running");
    // The outcome cannot be stored yet.
    fs::write(&go, "").unwrap();
    site.until_ledger("ended").await;
    site.until_log(&alpha.process, "read-only transaction").await;

    site.installation.postgres().restart_with(&[]);
    site.until_answers(alpha).await;
    let view = site.until_status(alpha, &run, "succeeded").await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1);
    // Nothing of what was refused is there, and the same request is admitted now.
    let runs = site.get(alpha, "/runs").await;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "{runs:#}");
    let again = site.preview(alpha, "during").await;
    site.until_status(alpha, &again, "succeeded").await;
    site.installation.check().unwrap();
}

/// A1: the coordinator dies with a run that is not committed yet; whoever asks again with the same key makes one run.
#[tokio::test(flavor = "multi_thread")]
async fn a1_a_run_that_was_never_committed_is_made_by_the_same_request() {
    let (mut site, mut coordinators) = Site::start(options(false, &[]), "exit 0", &["alpha"]);
    let mut alpha = coordinators.remove(0);
    let _worker = site.worker("w1", &[&alpha]);
    site.app(&alpha);
    let lock = site.installation.postgres().lock_table("run_status");
    let (client, api) = (site.client.clone(), alpha.api.clone());
    let body = json!({"instance": "app", "operation": "preview"});
    let same = body.clone();
    let asking = tokio::spawn(async move { client.try_ask(&api, Some(("once", same)), "/runs").await });
    tokio::task::block_in_place(|| lock.until_waited_for());
    alpha.process.kill();
    assert!(asking.await.unwrap().is_none());
    drop(lock);
    alpha.process.start("workers: ");
    let run = site.client.try_ask(&alpha.api, Some(("once", body)), "/runs").await.unwrap();
    site.until_status(&alpha, run["id"].as_str().unwrap(), "succeeded").await;
    assert_eq!(site.get(&alpha, "/runs").await["items"].as_array().unwrap().len(), 1);
    site.installation.check().unwrap();
}

/// The ports of the other ends of a process's connections.
fn connected_to(pid: u32) -> BTreeSet<u16> {
    let sockets: BTreeSet<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let columns: Vec<_> = line.split_whitespace().collect();
            let (remote, inode) = (columns[2], columns[9]);
            let port = u16::from_str_radix(remote.split_once(':')?.1, 16).ok()?;
            (port != 0 && sockets.contains(inode)).then_some(port)
        })
        .collect()
}

/// B19: coordinators on one database do not know of each other, so nothing can be cut between them.
#[tokio::test(flavor = "multi_thread")]
async fn b19_coordinators_have_no_connection_that_a_partition_could_cut() {
    let (mut site, coordinators) = Site::start(options(true, &[]), "exit 0", &["alpha", "beta"]);
    let (alpha, beta) = (&coordinators[0], &coordinators[1]);
    let _worker = site.worker("w1", &[alpha, beta]);
    site.app(alpha);
    let run = site.preview(beta, "once").await;
    site.until_status(alpha, &run, "succeeded").await;
    let port = |url: &str| url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    let database = site.installation.postgres().port();
    for (one, other) in [(alpha, beta), (beta, alpha)] {
        let ends = connected_to(one.process.pid());
        assert!(ends.contains(&database), "{ends:?}");
        for listening in [&other.api, &other.workers, &other.probes] {
            assert!(!ends.contains(&port(listening)), "connected to {listening}");
        }
    }
}
