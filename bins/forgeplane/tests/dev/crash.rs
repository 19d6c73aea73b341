//! kill -9 in the middle of an apply, and what a restart makes of it.

use crate::support::{House, terraform};

const SLOW: &str = r#"
resource "terraform_data" "first" { input = "kept" }
resource "terraform_data" "second" {
  input = terraform_data.first.output
  provisioner "local-exec" { command = "echo started >> $LEDGER; echo sleeping; sleep 300" }
}
"#;

#[test]
fn a_killed_process_never_executes_a_run_twice_and_keeps_the_last_state_the_tool_saved() {
    let house = House::new();
    let dev = house.dev(&terraform());
    // An apply that completes, so that there is a state to keep.
    let ledger = house.directory.path().join("ledger");
    house.fake_terraform("exit 1");
    let source = SLOW.replace("$LEDGER", ledger.to_str().unwrap());
    house.app(&source.replace("sleep 300", "true"), &["--approvals", "0"]);
    let plan = house.create("operator", &["plan"]);
    house.ok("operator", &["run", "wait", &plan]);
    let apply = house.json("operator", &["run", "promote", &plan])["id"].as_str().unwrap().to_owned();
    house.ok("operator", &["run", "wait", &apply]);
    let before = house.ok("operator", &["state", "pull", "app"]);
    let starts = house.ledger().lines().count();

    // The next one hangs in the provisioner of a replaced resource, and everything is killed.
    let changed = source.replace("\"kept\"", "\"changed\"").replace(
        "input = terraform_data.first.output",
        "input            = terraform_data.first.output\n  triggers_replace = terraform_data.first.output",
    );
    let directory = house.directory.path().join("source");
    std::fs::write(directory.join("main.tf"), changed).unwrap();
    house.ok(
        "operator",
        &[
            "template",
            "push",
            directory.to_str().unwrap(),
            "--tool",
            "terraform",
            "--name",
            "app",
            "--approvals",
            "0",
        ],
    );
    house.ok("operator", &["instance", "create", "other", "--template", "app"]);
    let plan = house.json("operator", &["run", "create", "other", "plan"])["id"].as_str().unwrap().to_owned();
    house.ok("operator", &["run", "wait", &plan]);
    let apply = house.json("operator", &["run", "promote", &plan])["id"].as_str().unwrap().to_owned();
    house.until_logged(&apply, "sleeping");
    dev.kill();

    let dev = house.dev(&terraform());
    let ended = house.run("operator", &["run", "wait", &apply]);
    assert_eq!(ended.status.code(), Some(1));
    let detail = house.json("operator", &["run", "show", &apply]);
    assert_eq!(detail["run"]["status"], "failed");
    assert_eq!(detail["run"]["error"]["code"], "worker_restarted");
    assert_eq!(detail["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(house.ledger().lines().count(), starts + 1, "the tool was started again");
    let file = house.directory.path().join("evidence.json");
    house.ok("operator", &["run", "evidence", &apply, "--file", file.to_str().unwrap()]);
    house.ok("operator", &["verify", file.to_str().unwrap()]);
    assert_eq!(house.ok("operator", &["state", "pull", "app"]), before);
    // The instance is free again, and work goes on.
    let next =
        house.json("operator", &["run", "create", "other", "plan-only"])["id"].as_str().unwrap().to_owned();
    house.ok("operator", &["run", "wait", &next]);
    assert_eq!(dev.terminate(), Some(0));
}

#[test]
fn with_the_workers_journal_lost_the_run_shows_as_unresolved() {
    let house = House::new();
    let tool = house.fake_terraform("echo start >> \"$LEDGER\"; echo running; sleep 300");
    let dev = house.dev(&tool);
    house.app("", &["--approvals", "0"]);
    let run = house.create("operator", &["plan-only"]);
    house.until_logged(&run, "running");
    dev.kill();
    // A journal whose entry is gone, under the same identity: the coordinator notices at once.
    let journal = house.data().join("worker/journal");
    std::fs::remove_dir_all(&journal).unwrap();
    let dev = house.dev(&tool);
    let detail = house.until(&run, |detail| detail["unresolved"] == true);
    assert_eq!(detail["run"]["status"], "running");
    let why = house.ok("operator", &["run", "explain", &run]);
    assert!(why.contains("missing"), "{why}");
    house.fails("operator", &["run", "requeue", &run], 3, "unresolved_execution");
    assert_eq!(house.ledger(), "start\n");
    assert_eq!(dev.terminate(), Some(0));
}

#[test]
fn t001_terminating_interrupts_the_tool_once_and_signs_before_the_process_ends() {
    let house = House::new();
    let tool = house.fake_terraform(
        "trap 'echo interrupted >> \"$LEDGER\"; exit 1' INT; echo running; while :; do sleep 0.05; done",
    );
    let dev = house.dev(&tool);
    house.app("", &["--approvals", "0"]);
    let run = house.create("operator", &["plan-only"]);
    house.until_logged(&run, "running");
    assert_eq!(dev.terminate(), Some(0));
    assert_eq!(house.ledger(), "interrupted\n");
    let dev = house.dev(&tool);
    assert_eq!(house.json("operator", &["run", "show", &run])["run"]["status"], "canceled");
    drop(dev);
}
