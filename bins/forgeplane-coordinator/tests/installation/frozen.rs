//! Processes that stand still, as on a suspended or starved machine, and then go on as if nothing had been.

use std::time::Instant;

use nix::sys::signal::Signal;

use crate::support::{PATIENCE, SOON, Site, options, patient_tool, word};

/// B21: a worker that stood still for longer than it is waited for comes back with its claim, and its outcome counts.
#[tokio::test(flavor = "multi_thread")]
async fn b21_a_worker_that_stood_still_is_missed_and_comes_back_with_its_claim() {
    let (_dir, go) = word();
    let (mut site, coordinators) = Site::start(options(false, SOON), &patient_tool(&go), &["alpha"]);
    let alpha = &coordinators[0];
    let worker = site.worker("w1", &[alpha]);
    let other = site.worker("w2", &[alpha]);
    site.app(alpha);
    let run = site.preview(alpha, "first").await;
    site.until_ledger("started").await;
    let view = site.run(alpha, &run).await;
    let holder = if view["attempts"][0]["worker"] == *worker.id { &worker } else { &other };
    holder.process.signal(Signal::SIGSTOP);
    site.until_run(alpha, &run, |view| view["unresolved"] == true).await;
    holder.process.signal(Signal::SIGCONT);
    site.until_run(alpha, &run, |view| view["unresolved"] == false).await;
    std::fs::write(&go, "").unwrap();
    let view = site.until_status(alpha, &run, "succeeded").await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1);
    // The other worker was idle all the time, and was not given the run.
    assert_eq!(site.installation.ledger().matches("started").count(), 1);
    site.installation.check().unwrap();
}

/// B22: a coordinator that stood still finds the world changed, and does no harm with what it remembers.
#[tokio::test(flavor = "multi_thread")]
async fn b22_a_coordinator_that_stood_still_does_no_harm_when_it_goes_on() {
    let fast = ["settings.heartbeat_s = 1", "settings.worker_offline_after_s = 45"];
    let count = "[ \"$1\" = plan ] && echo $ATTEMPT >> $LEDGER; exit 0";
    let (mut site, coordinators) = Site::start(options(true, &fast), count, &["alpha", "beta"]);
    let (alpha, beta) = (&coordinators[0], &coordinators[1]);
    let _worker = site.worker("w1", &[alpha, beta]);
    site.app(beta);
    let run = site.preview(beta, "before").await;
    site.until_status(beta, &run, "succeeded").await;
    alpha.process.signal(Signal::SIGSTOP);
    // Its worker notices by itself and goes to the other one.
    let begun = Instant::now();
    for number in 0..5 {
        let run = site.preview(beta, &format!("during-{number}")).await;
        site.until_status(beta, &run, "succeeded").await;
    }
    assert!(begun.elapsed() < PATIENCE, "it took {:?}", begun.elapsed());
    alpha.process.signal(Signal::SIGCONT);
    for number in 0..5 {
        let run = site.preview(alpha, &format!("after-{number}")).await;
        site.until_status(alpha, &run, "succeeded").await;
    }
    let starts: std::collections::BTreeSet<String> =
        site.installation.ledger().lines().map(str::to_owned).collect();
    assert_eq!((starts.len(), site.installation.ledger().lines().count()), (11, 11));
    site.installation.check().unwrap();
}
