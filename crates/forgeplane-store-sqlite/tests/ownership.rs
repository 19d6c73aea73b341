//! Who may have the file, which files are taken, and what survives a killed process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use forgeplane_core::model::{Changeset, Project, Record};
use forgeplane_core::ports::{Page, Select, Store as _, StoreExt as _};
use forgeplane_store_sqlite::SqliteStore;
use forgeplane_testkit::fixtures::Fixtures;
use rusqlite::Connection;

/// Set for the child process that commits until it is killed.
const CHILD: &str = "FORGEPLANE_TEST_COMMIT_INTO";

fn code(path: &Path) -> &'static str {
    SqliteStore::open(path).expect_err("the file was taken").code()
}

#[test]
fn a_file_belongs_to_one_owner_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("forgeplane.db");
    let first = SqliteStore::open(&path).unwrap();
    assert_eq!(code(&path), "store_locked");
    drop(first);
    SqliteStore::open(&path).unwrap();
}

#[test]
fn a_file_of_a_newer_version_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("forgeplane.db");
    drop(SqliteStore::open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 1_000).unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    assert_eq!(error.code(), "store_newer_schema");
    assert!(error.to_string().contains("1000"), "{error}");
    let version: i64 =
        Connection::open(&path).unwrap().query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 1_000);
}

#[test]
fn other_files_are_not_taken_for_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let garbage = dir.path().join("garbage");
    std::fs::write(
        &garbage,
        "this is no database, and it is long enough to have a header of its own".repeat(20),
    )
    .unwrap();
    assert_eq!(code(&garbage), "store_not_a_database");
    let other = dir.path().join("other");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    assert_eq!(code(&other), "store_not_forgeplane");
    assert_eq!(code(&dir.path().join("garbage/below")), "store_unavailable");
}

#[test]
fn only_the_owner_can_read_the_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data/forgeplane.db");
    let _store = SqliteStore::open(&path).unwrap();
    let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
}

#[tokio::test]
async fn d16_history_cannot_be_rewritten_even_with_sql() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("forgeplane.db");
    let store = SqliteStore::open(&path).unwrap();
    let fixtures = Fixtures::new();
    let mut changes = Changeset::new();
    for record in fixtures.one_of_each() {
        if let Record::Run(run) = &record {
            changes.events.push(fixtures.event(run, 1));
        }
        changes.insert(record);
    }
    store.commit(vec![changes]).await.unwrap().remove(0).unwrap();
    drop(store);
    let db = Connection::open(&path).unwrap();
    for table in [
        "template_version",
        "snapshot",
        "state_generation",
        "orphan_state",
        "artifact",
        "plan_artifact",
        "receipt",
        "late_evidence",
        "operator_decision",
        "idempotency",
        "log_chunk",
        "event",
    ] {
        let column = if table == "log_chunk" { "bytes" } else { "doc" };
        for sql in [format!("UPDATE {table} SET {column} = {column}"), format!("DELETE FROM {table}")] {
            let refused = db.execute(&sql, []).expect_err(&sql);
            assert!(refused.to_string().contains("immutable"), "{sql}: {refused}");
        }
    }
    // D16: every receipt needs the key that signed it.
    let refused = db.execute("DELETE FROM worker_key", []).expect_err("a key is never deleted");
    assert!(refused.to_string().contains("immutable"), "{refused}");
}

/// The child: commits one project after the other and says so after each commit. Does nothing otherwise.
#[tokio::test]
async fn child_that_commits_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let store = SqliteStore::open(path).unwrap();
    let fixtures = Fixtures::new();
    loop {
        let project = fixtures.project();
        let mut changes = Changeset::new();
        changes.insert(project.clone());
        store.commit(vec![changes]).await.unwrap().remove(0).unwrap();
        println!("committed {}", project.id);
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_killed_process_and_its_lock_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("forgeplane.db");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_commits_until_it_is_killed", "--nocapture"])
        .env(CHILD, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut acknowledged: Vec<String> = Vec::new();
    while acknowledged.len() < 50 {
        acknowledged.extend(lines.next().unwrap().strip_prefix("committed ").map(str::to_owned));
    }
    assert_eq!(code(&path), "store_locked");
    child.kill().unwrap();
    child.wait().unwrap();
    acknowledged.extend(lines.filter_map(|l| l.strip_prefix("committed ").map(str::to_owned)));

    let store = SqliteStore::open(&path).unwrap();
    let stored = store.list_as::<Project>(&Select::Projects, &Page::all()).await.unwrap();
    let stored: Vec<String> = stored.into_iter().map(|p| p.id.to_string()).collect();
    for id in acknowledged {
        assert!(stored.contains(&id), "{id} was acknowledged and is gone");
    }
}

#[tokio::test]
async fn a_file_in_use_can_be_read_beside_its_owner_and_only_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("forgeplane.db");
    let missing = SqliteStore::open_read_only(&path).unwrap_err();
    assert_eq!(missing.code(), "store_unavailable");
    assert!(!path.exists(), "reading made a file");
    let make = Fixtures::new();
    let project = make.project();
    let insert = |project: &Project| {
        let mut changes = Changeset::new();
        changes.insert(project.clone());
        vec![changes]
    };
    let owner = SqliteStore::open(&path).unwrap();
    let reader = SqliteStore::open_read_only(&path).unwrap();
    owner.commit(insert(&project)).await.unwrap()[0].clone().unwrap();
    let seen = reader.get_as::<Project>(project.id).await.unwrap().unwrap();
    assert_eq!(seen.value, project);
    assert_eq!(reader.commit(insert(&make.project())).await.unwrap_err().code(), "store_unavailable");
    assert_eq!(reader.allocate_fence().await.unwrap_err().code(), "store_unavailable");
    drop(owner);
    let reader = SqliteStore::open_read_only(&path).unwrap();
    assert!(reader.get_as::<Project>(project.id).await.unwrap().is_some());
    drop(reader);
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 1).unwrap();
    assert_eq!(SqliteStore::open_read_only(&path).unwrap_err().code(), "store_older_schema");
}
