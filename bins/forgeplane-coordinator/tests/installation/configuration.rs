//! What a coordinator is told, and what it says when that does not do.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

fn coordinator(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forgeplane-coordinator"));
    command.current_dir(directory).env_clear().args(["--set", "keys.directory=keys"]);
    command
}

fn ok(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn fails(command: &mut Command, code: &str) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    let message = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{message}");
    assert!(message.contains(&format!("error[{code}]")), "expected {code}: {message}");
    message
}

#[test]
fn the_configuration_in_force_is_printed_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("c.toml"), "[settings]\nheartbeat_s = 7\noffer_ttl_s = 70\n").unwrap();
    let text = ok(coordinator(dir.path())
        .env("FORGEPLANE_COORDINATOR_STORE__POSTGRES__URL", "postgres://fp:hunter2@db:5432/fp")
        .env("FORGEPLANE_COORDINATOR_NATS__AUTH__USER__NAME", "fp")
        .env("FORGEPLANE_COORDINATOR_NATS__AUTH__USER__PASSWORD", "4711")
        .env("FORGEPLANE_COORDINATOR_SETTINGS__OFFER_TTL_S", "71")
        .args(["--config", "c.toml", "--print-config"]));
    for line in
        ["heartbeat_s = 7", "offer_ttl_s = 71", "postgres://fp:***@db:5432/fp", "listen = \"127.0.0.1:8420\""]
    {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("hunter2") && !text.contains("4711"), "{text}");
}

#[test]
fn a_store_is_needed_and_only_one() {
    let dir = tempfile::tempdir().unwrap();
    ok(coordinator(dir.path()).arg("keys"));
    let addresses = [
        "--set",
        "api.listen=127.0.0.1:0",
        "--set",
        "workers.listen=127.0.0.1:0",
        "--set",
        "probes.listen=127.0.0.1:0",
    ];
    let message = fails(coordinator(dir.path()).args(addresses), "store_missing");
    assert!(message.contains("store.postgres.url"), "{message}");
    let both =
        ["--set", "store.sqlite=x.db", "--set", "store.postgres.url=postgres://u:secret@127.0.0.1:1/x"];
    let message = fails(coordinator(dir.path()).args(addresses).args(both), "store_ambiguous");
    assert!(!message.contains("secret"), "{message}");
    let away = ["--set", "store.postgres.url=postgres://u:hunter2@127.0.0.1:1/x"];
    let message = fails(coordinator(dir.path()).args(addresses).args(away), "store_unavailable");
    assert!(!message.contains("hunter2"), "{message}");
    let message = fails(coordinator(dir.path()).args(["--set", "settings.heartbeats=1"]), "config_invalid");
    assert!(message.contains("heartbeats") && message.contains("--set settings.heartbeats"), "{message}");
}

#[test]
fn keys_are_made_once_and_are_nobody_elses() {
    let dir = tempfile::tempdir().unwrap();
    let serve = [
        "--set",
        "store.sqlite=fp.db",
        "--set",
        "api.listen=127.0.0.1:0",
        "--set",
        "workers.listen=127.0.0.1:0",
        "--set",
        "probes.listen=127.0.0.1:0",
    ];
    let message = fails(coordinator(dir.path()).args(serve), "key_unusable");
    assert!(message.contains("forgeplane-coordinator keys"), "{message}");
    ok(coordinator(dir.path()).arg("keys"));
    let key = dir.path().join("keys/sealing.key");
    let first = std::fs::read(&key).unwrap();
    fails(coordinator(dir.path()).arg("keys"), "key_unusable");
    assert_eq!(std::fs::read(&key).unwrap(), first);
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let message = fails(coordinator(dir.path()).args(serve), "key_unusable");
    assert!(message.contains("chmod 600"), "{message}");
}

#[test]
fn nothing_is_served_in_the_clear_beyond_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    ok(coordinator(dir.path()).arg("keys"));
    let serve = ["--set", "store.sqlite=fp.db", "--set", "probes.listen=127.0.0.1:0"];
    let far = ["--set", "api.listen=0.0.0.0:0", "--set", "workers.listen=127.0.0.1:0"];
    let message = fails(coordinator(dir.path()).args(serve).args(far), "plaintext_refused");
    assert!(message.contains("api.unsafe_plaintext"), "{message}");
    let far = ["--set", "api.listen=127.0.0.1:0", "--set", "workers.listen=0.0.0.0:0"];
    let message = fails(coordinator(dir.path()).args(serve).args(far), "plaintext_refused");
    assert!(message.contains("unsafe"), "{message}");
    let half = ["--set", "api.listen=127.0.0.1:0", "--set", "workers.certificate=c.pem"];
    fails(coordinator(dir.path()).args(serve).args(half), "tls_incomplete");
}

#[test]
fn a_token_needs_a_role_that_exists() {
    let dir = tempfile::tempdir().unwrap();
    ok(coordinator(dir.path()).arg("keys"));
    let store = ["--set", "store.sqlite=fp.db"];
    let token = ["token", "--project", "p", "--name", "alice", "--role"];
    let made = ok(coordinator(dir.path()).args(store).args(token).arg("viewer"));
    assert!(made.starts_with("fpt_") || made.trim().len() > 32, "{made}");
    let message = fails(coordinator(dir.path()).args(store).args(token).arg("king"), "role_unknown");
    assert!(message.contains("king"), "{message}");
}

/// Every setting with a default is documented with that default.
#[test]
fn the_documentation_tells_the_defaults_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_forgeplane-coordinator"))
        .current_dir(dir.path())
        .env_clear()
        .arg("--print-config")
        .output()
        .unwrap();
    let table: toml::Table = String::from_utf8(output.stdout).unwrap().parse().unwrap();
    let pages = include_str!("../../../../docs/configuration.md");
    let page = pages.split("\n## ").find(|page| page.starts_with("Coordinator")).unwrap();
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
