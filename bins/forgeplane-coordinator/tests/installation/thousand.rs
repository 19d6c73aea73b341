//! A thousand runs through two coordinators and eight workers, while a coordinator, the broker and the database are
//! killed once each: every run ends exactly once, and no tool is started twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Client, Site, options};

const RUNS: usize = 1_000;
const WORKERS: usize = 8;
/// Longer than all of it takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(900);

/// Asks for runs until all are admitted; each again, with the same key, until somebody has answered.
async fn create(client: Client, apis: [String; 2], next: Arc<AtomicUsize>) -> Vec<String> {
    let mut made = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= RUNS {
            return made;
        }
        let key = format!("run-{number}");
        let mut turn = number;
        let run = loop {
            let body = json!({"instance": "app", "operation": "preview"});
            if let Some(run) = client.try_ask(&apis[turn % 2], Some((&key, body)), "/runs").await {
                break run;
            }
            turn += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        made.push(run["id"].as_str().unwrap().to_owned());
    }
}

/// Every run there is, by page, from whichever coordinator answers.
async fn all(client: &Client, apis: &[String; 2]) -> Option<Vec<Value>> {
    for api in apis {
        let (mut runs, mut after) = (Vec::new(), String::new());
        while let Some(page) = client.try_ask(api, None, &format!("/runs?limit=200{after}")).await {
            runs.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return Some(runs),
            }
        }
    }
    None
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
    let apis = [coordinators[0].api.clone(), coordinators[1].api.clone()];
    let client = site.client.clone();
    let begun = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let creators: Vec<_> =
        (0..4).map(|_| tokio::spawn(create(client.clone(), apis.clone(), Arc::clone(&next)))).collect();
    let until = async |many: usize| {
        loop {
            let runs = all(&client, &apis).await.unwrap_or_default();
            let ended = runs.iter().filter(|run| run["status"] == "succeeded").count();
            if ended >= many {
                return ended;
            }
            assert!(begun.elapsed() < PATIENCE, "{ended} of {RUNS} runs ended, {many} were waited for");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };

    let ended = until(100).await;
    println!("{:.1?}: {ended} runs ended; a coordinator is killed", begun.elapsed());
    coordinators[0].process.kill();
    let ended = until(300).await;
    println!("{:.1?}: {ended} runs ended; it comes back", begun.elapsed());
    coordinators[0].process.start("workers: ");
    let ended = until(400).await;
    println!("{:.1?}: {ended} runs ended; the broker is killed and comes back", begun.elapsed());
    site.installation.nats.as_mut().unwrap().restart();
    let ended = until(700).await;
    println!("{:.1?}: {ended} runs ended; the database is killed and comes back", begun.elapsed());
    site.installation.postgres().kill();
    site.installation.postgres().resume();
    until(RUNS).await;
    println!("{:.1?}: all runs ended", begun.elapsed());

    let made = futures_util::future::join_all(creators).await.into_iter().flat_map(Result::unwrap);
    let made: BTreeSet<String> = made.collect();
    let runs = all(&client, &apis).await.unwrap();
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
