//! What the worker is told, and what it says when that does not do.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Command, Output};

fn worker(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forgeplane-worker"));
    command.current_dir(directory).env_clear().env("PATH", "/usr/bin:/bin");
    command
}

fn fails(command: &mut Command, code: &str) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    let message = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{message}");
    assert!(message.contains(&format!("error[{code}]")), "expected {code}: {message}");
    message
}

/// What every worker needs.
const NEEDED: [&str; 6] =
    ["--set", "name=w1", "--set", "coordinator.urls=[http://127.0.0.1:1]", "--set", "state_dir=state"];

#[test]
fn the_file_the_environment_and_the_flags_say_what_is_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("worker.toml");
    std::fs::write(&file, "name = \"file\"\npool_name = \"file\"\niac_uid = 1\n[log]\nformat = \"json\"\n")
        .unwrap();
    let output = worker(dir.path())
        .env("FORGEPLANE_WORKER_CONFIG", &file)
        .env("FORGEPLANE_WORKER_POOL_NAME", "from-env")
        .env("FORGEPLANE_WORKER_IAC_UID", "4001")
        .env("FORGEPLANE_WORKER_IAC_GID", "4002")
        .env("FORGEPLANE_WORKER_ENROLLMENT_TOKEN", "12345678901234567890")
        .env("FORGEPLANE_WORKER_COORDINATOR__URLS", "[https://a:1,https://b:2]")
        .args(["--print-config", "--set", "name=flag"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for line in [
        "name = \"flag\"",
        "pool_name = \"from-env\"",
        "iac_uid = 4001",
        "iac_gid = 4002",
        "urls = [",
        "\"https://b:2\"",
        "format = \"json\"",
        "enrollment_token = \"***\"",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("123456"), "{text}");
}

#[test]
fn what_is_missing_or_wrong_is_named_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let message = fails(&mut worker(dir.path()), "config_invalid");
    assert!(message.contains("`name`"), "{message}");
    let message = fails(worker(dir.path()).args(NEEDED).args(["--set", "pool=x"]), "config_invalid");
    assert!(message.contains("pool") && message.contains("--set pool"), "{message}");
    let message = fails(worker(dir.path()).args(NEEDED), "iac_uid_missing");
    assert!(message.contains("FORGEPLANE_WORKER_IAC_UID"), "{message}");
    let both = ["--set", "iac_uid=4001", "--set", "unsafe_no_isolation=true"];
    fails(worker(dir.path()).args(NEEDED).args(both), "config_ambiguous");
    fails(worker(dir.path()).args(["--config", "nowhere.toml"]), "config_missing");
    fails(worker(dir.path()).args(["--set", "name"]), "flag_invalid");
    let unknown = ["--set", "iac_uid=4001", "--set", "tools.chef=/bin/true"];
    let message = fails(worker(dir.path()).args(NEEDED).args(unknown), "config_invalid");
    assert!(message.contains("chef"), "{message}");
    let without = ["--set", "iac_uid=4001", "--set", "tools.pulumi=/bin/true"];
    let message = fails(worker(dir.path()).args(NEEDED).args(without), "no_executor");
    assert!(message.contains("pulumi"), "{message}");
}

/// B-side of the same rule: a session must not travel where others can read it.
#[test]
fn a_coordinator_elsewhere_is_not_spoken_to_in_the_clear() {
    let dir = tempfile::tempdir().unwrap();
    let far = ["--set", "iac_uid=4001", "--set", "coordinator.urls=[http://192.0.2.1:8421]"];
    let message = fails(worker(dir.path()).args(NEEDED).args(far), "plaintext_refused");
    assert!(message.contains("192.0.2.1"), "{message}");
}

/// Every setting with a default is documented with that default.
#[test]
fn the_documentation_tells_the_defaults_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let output = worker(dir.path()).arg("--print-config").output().unwrap();
    let table: toml::Table = String::from_utf8(output.stdout).unwrap().parse().unwrap();
    let pages = include_str!("../../../docs/configuration.md");
    let page = pages.split("\n## ").find(|page| page.starts_with("Worker")).unwrap();
    let mut told = 0;
    let mut tables = vec![(String::new(), table)];
    while let Some((path, table)) = tables.pop() {
        for (name, value) in table {
            let path = format!("{path}{name}");
            match value {
                toml::Value::Table(inner) => tables.push((format!("{path}."), inner)),
                toml::Value::Array(_) => assert!(page.contains(&format!("| `{path}` |")), "{path}"),
                value => {
                    let value = value.to_string().replace('"', "");
                    assert!(page.contains(&format!("| `{path}` | `{value}` |")), "{path} = {value}");
                }
            }
            told += 1;
        }
    }
    assert!(told > 10);
}
