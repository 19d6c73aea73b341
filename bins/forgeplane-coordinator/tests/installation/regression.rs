//! A database that has gone back in time.

use serde_json::json;

use crate::support::{Site, options, patient_tool, word};

/// B13: after a restore the workers remember what the database has forgotten. That is noticed, nothing is started before
/// an administrator has looked, and no fence is given a second time.
#[tokio::test(flavor = "multi_thread")]
async fn b13_a_database_that_lost_commits_is_noticed_and_nothing_is_started() {
    let (_dir, go) = word();
    let soon = ["settings.heartbeat_s = 1"];
    let (mut site, coordinators) = Site::start(options(false, &soon), &patient_tool(&go), &["alpha"]);
    let alpha = &coordinators[0];
    let worker = site.worker("w1", &[alpha]);
    site.app(alpha);
    let backup = site.installation.postgres().back_up();
    site.until_answers(alpha).await;

    let forgotten = site.preview(alpha, "forgotten").await;
    site.until_ledger("started").await;
    let attempt = site.run(alpha, &forgotten).await["attempts"][0].clone();
    let fence = attempt["fence"].as_u64().unwrap();
    site.installation.postgres().restore(&backup);
    site.until_answers(alpha).await;
    let lost = site.until_workers(alpha, |workers| !workers[0]["worker"]["lost_fence"].is_null()).await;
    assert_eq!(lost[0]["worker"]["lost_fence"], fence);
    assert!(alpha.process.log().contains("the store has lost commits"));

    // Another worker is free, and yet nothing is started.
    let _other = site.worker("w2", &[alpha]);
    let run = site.preview(alpha, "afterwards").await;
    let explained = site.get(alpha, &format!("/runs/{run}/explain")).await;
    assert_eq!(explained["waiting"]["code"], "commits_lost", "{explained:#}");

    // The outcome of what is forgotten is refused, and kept on the worker for whoever looks.
    std::fs::write(&go, "").unwrap();
    site.until_log(&worker.process, "the coordinator refuses the outcome for good").await;
    assert_eq!(site.run(alpha, &run).await["run"]["status"], "queued");

    let path = format!("/workers/{}/accept-loss", worker.id);
    site.post(alpha, &path, json!({"reason": "restored; w1 only planned"})).await;
    let view = site.until_status(alpha, &run, "succeeded").await;
    let next = view["attempts"][0]["fence"].as_u64().unwrap();
    assert!(next > fence, "fence {next} was given out although {fence} is in a worker's journal");
    let workers = site.until_workers(alpha, |workers| workers.len() == 2).await;
    assert!(workers.iter().all(|w| w["worker"]["lost_fence"].is_null()), "{workers:#?}");
    site.installation.check().unwrap();
}
