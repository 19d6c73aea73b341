//! P2: transitions per second of the SQLite store at 64 submitters, against a raw SQLite loop that updates one
//! row and inserts one event per transition in batches of 100. Both with WAL and `synchronous = FULL`, on the
//! same disk, alternating. Prints the ratio of each round and their median.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark talks to its terminal")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forgeplane_core::digest::Digest;
use forgeplane_core::id::{InstanceId, ProjectId, RunId};
use forgeplane_core::model::*;
use forgeplane_core::ports::Store;
use forgeplane_store_sqlite::SqliteStore;
use jiff::Timestamp;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
const SUBMITTERS: usize = 64;
const RAW_BATCH: usize = 100;

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let dir = tempfile::tempdir_in(".").unwrap();
        let raw = raw_loop(&dir.path().join("raw.db"));
        let store = SqliteStore::open(dir.path().join("store.db")).unwrap();
        let ours = runtime.block_on(transitions(Arc::new(store)));
        ratios.push(ours / raw);
        println!("round {round}: raw {raw:.0}/s, store {ours:.0}/s, ratio {:.2}", ours / raw);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "P2 ratio: min {:.2}, median {:.2}, max {:.2} (must: 0.5)",
        ratios[0],
        ratios[ROUNDS / 2],
        ratios[ROUNDS - 1]
    );
}

/// The physical limit: what SQLite does in one thread with prepared statements.
fn raw_loop(path: &Path) -> f64 {
    let mut db = rusqlite::Connection::open(path).unwrap();
    db.pragma_update(None, "journal_mode", "WAL").unwrap();
    db.pragma_update(None, "synchronous", "FULL").unwrap();
    db.execute_batch(
        "CREATE TABLE run (id INTEGER PRIMARY KEY, version INTEGER, doc TEXT);
                      CREATE TABLE event (seq INTEGER PRIMARY KEY AUTOINCREMENT, doc TEXT);",
    )
    .unwrap();
    let doc = serde_json::to_string(&run(0)).unwrap();
    for id in 0..SUBMITTERS {
        db.execute("INSERT INTO run VALUES (?1, 1, ?2)", (id as i64, &doc)).unwrap();
    }
    let (begun, mut done) = (Instant::now(), 0);
    while begun.elapsed() < ROUND {
        let transaction = db.transaction().unwrap();
        for _ in 0..RAW_BATCH {
            let id = (done % SUBMITTERS) as i64;
            transaction
                .prepare_cached("UPDATE run SET version = version + 1, doc = ?2 WHERE id = ?1")
                .unwrap()
                .execute((id, &doc))
                .unwrap();
            transaction
                .prepare_cached("INSERT INTO event (doc) VALUES (?1)")
                .unwrap()
                .execute([&doc])
                .unwrap();
            done += 1;
        }
        transaction.commit().unwrap();
    }
    done as f64 / begun.elapsed().as_secs_f64()
}

async fn transitions(store: Arc<SqliteStore>) -> f64 {
    let runs: Vec<Run> = (0..SUBMITTERS).map(|n| run(n as u8)).collect();
    for run in &runs {
        let mut changes = Changeset::new();
        changes.insert(run.clone());
        store.commit(vec![changes]).await.unwrap().remove(0).unwrap();
    }
    let begun = Instant::now();
    let submitters: Vec<_> = runs
        .into_iter()
        .map(|run| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut done = 0_u64;
                while begun.elapsed() < ROUND {
                    done += 1;
                    let mut changes = Changeset::new();
                    changes.update(done, run.clone());
                    changes.events.push(event(&run, done));
                    store.commit(vec![changes]).await.unwrap().remove(0).unwrap();
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for submitter in submitters {
        done += submitter.await.unwrap();
    }
    done as f64 / begun.elapsed().as_secs_f64()
}

fn run(n: u8) -> Run {
    let now = Timestamp::now();
    Run {
        id: RunId::new(now, [n; 10]),
        project: ProjectId::new(now, [1; 10]),
        instance: InstanceId::new(now, [1; 10]),
        operation: Operation::Plan { destroy: false },
        tool: Tool::Terraform,
        pool: "default".parse().unwrap(),
        status: RunStatus::Running,
        snapshot: Digest::of(b"snapshot"),
        state_object: None,
        requested_by: Actor::system("bench"),
        created_at: now,
        priority: 0,
        queued_at: None,
        queue_expires_at: None,
        started_at: None,
        finished_at: None,
        plan: None,
        promoted_to: None,
        approval: None,
        current_attempt: None,
        attempts: 0,
        not_started: 0,
        stop: None,
        error: None,
        summary: None,
        last_event: 0,
    }
}

fn event(run: &Run, run_seq: u64) -> Event {
    Event {
        seq: 0,
        project: Some(run.project),
        run: Some(run.id),
        run_seq,
        kind: EventKind::RunRunning,
        actor: Actor::system("bench"),
        at: Timestamp::now(),
        data: Object::new(),
    }
}
