//! Many who write at once into one file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use forgeplane_testkit::installation::InstallationOptions;
use serde_json::json;

use crate::support::{Site, options};

const WRITERS: usize = 50;
const RUNS_EACH: usize = 20;

/// B16: fifty clients of a single coordinator create runs while a worker executes them: nobody is told to come back.
#[tokio::test(flavor = "multi_thread")]
async fn b16_fifty_writers_on_sqlite_are_all_served() {
    let with = InstallationOptions {
        sqlite: true,
        ..options(false, &["settings.heartbeat_s = 1", "log.filter = \"warn\""])
    };
    let (mut site, coordinators) = Site::start(with, "exit 0", &["alpha"]);
    let alpha = &coordinators[0];
    let _worker = site.worker("w1", &[alpha]);
    site.app(alpha);
    let together = Arc::new(tokio::sync::Barrier::new(WRITERS));
    let writing: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (client, api, together) = (site.client.clone(), alpha.api.clone(), Arc::clone(&together));
            tokio::spawn(async move {
                together.wait().await;
                let mut made = Vec::new();
                for number in 0..RUNS_EACH {
                    let (key, body) =
                        (format!("{writer}-{number}"), json!({"instance": "app", "operation": "preview"}));
                    let begun = Instant::now();
                    let run = client.try_ask(&api, Some((&key, body)), "/runs").await;
                    let run = run.expect("the run is admitted at once");
                    made.push((begun.elapsed(), run["id"].as_str().unwrap().to_owned()));
                }
                made
            })
        })
        .collect();
    let made: Vec<_> =
        futures_util::future::join_all(writing).await.into_iter().flat_map(Result::unwrap).collect();
    let mut took: Vec<_> = made.iter().map(|(took, _)| *took).collect();
    took.sort();
    println!("{} runs admitted; 99 % within {:?} each", made.len(), took[made.len() * 99 / 100]);
    let ids: BTreeSet<_> = made.iter().map(|(_, id)| id.clone()).collect();
    assert_eq!(ids.len(), WRITERS * RUNS_EACH);
    site.until_status(alpha, &made[0].1, "succeeded").await;
    site.installation.check().unwrap();
}
