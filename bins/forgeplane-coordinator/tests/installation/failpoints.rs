//! A process dies at each step of `protocol.md` 1.4: every run ends by itself once the process is back, and no tool is
//! started twice for one attempt.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use forgeplane_core::failpoint::{Failpoint, Process};
use serde_json::json;

use crate::support::{Site, options};

/// Where processes look for the place to die at.
const CRASH_AT: &str = "FORGEPLANE_CRASH_AT";

const SOURCE: &str = "resource \"terraform_data\" \"it\" { input = timestamp() }\n";

fn terraform() -> PathBuf {
    std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|dir| dir.join("terraform"))
        .find(|path| path.exists())
        .expect("these tests run a real Terraform: put `terraform` into PATH")
}

/// What the run ends as when a process dies there: the tool was started, or may have been, and nobody saw its end.
fn expected(point: Failpoint) -> &'static str {
    match point {
        Failpoint::StartedJournaled | Failpoint::ToolStarted | Failpoint::ToolEnded => "failed",
        _ => "succeeded",
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_survives_a_crash_right_after_it() {
    let settings =
        ["settings.heartbeat_s = 1", "settings.worker_offline_after_s = 10", "log.filter = \"warn\""];
    let (mut site, mut coordinators) = Site::start(options(true, &settings), "exit 0", &["alpha"]);
    let mut alpha = coordinators.remove(0);
    let count = format!(
        "case \"$1\" in plan|apply) echo $1 $ATTEMPT >> $LEDGER;; esac\nexec {} \"$@\"",
        terraform().display()
    );
    site.tool = site.installation.script("counting-terraform", &count);
    let mut worker = site.worker("w1", &[&alpha]);
    site.template(&alpha, SOURCE, &["--approvals", "0"]);
    for point in Failpoint::ALL.iter().copied() {
        // A run that writes state is a plan's promotion; what comes before it is not to be disturbed.
        let promoted = match point {
            Failpoint::StateCommitted => {
                let plan = site.create(&alpha, "plan", &format!("{point}-plan")).await;
                site.until_status(&alpha, &plan, "succeeded").await;
                Some(plan)
            }
            _ => None,
        };
        let (process, ready) = match point.process() {
            Process::Coordinator => (&mut alpha.process, "workers: "),
            Process::Worker => (&mut worker.process, "ready"),
        };
        process.terminate();
        process.command().env(CRASH_AT, point.as_str());
        process.start(ready);
        let ask = match &promoted {
            Some(plan) => (format!("/runs/{plan}/promote"), json!({})),
            None => ("/runs".to_owned(), json!({"instance": "app", "operation": "plan-only"})),
        };
        let key = format!("{point}");
        let first = site.client.try_ask(&alpha.api, Some((&key, ask.1.clone())), &ask.0).await;
        let process = match point.process() {
            Process::Coordinator => &mut alpha.process,
            Process::Worker => &mut worker.process,
        };
        let status = process.ended();
        assert_eq!(status.signal(), Some(6), "{point}: it ended otherwise\n{}", process.log());
        process.command().env_remove(CRASH_AT);
        process.start(ready);
        // Whoever got no answer asks again, with the same key.
        assert_eq!(first.is_none(), point == Failpoint::Admitted, "{point}");
        let run = match first {
            Some(run) => run,
            None => site.client.try_ask(&alpha.api, Some((&key, ask.1)), &ask.0).await.unwrap(),
        };
        let run = run["id"].as_str().unwrap().to_owned();
        let view = site.until_run(&alpha, &run, |view| !view["run"]["finished_at"].is_null()).await;
        assert_eq!(view["run"]["status"], expected(point), "{point}: {view:#}");
        let starts: BTreeMap<String, usize> =
            site.installation.ledger().lines().fold(BTreeMap::new(), |mut starts, line| {
                *starts.entry(line.to_owned()).or_default() += 1;
                starts
            });
        assert!(starts.values().all(|count| *count == 1), "{point}: a tool was started twice: {starts:#?}");
        if let Err(found) = site.installation.check() {
            panic!("{point}: the store does not hold\n{found}");
        }
    }
    assert_eq!(Failpoint::ALL.len(), 18);
}
