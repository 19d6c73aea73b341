//! The main job by command line: plan, review, promote, approve, apply, look at it.

use std::process::Command;

use serde_json::json;

use crate::support::{House, terraform};

const HELLO: &str = r#"
variable "who" { default = "world" }
resource "terraform_data" "greeting" { input = "hello ${var.who}" }
output "said" { value = terraform_data.greeting.output }
output "hidden" {
  value     = "quiet"
  sensitive = true
}
"#;

#[test]
fn a_run_goes_from_plan_to_a_verified_apply() {
    let house = House::new();
    let _dev = house.dev(&terraform());
    house.app(HELLO, &[]);
    let plan = house.create("operator", &["plan", "--input", "who=you"]);
    assert!(house.ok("operator", &["run", "wait", &plan]).contains("1 to add, 0 to change, 0 to destroy"));
    assert!(house.ok("operator", &["run", "plan", &plan]).contains("hello you"));

    let apply = house.json("operator", &["run", "promote", &plan]);
    let (apply, approval) = (apply["id"].as_str().unwrap(), apply["approval"].as_str().unwrap());
    assert!(house.ok("operator", &["run", "explain", apply]).contains("approval decision"));
    house.fails("operator", &["run", "promote", &plan], 3, "already_promoted");
    house.fails("operator", &["approval", "approve", approval], 3, "forbidden");
    assert!(house.ok("approver", &["approval", "list", "--status", "pending"]).contains(approval));
    house.ok("approver", &["approval", "approve", approval, "--reason", "fine"]);
    house.fails("approver", &["approval", "approve", approval], 3, "already_decided");
    house.ok("operator", &["run", "wait", apply]);

    let log = house.ok("operator", &["run", "logs", apply]);
    assert!(log.contains("Apply complete!"), "{log}");
    assert_eq!(house.ok("operator", &["run", "logs", apply, "--follow"]), log);
    let shown = house.ok("operator", &["instance", "show", "app"]);
    assert!(shown.contains("said = \"hello you\"") && shown.contains("hidden = (sensitive)"), "{shown}");
    assert!(!shown.contains("quiet"));
    assert!(house.ok("operator", &["state", "pull", "app"]).contains("hello you"));
    house.fails("approver", &["state", "pull", "app"], 3, "forbidden");
    let events = house.ok("operator", &["run", "events", apply]);
    for event in [
        "run.created",
        "approval.pending",
        "approval.approved",
        "attempt.offered",
        "run.running",
        "state.written",
        "run.succeeded",
    ] {
        assert!(events.contains(event), "{event} is missing:\n{events}");
    }
    house.fails("operator", &["run", "promote", &plan], 3, "stale_plan");

    let file = house.directory.path().join("evidence.json");
    let file = file.to_str().unwrap();
    house.ok("operator", &["run", "evidence", apply, "--file", file]);
    let verified = house.ok("operator", &["verify", file]);
    assert!(verified.contains("approved by approver"), "{verified}");
    let forged = std::fs::read_to_string(file).unwrap().replacen("\"approved\"", "\"rejected\"", 1);
    assert!(forged.contains("\"rejected\""));
    let text = std::fs::read_to_string(file).unwrap();
    let envelope = text.find("\"payload\": \"").unwrap() + 12;
    let mut bytes = text.into_bytes();
    bytes[envelope + 40] = if bytes[envelope + 40] == b'A' { b'B' } else { b'A' };
    std::fs::write(file, bytes).unwrap();
    house.fails("operator", &["verify", file], 3, "evidence_invalid");
}

#[test]
fn a_rejected_run_is_canceled_and_a_failed_one_is_exit_code_one() {
    let house = House::new();
    let _dev = house.dev(&terraform());
    house.app(HELLO, &[]);
    let destroy = house.json("operator", &["run", "create", "app", "destroy", "--mode", "perform"]);
    let approval = destroy["approval"].as_str().unwrap();
    house.ok("approver", &["approval", "reject", approval, "--reason", "not today"]);
    let output = house.run("operator", &["run", "wait", destroy["id"].as_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("rejected"));

    let directory = house.directory.path().join("broken");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("main.tf"), "resource {").unwrap();
    house.ok("operator", &["template", "push", directory.to_str().unwrap(), "--tool", "terraform"]);
    house.ok("operator", &["instance", "create", "broken", "--template", "broken"]);
    let output = house.run("operator", &["run", "create", "broken", "plan", "--wait"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("tool_failed"));
}

#[test]
fn explain_names_what_a_queued_run_waits_for() {
    let house = House::new();
    let _dev = house.dev(&terraform());
    house.app(HELLO, &["--pool", "elsewhere"]);
    let run = house.create("operator", &["plan"]);
    let why = house.ok("operator", &["run", "explain", &run]);
    assert!(why.contains("no worker in pool `elsewhere`") && why.contains("run cancel"), "{why}");
    assert_eq!(house.json("operator", &["run", "explain", &run])["waiting"]["code"], "no_worker_in_pool");
    house.ok("operator", &["run", "cancel", &run]);

    let workers = house.json("admin", &["worker", "list"]);
    let worker = workers["items"][0]["worker"]["name"].as_str().unwrap();
    house.ok("admin", &["worker", "drain", worker]);
    house.ok("operator", &["instance", "create", "here", "--template", "app", "--pool", "default"]);
    let run = house.json("operator", &["run", "create", "here", "plan"])["id"].as_str().unwrap().to_owned();
    assert_eq!(house.json("operator", &["run", "explain", &run])["waiting"]["code"], "all_draining");
    house.ok("admin", &["worker", "reactivate", worker]);
    house.ok("operator", &["run", "wait", &run]);
}

#[test]
fn idempotent_creation_and_secrets_from_standard_input() {
    use std::io::Write as _;
    let house = House::new();
    let _dev = house.dev(&terraform());
    house.app(HELLO, &[]);
    let first = house.create("operator", &["plan-only", "--idempotency-key", "k1"]);
    assert_eq!(house.create("operator", &["plan-only", "--idempotency-key", "k1"]), first);
    house.fails(
        "operator",
        &["run", "create", "app", "preview", "--idempotency-key", "k1"],
        3,
        "idempotency_mismatch",
    );

    let mut command = house.forgeplane("operator");
    let mut child = command
        .args(["secret", "put", "pw", "--for", "app"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"correct-horse\n").unwrap();
    assert!(child.wait().unwrap().success());
    let listed = house.ok("operator", &["secret", "list"]);
    assert!(listed.contains("pw") && !listed.contains("correct-horse"));
    let created = house.json("admin", &["token", "create", "carol", "--role", "viewer"]);
    assert!(created["token"].as_str().unwrap().starts_with("fpt_"));
}

/// A store is checked beside its running coordinator; a record that was tampered with is found.
#[test]
fn a_store_is_checked_while_it_is_in_use_and_afterwards() {
    let house = House::new();
    let tool = house.fake_terraform("exit 0");
    let dev = house.dev(&tool);
    house.app("", &[]);
    let run = house.create("operator", &["preview"]);
    house.until(&run, |view| view["run"]["status"] == "succeeded");
    let database = house.data().join("forgeplane.db");
    let database = database.to_str().unwrap();
    let live = house.json("admin", &["check", "--sqlite", database]);
    assert_eq!((&live["runs"], &live["receipts"], &live["violations"]), (&json!(1), &json!(1), &json!([])));
    dev.terminate();
    assert!(house.ok("admin", &["check", "--sqlite", database]).contains("violations"));

    let python = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); \
                  c.execute(\"UPDATE run SET doc = json_set(doc, '$.status', 'failed')\"); c.commit()";
    let tamper = Command::new("python3").args(["-c", python, database]).status().unwrap();
    assert!(tamper.success());
    let found = house.run("admin", &["check", "--sqlite", database]);
    let text = String::from_utf8(found.stdout).unwrap();
    assert_eq!(found.status.code(), Some(1), "{text}");
    assert!(text.contains("I18") && text.contains(&run), "{text}");

    house.fails("admin", &["check", "--sqlite", "/nowhere/at-all"], 2, "store_unavailable");
    house.fails("admin", &["check", "--postgres"], 2, "store_url_invalid");
    let both = house.run("admin", &["check", "--postgres", "--sqlite", database]);
    assert_eq!(both.status.code(), Some(2));
}
