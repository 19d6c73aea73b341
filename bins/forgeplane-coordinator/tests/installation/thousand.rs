//! A thousand runs through two coordinators and eight workers, while a coordinator, the broker and the database are
//! killed once each: every run ends exactly once, and no tool is started twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Site, options};

const RUNS: usize = 1_000;
const WORKERS: usize = 8;
/// Longer than all of it takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Creates a run, asking again (with the same key) until somebody has admitted it.
async fn create(
    site: &Site,
    apis: &[forgeplane_testkit::installation::Coordinator],
    number: usize,
) -> String {
    let key = format!("run-{number}");
    for turn in number.. {
        let body = json!({"instance": "app", "operation": "preview"});
        match site.try_ask(&apis[turn % apis.len()], Some((&key, body)), "/runs").await {
            Some(run) => return run["id"].as_str().unwrap().to_owned(),
            None => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    unreachable!("the turns do not end");
}

/// Every run there is, by page.
async fn all(site: &Site, at: &forgeplane_testkit::installation::Coordinator) -> Option<Vec<Value>> {
    let (mut runs, mut after) = (Vec::new(), String::new());
    loop {
        let page = site.try_ask(at, None, &format!("/runs?limit=200{after}")).await?;
        runs.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return Some(runs),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_runs_end_once_each_while_everything_is_killed_once() {
    let settings =
        ["settings.heartbeat_s = 1", "settings.worker_offline_after_s = 15", "log.filter = \"warn\""];
    let count = "[ \"$1\" = plan ] && echo $ATTEMPT >> $LEDGER; exit 0";
    let (mut site, mut coordinators) = Site::start(options(true, &settings), count, &["alpha", "beta"]);
    let _workers: Vec<_> = (0..WORKERS)
        .map(|n| site.worker(&format!("w{n}"), &[&coordinators[n % 2], &coordinators[(n + 1) % 2]]))
        .collect();
    site.app(&coordinators[0]);
    let begun = Instant::now();
    let made: BTreeSet<String> = {
        let next = AtomicUsize::new(0);
        let (site, coordinators, next) = (&site, &coordinators, &next);
        let creators = (0..4).map(|_| async move {
            let mut made = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= RUNS / 2 {
                    return made;
                }
                made.push(create(site, coordinators, number).await);
            }
        });
        futures_util::future::join_all(creators).await.into_iter().flatten().collect()
    };
    let ended = async |site: &Site, coordinators: &[forgeplane_testkit::installation::Coordinator]| {
        let runs = all(site, &coordinators[1]).await.or(all(site, &coordinators[0]).await)?;
        Some(runs.iter().filter(|run| run["status"] == "succeeded").count())
    };
    let until =
        async |site: &Site, coordinators: &[forgeplane_testkit::installation::Coordinator], many: usize| {
            while ended(site, coordinators).await.is_none_or(|count| count < many) {
                assert!(begun.elapsed() < PATIENCE, "not {many} of {RUNS} runs ended");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
    until(&site, &coordinators, 100).await;
    println!("a coordinator is killed after {:?}", begun.elapsed());
    coordinators[0].process.kill();
    // The other half is asked for while one is gone; the other answers.
    let mut made = made;
    for number in RUNS / 2..RUNS {
        made.insert(create(&site, &coordinators, number).await);
    }
    coordinators[0].process.start("workers: ");
    until(&site, &coordinators, 300).await;
    println!("the broker is killed after {:?}", begun.elapsed());
    site.installation.nats.as_mut().unwrap().kill();
    tokio::time::sleep(Duration::from_secs(1)).await;
    site.installation.nats.as_mut().unwrap().restart();
    until(&site, &coordinators, 500).await;
    println!("the database is killed after {:?}", begun.elapsed());
    site.installation.postgres.kill();
    site.installation.postgres.resume();
    until(&site, &coordinators, RUNS).await;
    println!("{RUNS} runs ended after {:?}", begun.elapsed());

    let runs = all(&site, &coordinators[0]).await.unwrap();
    let ids: BTreeSet<String> = runs.iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!((ids.len(), &ids), (RUNS, &made), "every request made one run");
    assert!(runs.iter().all(|run| run["status"] == "succeeded"));
    // The tool was started once for each run, and never twice for one attempt.
    let ledger = site.installation.ledger();
    let mut starts = BTreeMap::new();
    for attempt in ledger.lines() {
        *starts.entry(attempt).or_insert(0) += 1;
    }
    assert!(starts.values().all(|count| *count == 1), "an attempt was started twice");
    assert_eq!(starts.len(), RUNS);
    println!("{}", site.installation.check().unwrap());
}
