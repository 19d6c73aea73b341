//! A process dies at each step of `protocol.md` 1.4: every run ends by itself once the process is back, and no tool is
//! started twice for one attempt.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forgeplane_core::failpoint::{Failpoint, Process};
use forgeplane_testkit::installation::{self, Coordinator, InstallationOptions, Worker};
use serde_json::json;

use crate::support::{PATIENCE, Site, options};

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

/// The fault, by its row in the table of faults, that a crash at this place is.
const fn row(point: Failpoint) -> &'static str {
    match point {
        Failpoint::Admitted => "A2",
        Failpoint::Offered => "A3",
        Failpoint::Published => "A4",
        Failpoint::JobTaken | Failpoint::Prepared => "A5",
        Failpoint::IntentJournaled => "A6",
        Failpoint::ClaimCommitted => "A7",
        Failpoint::GrantReceived => "A8",
        Failpoint::StartedJournaled => "A9",
        Failpoint::ToolStarted => "A10",
        Failpoint::StateCommitted | Failpoint::ToolEnded => "A12",
        Failpoint::SignedJournaled => "A13",
        Failpoint::ReceiptCommitted | Failpoint::ReceiptReceived => "A14",
        Failpoint::ReceiptJournaled | Failpoint::Forgotten => "A15",
        Failpoint::Acknowledged => "A16",
    }
}

/// No tool was started twice for one attempt, and the store holds.
fn holds(site: &Site, what: &str) {
    let mut starts = BTreeMap::new();
    for line in site.installation.ledger().lines() {
        *starts.entry(line.to_owned()).or_insert(0_usize) += 1;
    }
    assert!(starts.values().all(|count| *count == 1), "{what}: a tool was started twice: {starts:#?}");
    if let Err(found) = site.installation.check() {
        panic!("{what}: the store does not hold\n{found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a2_to_a16_every_step_survives_a_crash_right_after_it() {
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
        let what = format!("{}, {point}", row(point));
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
        assert_eq!(status.signal(), Some(6), "{what}: it ended otherwise\n{}", process.log());
        process.command().env_remove(CRASH_AT);
        process.start(ready);
        // Whoever got no answer asks again, with the same key.
        assert_eq!(first.is_none(), point == Failpoint::Admitted, "{what}");
        let run = match first {
            Some(run) => run,
            None => site.client.try_ask(&alpha.api, Some((&key, ask.1)), &ask.0).await.unwrap(),
        };
        let run = run["id"].as_str().unwrap().to_owned();
        let view = site.until_run(&alpha, &run, |view| !view["run"]["finished_at"].is_null()).await;
        assert_eq!(view["run"]["status"], expected(point), "{what}: {view:#}");
        holds(&site, &what);
    }
    assert_eq!(Failpoint::ALL.len(), 18);
}

/// The pairs to try: by default those around claim and outcome; all of them, for as long as `FORGEPLANE_SOAK_MINUTES`
/// says, in a soak.
fn pairs() -> (Vec<(Failpoint, Failpoint)>, Instant) {
    let (points, time) =
        match std::env::var("FORGEPLANE_SOAK_MINUTES").ok().and_then(|text| text.parse::<u64>().ok()) {
            Some(minutes) => (Failpoint::ALL.to_vec(), Duration::from_secs(60 * minutes)),
            None => {
                let points = [
                    Failpoint::IntentJournaled,
                    Failpoint::ClaimCommitted,
                    Failpoint::SignedJournaled,
                    Failpoint::ReceiptCommitted,
                ];
                (points.to_vec(), Duration::from_secs(3_600))
            }
        };
    let pairs = points.iter().flat_map(|first| points.iter().map(|second| (*first, *second)));
    (pairs.collect(), Instant::now() + time)
}

/// Both processes of an installation, and where each dies next.
struct Mortal {
    alpha: Coordinator,
    worker: Worker,
    crashes: usize,
}

impl Mortal {
    fn process(&mut self, whose: Process) -> &mut installation::Process {
        match whose {
            Process::Coordinator => &mut self.alpha.process,
            Process::Worker => &mut self.worker.process,
        }
    }

    /// Where a process dies after its next start, if anywhere.
    fn arm(&mut self, whose: Process, at: Option<Failpoint>) {
        let command = self.process(whose).command();
        match at {
            Some(point) => command.env(CRASH_AT, point.as_str()),
            None => command.env_remove(CRASH_AT),
        };
    }

    fn start(&mut self, whose: Process) {
        match whose {
            Process::Coordinator => self.alpha.process.start("workers: "),
            // Not waited for: it needs a coordinator for its start, which may die of what it tells it.
            Process::Worker => self.worker.process.launch(),
        }
    }

    /// Starts whatever died again, to die at `next` if that is its own.
    fn revive(&mut self, next: Option<Failpoint>) {
        for whose in [Process::Coordinator, Process::Worker] {
            let process = self.process(whose);
            if let Some(status) = process.try_ended() {
                assert_eq!(status.signal(), Some(6), "it ended otherwise\n{}", process.log());
                self.crashes += 1;
                self.arm(whose, next.filter(|point| point.process() == whose));
                self.start(whose);
            }
        }
    }
}

/// A17: one crash, and then another one wherever that leads.
#[tokio::test(flavor = "multi_thread")]
async fn a17_pairs_of_crashes_are_survived() {
    println!("{}", pairs_of_crashes(|options| options).await);
}

/// A17 with everything in one file, and no broker.
#[tokio::test(flavor = "multi_thread")]
async fn a17_pairs_of_crashes_are_survived_on_sqlite() {
    let with = |options| InstallationOptions { nats: false, sqlite: true, ..options };
    println!("{}", pairs_of_crashes(with).await);
}

async fn pairs_of_crashes(with: impl Fn(InstallationOptions) -> InstallationOptions) -> String {
    let settings =
        ["settings.heartbeat_s = 1", "settings.worker_offline_after_s = 10", "log.filter = \"warn\""];
    let count = "[ \"$1\" = plan ] && echo $ATTEMPT >> $LEDGER; exit 0";
    let (mut site, mut coordinators) = Site::start(with(options(true, &settings)), count, &["alpha"]);
    let alpha = coordinators.remove(0);
    let worker = site.worker("w1", &[&alpha]);
    site.app(&alpha);
    let mut mortal = Mortal { alpha, worker, crashes: 0 };
    let (pairs, end) = pairs();
    let mut tried = 0;
    for (first, second) in pairs.into_iter().take_while(|_| Instant::now() < end) {
        let what = format!("{first}+{second}");
        tried += 1;
        for whose in [Process::Coordinator, Process::Worker] {
            // Not asked to end: the worker may still have something to deliver, and would wait for whoever takes it.
            mortal.process(whose).kill();
            // The other process waits for the second crash from the start.
            mortal.arm(whose, [first, second].into_iter().find(|point| point.process() == whose));
        }
        mortal.start(Process::Coordinator);
        mortal.start(Process::Worker);
        let same = (first.process() == second.process()).then_some(second);
        let begun = Instant::now();
        let body = json!({"instance": "app", "operation": "preview"});
        let mut next = same;
        loop {
            let before = mortal.crashes;
            mortal.revive(next);
            if mortal.crashes > before {
                // Whatever dies once more was armed for the last time.
                next = None;
            }
            let run = site.client.try_ask(&mortal.alpha.api, Some((&what, body.clone())), "/runs").await;
            if let Some(run) = run
                && let Some(id) = run["id"].as_str()
                && let Some(view) = site.client.try_ask(&mortal.alpha.api, None, &format!("/runs/{id}")).await
                && !view["run"]["finished_at"].is_null()
            {
                let status = view["run"]["status"].as_str().unwrap();
                assert!(status == expected(first) || status == expected(second), "{what}: {view:#}");
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: the run does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        holds(&site, &what);
        mortal.revive(None);
    }
    assert!(mortal.crashes > tried, "the places are not reached: {} crashes", mortal.crashes);
    let starts = site.installation.ledger().lines().count();
    format!("{tried} pairs, {} crashes, {starts} starts", mortal.crashes)
}
