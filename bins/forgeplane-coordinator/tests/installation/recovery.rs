//! Executions whose worker is missing, from detection to decision, with the command line as operators use it.

use std::path::{Path, PathBuf};

use forgeplane_testkit::installation::{Coordinator, Worker};
use serde_json::Value;

use crate::support::{SOON, Site, options, patient_tool, until, word};

/// A worker that executes a run.
struct Lost {
    site: Site,
    coordinator: Coordinator,
    worker: Worker,
    run: String,
    attempt: String,
    go: PathBuf,
    _dir: tempfile::TempDir,
}

impl Lost {
    async fn start() -> Self {
        let (dir, go) = word();
        let (mut site, mut coordinators) = Site::start(options(false, SOON), &patient_tool(&go), &["alpha"]);
        let coordinator = coordinators.remove(0);
        let worker = site.worker("w1", &[&coordinator]);
        site.app(&coordinator);
        let run = site.preview(&coordinator, "first").await;
        site.until_ledger("started").await;
        let view = site.run(&coordinator, &run).await;
        let attempt = view["attempts"][0]["id"].as_str().unwrap().to_owned();
        Self { site, coordinator, worker, run, attempt, go, _dir: dir }
    }

    fn journal(&self) -> PathBuf {
        self.site.installation.directory().join("workers/w1/state/journal")
    }

    /// The only entry of the journal.
    fn entry(&self) -> Option<(PathBuf, Value)> {
        let path = std::fs::read_dir(self.journal()).unwrap().next()?.unwrap().path();
        let entry = serde_json::from_str(&std::fs::read_to_string(&path).ok()?).ok()?;
        Some((path, entry))
    }

    /// Runs the command line as the owner of a token, and gives exit code, output and message.
    fn cli(&self, token: &Path, args: &[&str]) -> (Option<i32>, String) {
        let output = self.site.installation.cli(&self.coordinator, token).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text.into_owned())
    }

    fn ok(&self, args: &[&str]) -> String {
        let (code, text) = self.cli(&self.site.admin, args);
        assert_eq!(code, Some(0), "{args:?}: {text}");
        text
    }

    /// Waits until a heartbeat has named the claim.
    async fn until_named(&self) {
        let path = format!("/attempts/{}", self.attempt);
        until("no heartbeat names the claim", async || {
            let attempt = self.site.get(&self.coordinator, &path).await;
            if attempt["last_named"].is_null() { Err(format!("{attempt:#}")) } else { Ok(()) }
        })
        .await;
    }

    async fn until_unresolved(&self) {
        until("nobody misses the worker", async || {
            let list = self.ok(&["attempt", "list", "--unresolved"]);
            if list.contains(&self.attempt) { Ok(()) } else { Err(list) }
        })
        .await;
    }
}

/// `protocol.md` 1.11, 2: the outcome lies on the disk of a worker that does not come back.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_from_the_disk_of_a_dead_worker_ends_its_run() {
    let mut lost = Lost::start().await;
    lost.until_named().await;
    lost.coordinator.process.kill();
    std::fs::write(&lost.go, "").unwrap();
    let entry = until("the worker does not sign", async || match lost.entry() {
        Some((path, entry)) if entry["stage"] == "signed" => Ok(path),
        other => Err(format!("{other:?}")),
    })
    .await;
    lost.worker.process.kill();
    lost.coordinator.process.start("workers: ");
    lost.until_unresolved().await;
    let shown = lost.ok(&["attempt", "show", &lost.attempt]);
    for word in ["unresolved", "w1 (offline)", "missing since", "claim last named", "log"] {
        assert!(shown.contains(word), "{word} is not in\n{shown}");
    }
    assert!(lost.ok(&["run", "explain", &lost.run]).contains("attempt resolve"));

    // Not by everybody, not of another attempt, not changed.
    let operator = lost.site.installation.token(&lost.coordinator, "demo", "operator");
    let entry = entry.to_str().unwrap();
    let (code, text) = lost.cli(&operator, &["attempt", "submit", &lost.attempt, entry]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("error[forbidden]"), "{text}");
    let forged = lost.site.installation.directory().join("forged.json");
    let text = std::fs::read_to_string(entry).unwrap();
    let mut changed: Value = serde_json::from_str(&text).unwrap();
    let envelope = changed["envelope"].as_str().unwrap().replacen("\"sig\":\"", "\"sig\":\"AAAA", 1);
    changed["envelope"] = envelope.into();
    std::fs::write(&forged, changed.to_string()).unwrap();
    let (code, text) =
        lost.cli(&lost.site.admin, &["attempt", "submit", &lost.attempt, forged.to_str().unwrap()]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("error[invalid_evidence]"), "{text}");

    let done = lost.ok(&["attempt", "submit", &lost.attempt, entry]);
    assert!(done.contains("it ends the attempt"), "{done}");
    lost.site.until_status(&lost.coordinator, &lost.run, "succeeded").await;
    // The worker comes back after all, and hears that everything is known.
    lost.worker.process.start("ready");
    until("the worker does not forget", async || {
        lost.entry().map_or(Ok(()), |entry| Err(format!("{entry:?}")))
    })
    .await;
    assert_eq!(lost.site.installation.ledger().matches("started").count(), 1);
    lost.site.installation.check().unwrap();
}

/// `protocol.md` 1.11, 3: nobody will ever say what happened; somebody decides, and the run can be tried again.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_decides_and_the_run_is_tried_again_by_somebody_elses_hand() {
    let mut lost = Lost::start().await;
    lost.worker.process.kill();
    std::fs::remove_dir_all(lost.journal()).unwrap();
    lost.until_unresolved().await;
    let (code, text) = lost.cli(&lost.site.admin, &["run", "requeue", &lost.run]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("unresolved_execution"), "{text}");

    let decide =
        ["attempt", "resolve", &lost.attempt, "--outcome", "failed", "--reason", "the host burned down"];
    let operator = lost.site.installation.token(&lost.coordinator, "demo", "operator");
    let (code, text) = lost.cli(&operator, &decide);
    assert!(code == Some(3) && text.contains("error[forbidden]"), "{text}");
    let (code, text) = lost.cli(&lost.site.admin, &["attempt", "confirm", &lost.attempt]);
    assert!(code == Some(3) && text.contains("error[invalid_state]"), "{text}");
    let shown = lost.ok(&[&decide[..], &["--assert", "worker host is off or wiped"]].concat());
    for word in ["closed", "failed by admin", "the host burned down", "worker host is off"] {
        assert!(shown.contains(word), "{word} is not in\n{shown}");
    }
    let view = lost.site.run(&lost.coordinator, &lost.run).await;
    assert_eq!(view["run"]["error"]["code"], "resolved_by_operator");

    // The worker that was given up gets nothing; another one does.
    lost.ok(&["run", "requeue", &lost.run]);
    std::fs::write(&lost.go, "").unwrap();
    let _other = lost.site.worker("w2", &[&lost.coordinator]);
    let view = lost.site.until_status(&lost.coordinator, &lost.run, "succeeded").await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 2);
    assert!(lost.ok(&["worker", "list"]).contains("quarantined: execution_resolved_by_operator"));
    lost.site.installation.check().unwrap();
}

/// A backup of a worker's state is older than its attempts: what its journal says of them is not believed, and what came of
/// them is decided by somebody who looks.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_on_a_backup_of_its_state_says_nothing_of_what_it_once_held() {
    let mut lost = Lost::start().await;
    lost.worker.process.kill();
    lost.site.installation.put_back_state_of("w1");
    lost.worker.process.start("ready");
    lost.until_unresolved().await;
    let log = lost.worker.process.log();
    assert!(log.contains("this state directory is a copy"), "{log}");
    assert_eq!(lost.entry(), None);
    let shown = lost.ok(&["attempt", "show", &lost.attempt]);
    assert!(shown.contains("unresolved") && shown.contains("w1 ("), "{shown}");
    assert!(!shown.contains("w1 (offline)"), "it serves, but not as a witness\n{shown}");
    let decide =
        ["attempt", "resolve", &lost.attempt, "--outcome", "failed", "--reason", "nothing was created"];
    lost.ok(&decide);
    lost.site.until_status(&lost.coordinator, &lost.run, "failed").await;
    lost.site.installation.check().unwrap();
}

/// Nobody calls an execution that nobody saw end a success by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn a_success_that_no_worker_tells_is_told_by_two_people() {
    let mut lost = Lost::start().await;
    lost.worker.process.kill();
    std::fs::remove_dir_all(lost.journal()).unwrap();
    lost.until_unresolved().await;
    let propose =
        ["attempt", "resolve", &lost.attempt, "--outcome", "succeeded", "--reason", "it is all there"];
    let shown = lost.ok(&propose);
    assert!(shown.contains("proposed") && shown.contains("unresolved"), "{shown}");
    assert_eq!(lost.site.run(&lost.coordinator, &lost.run).await["run"]["status"], "running");
    let confirm = ["attempt", "confirm", &lost.attempt];
    let (code, text) = lost.cli(&lost.site.admin, &confirm);
    assert!(code == Some(3) && text.contains("error[forbidden]"), "{text}");
    let second = lost.site.installation.token_of(&lost.coordinator, "demo", "second", "admin");
    let (code, text) = lost.cli(&second, &confirm);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("succeeded by admin and second: it is all there"), "{text}");
    lost.site.until_status(&lost.coordinator, &lost.run, "succeeded").await;
    lost.site.installation.check().unwrap();
}
