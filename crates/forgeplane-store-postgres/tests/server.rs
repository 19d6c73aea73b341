//! What is PostgreSQL's own: servers that may lose data, schemas of other versions, servers that die, several
//! coordinators on one database.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forgeplane_core::model::*;
use forgeplane_core::ports::{Clock as _, EventFilter, Page, Select, Store, StoreError, StoreExt as _};
use forgeplane_store_postgres::{OpenError, PostgresOptions, PostgresStore};
use forgeplane_testkit::fixtures::Fixtures;
use forgeplane_testkit::postgres_server::PostgresServer;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

async fn open(server: &PostgresServer) -> PostgresStore {
    PostgresStore::open(&PostgresOptions::new(server.url())).await.unwrap()
}

/// Runs SQL as an administrator would, beside the store.
async fn sql(server: &PostgresServer, text: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(&server.url()).await?;
    sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(&mut connection).await.map(|_| ())
}

async fn number(server: &PostgresServer, text: &str) -> i64 {
    let mut connection = PgConnection::connect(&server.url()).await.unwrap();
    sqlx::query_scalar(AssertSqlSafe(text.to_owned())).fetch_one(&mut connection).await.unwrap()
}

fn insert(record: impl Into<Record>) -> Changeset {
    let mut changes = Changeset::new();
    changes.insert(record);
    changes
}

#[tokio::test]
async fn a_server_that_may_forget_what_it_committed_is_refused() {
    for setting in ["fsync", "full_page_writes", "synchronous_commit"] {
        let server = PostgresServer::start_with(&[&format!("{setting}=off")]);
        let options = PostgresOptions::new(server.url());
        let error = PostgresStore::open(&options).await.unwrap_err();
        assert!(matches!(&error, OpenError::NotDurable { setting: it, .. } if *it == setting), "{error}");
        assert_eq!(error.code(), "store_not_durable");
        let options = PostgresOptions { unsafe_durability: true, ..options };
        PostgresStore::open(&options).await.unwrap();
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_an_older_one_where_nobody_may_migrate() {
    let server = PostgresServer::start();
    let options = PostgresOptions::new(server.url());
    let error =
        PostgresStore::open(&PostgresOptions { migrate: false, ..options.clone() }).await.unwrap_err();
    assert!(matches!(error, OpenError::OlderSchema { found: 0, .. }), "{error}");
    drop(PostgresStore::open(&options).await.unwrap());
    PostgresStore::open(&PostgresOptions { migrate: false, ..options.clone() }).await.unwrap();
    sql(&server, "UPDATE forgeplane_schema SET version = 1000").await.unwrap();
    let error = PostgresStore::open(&options).await.unwrap_err();
    assert!(matches!(error, OpenError::NewerSchema { found: 1000, .. }), "{error}");
}

#[tokio::test]
async fn an_unreachable_server_or_a_wrong_password_is_an_error_that_keeps_the_password() {
    let server = PostgresServer::start();
    let url = server.url().replace(server.password(), "not-the-password");
    let error = PostgresStore::open(&PostgresOptions::new(url)).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("not-the-password"), "{error:?}");
    assert_eq!(error.code(), "store_unavailable");
    let error = PostgresStore::open(&PostgresOptions::new("postgres://x:hidden@[")).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hidden"), "{error:?}");
    assert_eq!(error.code(), "store_url_invalid");
}

#[tokio::test]
async fn coordinators_that_start_together_migrate_once() {
    let server = PostgresServer::start();
    let opening = (0..6).map(|_| open(&server));
    for store in futures_util::future::join_all(opening).await {
        assert!(store.list(&Select::Projects, &Page::all()).await.unwrap().is_empty());
    }
    assert_eq!(number(&server, "SELECT count(*) FROM event_head").await, 1);
}

#[tokio::test]
async fn history_cannot_be_rewritten_by_sql_either() {
    let server = PostgresServer::start();
    let store = open(&server).await;
    let make = Fixtures::new();
    let attempt = make.attempt(&make.run(&make.instance(&make.template(&make.project()))), &make.worker());
    let mut changes = insert(make.receipt(&attempt));
    changes.insert(make.log_chunk(&attempt, 0, "text"));
    changes.events.push(make.installation_event(&make.worker()));
    store.commit(vec![changes]).await.unwrap().remove(0).unwrap();
    for table in ["receipt", "event", "log_chunk"] {
        for text in [format!("DELETE FROM {table}"), format!("UPDATE {table} SET {}", "run = run")] {
            let text = if table == "receipt" { text.replace("run = run", "doc = ''") } else { text };
            let error = sql(&server, &text).await.unwrap_err();
            assert!(error.to_string().contains("never changed or removed"), "{text}: {error}");
        }
    }
}

/// D16: there is no way to delete a key, and the database refuses it too: every receipt needs the key that signed it.
#[tokio::test]
async fn d16_a_key_is_never_deleted() {
    let server = PostgresServer::start();
    let store = open(&server).await;
    let make = Fixtures::new();
    let key = make.worker_key(&make.worker());
    store.commit(vec![insert(key)]).await.unwrap().remove(0).unwrap();
    let error = sql(&server, "DELETE FROM worker_key").await.unwrap_err();
    assert!(error.to_string().contains("never removed"), "{error}");
    assert_eq!(number(&server, "SELECT count(*) FROM worker_key").await, 1);
}

#[tokio::test]
async fn updates_of_runs_stay_within_their_page() {
    let server = PostgresServer::start();
    let store = open(&server).await;
    let make = Fixtures::new();
    let mut run = make.run(&make.instance(&make.template(&make.project())));
    store.commit(vec![insert(run.clone())]).await.unwrap().remove(0).unwrap();
    let statuses = [RunStatus::Queued, RunStatus::Running, RunStatus::Canceling, RunStatus::Canceled];
    for (version, status) in (1..).zip(statuses) {
        run.status = status;
        let mut changes = Changeset::new();
        changes.update(version, run.clone());
        store.commit(vec![changes]).await.unwrap().remove(0).unwrap();
    }
    sql(&server, "SELECT pg_stat_force_next_flush()").await.unwrap();
    store.close().await;
    let counted = "SELECT n_tup_hot_upd - n_tup_upd FROM pg_stat_user_tables WHERE relname = 'run'";
    // Statistics of a connection arrive when it ends, a moment after we closed our side of it.
    while number(&server, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'run'").await < 4 {
        tokio::task::yield_now().await;
    }
    assert_eq!(number(&server, counted).await, 0, "every update is heap-only");
}

#[tokio::test]
async fn c2_time_is_the_databases() {
    let server = PostgresServer::start();
    let (one, other) = (open(&server).await, open(&server).await);
    let apart = one.clock().now().duration_since(other.clock().now()).abs();
    assert!(apart.as_secs_f64() < 1.0, "{apart}");
    let micros = number(&server, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").await;
    let apart = one.clock().now().as_microsecond() - micros;
    assert!(apart.abs() < 1_000_000, "{apart} µs");
}

/// Two coordinators commit as fast as they can, touching the same records in different orders, while a reader
/// follows the events by nothing but the last number it saw.
#[tokio::test(flavor = "multi_thread")]
async fn two_coordinators_neither_deadlock_nor_hide_events_from_a_follower() {
    const EACH: usize = 150;
    let server = PostgresServer::start();
    let stores = [Arc::new(open(&server).await), Arc::new(open(&server).await)];
    let make = Arc::new(Fixtures::new());
    let workers: Vec<Worker> = (0..8).map(|_| make.worker()).collect();
    let batch: Vec<Changeset> = workers.iter().cloned().map(insert).collect();
    assert!(stores[0].commit(batch).await.unwrap().iter().all(Result::is_ok));
    let done = Arc::new(AtomicBool::new(false));

    let reader = Arc::clone(&stores[1]);
    let finished = Arc::clone(&done);
    let following = tokio::spawn(async move {
        let (mut last, mut seen) = (0, 0);
        loop {
            let over = finished.load(Ordering::SeqCst);
            let events = reader.events(&EventFilter::default(), last, 64).await.unwrap();
            for event in &events {
                assert_eq!(event.seq, last + 1, "numbers have no gaps, so none can be filled later");
                last = event.seq;
                seen += 1;
            }
            if over && events.is_empty() {
                return seen;
            }
        }
    });

    let committing = stores.iter().enumerate().map(|(side, store)| {
        let (store, workers, make) = (Arc::clone(store), workers.clone(), Arc::clone(&make));
        tokio::spawn(async move {
            let mut committed = 0;
            for round in 0..EACH {
                let mut batch = Vec::new();
                for step in 0..4 {
                    // One goes up, the other goes down.
                    let at = (round + step) % workers.len();
                    let at = if side == 0 { at } else { workers.len() - 1 - at };
                    let id = workers[at].id;
                    let Some(worker) = store.get_as::<Worker>(id).await.unwrap() else {
                        panic!("it is gone")
                    };
                    let mut changes = Changeset::new();
                    changes.update(worker.version, worker.value.clone());
                    changes.events.push(make.installation_event(&worker.value));
                    batch.push(changes);
                }
                let results = store.commit(batch).await.unwrap();
                committed += results.iter().filter(|it| it.is_ok()).count();
            }
            committed
        })
    });
    let committed: usize =
        futures_util::future::join_all(committing).await.into_iter().map(Result::unwrap).sum();
    done.store(true, Ordering::SeqCst);
    assert!(committed > EACH, "{committed} of {} changesets got through", 8 * EACH);
    assert_eq!(following.await.unwrap(), committed);
}

/// The server is killed again and again while a batch after the other is committed: what was acknowledged is there,
/// what was refused is not, and only what is unknown may be either.
#[tokio::test(flavor = "multi_thread")]
async fn b10_a_killed_server_loses_nothing_and_the_store_comes_back() {
    const KILLS: usize = 3;
    let mut server = PostgresServer::start();
    let store = Arc::new(open(&server).await);
    let make = Arc::new(Fixtures::new());
    let done = Arc::new(AtomicBool::new(false));
    let acknowledged = Arc::new(tokio::sync::watch::Sender::new(0_usize));

    let committing = tokio::spawn({
        let (store, make, done, acknowledged) =
            (Arc::clone(&store), Arc::clone(&make), Arc::clone(&done), Arc::clone(&acknowledged));
        async move {
            let (mut yes, mut no, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
            while !done.load(Ordering::SeqCst) {
                let worker = make.worker();
                match store.commit(vec![insert(worker.clone())]).await {
                    Ok(results) => {
                        results.into_iter().next().unwrap().unwrap();
                        yes.push(worker.id);
                        acknowledged.send_modify(|n| *n += 1);
                    }
                    Err(StoreError::Unknown(_)) => unknown.push(worker.id),
                    Err(StoreError::Unavailable(_)) => no.push(worker.id),
                    Err(other) => panic!("{other}"),
                }
            }
            (yes, no, unknown)
        }
    });
    let mut progress = acknowledged.subscribe();
    for _ in 0..KILLS {
        let before = *progress.borrow_and_update();
        tokio::time::timeout(Duration::from_secs(60), progress.wait_for(|n| *n > before + 20))
            .await
            .expect("commits go on after the server came back")
            .unwrap();
        server.kill();
        server.resume();
    }
    let before = *progress.borrow_and_update();
    progress.wait_for(|n| *n > before + 20).await.unwrap();
    done.store(true, Ordering::SeqCst);
    let (yes, no, unknown) = committing.await.unwrap();
    let there: std::collections::BTreeSet<_> = store
        .list_as::<Worker>(&Select::Workers, &Page::all())
        .await
        .unwrap()
        .into_iter()
        .map(|worker| worker.id)
        .collect();
    assert!(yes.iter().all(|id| there.contains(id)), "what was acknowledged is there");
    assert!(no.iter().all(|id| !there.contains(id)), "what was refused is not");
    assert!(there.len() <= yes.len() + unknown.len());
    assert!(!yes.is_empty());
}

/// A fence is never given out twice, whichever coordinator asks and however often the server dies.
#[tokio::test]
async fn fences_grow_over_crashes_and_coordinators() {
    let mut server = PostgresServer::start();
    let stores = [open(&server).await, open(&server).await];
    let mut last = Fence(0);
    for _ in 0..3 {
        for _ in 0..5 {
            for store in &stores {
                let fence = store.allocate_fence().await.unwrap();
                assert!(fence > last, "{fence:?} after {last:?}");
                last = fence;
            }
        }
        server.kill();
        server.resume();
    }
}

#[tokio::test]
async fn a_role_that_may_only_read_reads_beside_a_coordinator() {
    let server = PostgresServer::start();
    let read_only = |url: String| PostgresOptions { read_only: true, ..PostgresOptions::new(url) };
    let error = PostgresStore::open(&read_only(server.url())).await.unwrap_err();
    assert!(matches!(error, OpenError::OlderSchema { found: 0, .. }), "{error}");
    let store = open(&server).await;
    let project = Fixtures::new().project();
    store.commit(vec![insert(project.clone())]).await.unwrap()[0].clone().unwrap();
    sql(&server, "CREATE ROLE auditor LOGIN PASSWORD 'eyes'; GRANT pg_read_all_data TO auditor")
        .await
        .unwrap();
    let url = server.url();
    let (scheme, rest) = url.split_once("://").unwrap();
    let (_, host) = rest.split_once('@').unwrap();
    let auditor = PostgresStore::open(&read_only(format!("{scheme}://auditor:eyes@{host}"))).await.unwrap();
    assert_eq!(auditor.get_as::<Project>(project.id).await.unwrap().unwrap().value, project);
    let report = forgeplane_core::check::check(&auditor).await.unwrap();
    assert_eq!((report.projects, report.holds()), (1, true));
    let refused = auditor.commit(vec![insert(Fixtures::new().project())]).await.unwrap_err();
    assert_eq!(refused.code(), "store_unavailable");
    assert_eq!(auditor.allocate_fence().await.unwrap_err().code(), "store_unavailable");
}

/// B15: whatever loses against somebody else is tried again, a few times, and never happens twice.
#[tokio::test]
async fn b15_serialization_failures_and_deadlocks_are_tried_again_within_bounds() {
    let server = PostgresServer::start();
    let store = open(&server).await;
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    for (code, times) in [("40001", 1), ("40P01", 3), ("40001", 1_000)] {
        // A sequence goes on when its transaction is undone.
        let inject = format!(
            "CREATE SEQUENCE asked; CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF nextval('asked') <= {times} THEN
                     RAISE EXCEPTION 'somebody else was first' USING ERRCODE = '{code}'; END IF;
                 RETURN NEW; END $$;
             CREATE TRIGGER lose BEFORE INSERT ON run FOR EACH ROW EXECUTE FUNCTION lose()"
        );
        sql(&server, &inject).await.unwrap();
        let before = number(&server, "SELECT count(*) FROM run").await;
        let run = make.run(&instance);
        let lost = store.commit(vec![insert(run.clone())]).await;
        let asked = number(&server, "SELECT last_value FROM asked").await;
        sql(&server, "DROP FUNCTION lose CASCADE; DROP SEQUENCE asked").await.unwrap();
        if times < 1_000 {
            lost.unwrap().remove(0).unwrap();
            assert_eq!(asked, times + 1);
        } else {
            assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
            assert!(asked < 20, "it was tried {asked} times");
            assert_eq!(number(&server, "SELECT count(*) FROM run").await, before);
            store.commit(vec![insert(run)]).await.unwrap().remove(0).unwrap();
        }
        assert_eq!(number(&server, "SELECT count(*) FROM run").await, before + 1);
    }
}
