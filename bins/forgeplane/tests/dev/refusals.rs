//! Bad input at start-up and on the command line: each a clear error with code and way out.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::support::{House, terraform};

/// Runs `forgeplane dev` where it must fail, and gives exit code and message.
fn dev_fails(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_second_process_on_the_same_data_is_refused() {
    let house = House::new();
    let _dev = house.dev(&terraform());
    let (exit, message) = dev_fails(&mut house.dev_command());
    assert_eq!(exit, Some(2));
    assert!(message.contains("error[store_locked]"), "{message}");
}

#[test]
fn a_port_in_use_is_named_with_the_way_out() {
    let house = House::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (exit, message) = dev_fails(house.dev_command().args(["--listen", &address]));
    assert_eq!(exit, Some(2));
    assert!(message.contains("error[address_unavailable]") && message.contains("--listen"), "{message}");
}

#[test]
fn plain_http_stays_on_loopback() {
    let house = House::new();
    let (exit, message) = dev_fails(house.dev_command().args(["--listen", "0.0.0.0:0"]));
    assert_eq!(exit, Some(2));
    assert!(message.contains("error[not_loopback]"), "{message}");
}

#[test]
fn a_store_of_a_newer_version_or_of_somebody_else_is_refused() {
    let house = House::new();
    house.dev(&terraform()).terminate();
    let database = house.data().join("forgeplane.db");
    let sql = |text: &str| {
        let python =
            format!("import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute({text:?}); c.commit()");
        assert!(Command::new("python3").args(["-c", &python]).arg(&database).status().unwrap().success());
    };
    sql("PRAGMA user_version = 4711");
    let (exit, message) = dev_fails(&mut house.dev_command());
    assert_eq!(exit, Some(2));
    assert!(message.contains("error[store_newer_schema]") && message.contains("4711"), "{message}");
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(house.data().join(format!("forgeplane.db{suffix}")));
    }
    std::fs::write(&database, "not a database at all ".repeat(100)).unwrap();
    let (_, message) = dev_fails(&mut house.dev_command());
    assert!(message.contains("error[store_not_a_database]"), "{message}");
}

#[test]
fn a_tool_that_is_missing_or_unknown_is_named() {
    let house = House::new();
    let (exit, message) = dev_fails(house.dev_command().args(["--tool", "terraform=/nowhere/terraform"]));
    assert_eq!(exit, Some(2));
    assert!(message.contains("error[tool_missing]") && message.contains("/nowhere/terraform"), "{message}");
    let (exit, message) = dev_fails(house.dev_command().args(["--tool", "chef=/bin/true"]));
    assert_eq!(exit, Some(2));
    assert!(message.contains("known labels are"), "{message}");
}

#[test]
fn e19_who_is_not_root_is_told_so_and_may_choose_the_unsafe_mode_explicitly() {
    let house = House::new();
    let public: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(house.directory.path(), public).unwrap();
    // The test's executable may be out of reach for nobody: run a copy.
    let copy = house.directory.path().join("forgeplane");
    std::fs::copy(env!("CARGO_BIN_EXE_forgeplane"), &copy).unwrap();
    let nobody = |args: &[&str]| {
        let mut command = Command::new(&copy);
        command
            .args(["dev", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(house.data())
            .arg("--tool")
            .arg(format!("terraform={}", terraform().display()))
            .args(args)
            .env("RUST_LOG", "error")
            .uid(65_534)
            .gid(65_534);
        command
    };
    let (exit, message) = dev_fails(&mut nobody(&[]));
    assert_eq!(exit, Some(2));
    assert!(message.contains("error[not_root]") && message.contains("--unsafe-no-isolation"), "{message}");

    let mut child = nobody(&["--unsafe-no-isolation"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let mut warned = false;
    for line in lines.map(Result::unwrap) {
        warned |= line.contains("UNSAFE");
        if line.starts_with("ready: ") {
            break;
        }
    }
    assert!(warned, "the unsafe mode was not named");
    house.app("output \"a\" { value = 1 }", &["--approvals", "0"]);
    let run = house.create("operator", &["plan-only"]);
    house.ok("operator", &["run", "wait", &run]);
    assert!(house.ok("operator", &["run", "logs", &run]).contains("UNSAFE"));
    assert!(house.ok("operator", &["worker", "list"]).contains("UNSAFE"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn nobody_there_is_exit_code_four() {
    let house = House::new();
    house.fails("operator", &["run", "list"], 4, "no_url");
    let mut command = house.forgeplane("operator");
    command.args(["run", "list", "--url", "http://127.0.0.1:1"]);
    std::fs::create_dir_all(house.data().join("tokens")).unwrap();
    std::fs::write(house.data().join("tokens/operator.token"), "fpt_x").unwrap();
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_wrong_token_and_a_wrong_role_are_refused() {
    let house = House::new();
    let dev = house.dev(&terraform());
    let output = house.forgeplane("operator").args(["run", "list"]).output().unwrap();
    assert!(output.status.success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_forgeplane"));
    command.args(["run", "list", "--url", &dev.url]).env("FORGEPLANE_TOKEN", "fpt_guessed");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("error[unauthenticated]"));
    house.app("", &[]);
    house.fails("approver", &["run", "create", "app", "plan"], 3, "forbidden");
    house.fails("operator", &["worker", "drain", "any"], 3, "forbidden");
}

#[test]
fn wrong_usage_is_exit_code_two_and_creates_nothing() {
    let house = House::new();
    let _dev = house.dev(&terraform());
    house.app("", &[]);
    house.fails("operator", &["run", "create", "app", "paint"], 2, "invalid_argument");
    house.fails("operator", &["run", "create", "app", "destroy", "--mode", "maybe"], 2, "invalid_argument");
    house.fails(
        "operator",
        &["instance", "create", "x", "--template", "app", "--input", "novalue"],
        2,
        "invalid_argument",
    );
    house.fails("operator", &["template", "push", "/nowhere", "--tool", "terraform"], 2, "source_unreadable");
    assert_eq!(house.run("operator", &["run", "create"]).status.code(), Some(2));
    assert_eq!(house.json("operator", &["run", "list"])["items"].as_array().unwrap().len(), 0);
}

#[test]
fn what_the_coordinator_refuses_is_exit_code_three_with_the_way_out() {
    let house = House::new();
    let _dev = house.dev(&terraform());
    house.app("output \"a\" { value = 1 }", &[]);
    for (args, code) in [
        (vec!["run", "create", "app", "execute"], "unsupported_operation"),
        (vec!["run", "create", "app", "apply"], "unsupported_operation"),
        (vec!["run", "create", "nothing", "plan"], "not_found"),
        (vec!["run", "show", "run_00000000000000000000000000000000"], "not_found"),
        (vec!["run", "show", "../../etc/passwd"], "invalid_field"),
        (vec!["instance", "create", "app", "--template", "app"], "name_taken"),
        (vec!["instance", "create", "b", "--template", "nothing"], "not_found"),
        (vec!["state", "pull", "app"], "not_found"),
    ] {
        house.fails("operator", &args, 3, code);
    }
    let message = house.fails("operator", &["run", "create", "app", "execute"], 3, "unsupported_operation");
    assert!(
        message.contains("terraform") && message.contains("execute") && message.contains("plan-only"),
        "{message}"
    );

    let failed = house.create("operator", &["plan-only"]);
    house.ok("operator", &["run", "wait", &failed]);
    house.fails("operator", &["run", "promote", &failed], 3, "not_promotable");
    house.fails("operator", &["run", "cancel", &failed], 3, "already_terminal");
    house.fails("operator", &["run", "requeue", &failed], 3, "invalid_transition");
}
