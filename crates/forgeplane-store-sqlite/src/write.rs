//! The writer thread.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Committed, Conflict, Constraint, StoreError};
use rusqlite::types::Value;
use rusqlite::{
    Connection, ErrorCode, OptionalExtension as _, Transaction, TransactionBehavior, params_from_iter,
};
use tokio::sync::{mpsc, oneshot};

use crate::read;
use crate::row::{Row, row, table, unusable};

/// One commit per changeset, or why the batch as a whole failed.
pub(crate) type BatchResult = Result<Vec<Result<Committed, Conflict>>, StoreError>;

/// A batch and where its result goes.
pub(crate) struct Request {
    pub(crate) batch: Vec<Changeset>,
    pub(crate) reply: oneshot::Sender<BatchResult>,
}

/// The most changesets of waiting batches that go into one transaction.
const TOGETHER: usize = 1024;

/// Serves batches until every sender is gone.
pub(crate) fn serve(mut connection: Connection, mut requests: mpsc::Receiver<Request>) {
    while let Some(first) = requests.blocking_recv() {
        let mut count = first.batch.len();
        let mut waiting = vec![first];
        while count < TOGETHER {
            let Ok(next) = requests.try_recv() else { break };
            count += next.batch.len();
            waiting.push(next);
        }
        let (batches, replies): (Vec<_>, Vec<_>) = waiting.into_iter().map(|r| (r.batch, r.reply)).unzip();
        match commit(&mut connection, &batches) {
            Ok(results) => {
                for (reply, result) in replies.into_iter().zip(results) {
                    // A caller that went away does not need its answer.
                    let _ = reply.send(Ok(result));
                }
            }
            Err(error) => {
                let error = std::sync::Arc::new(error);
                for reply in replies {
                    let source = Box::new(std::sync::Arc::clone(&error));
                    let _ = reply.send(Err(match *error {
                        StoreError::Unavailable(_) => StoreError::Unavailable(source),
                        StoreError::Unknown(_) => StoreError::Unknown(source),
                        StoreError::Unusable(_) => StoreError::Unusable(source),
                    }));
                }
            }
        }
    }
}

type Results = Vec<Vec<Result<Committed, Conflict>>>;

fn commit(connection: &mut Connection, batches: &[Vec<Changeset>]) -> Result<Results, StoreError> {
    let mut transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(|e| StoreError::Unavailable(Box::new(e)))?;
    let mut results = Vec::with_capacity(batches.len());
    for batch in batches {
        let mut of_batch = Vec::with_capacity(batch.len());
        for changes in batch {
            of_batch.push(apply_alone(&mut transaction, changes)?);
        }
        results.push(of_batch);
    }
    // From here on it is not certain what a failure left behind.
    transaction.commit().map_err(|e| StoreError::Unknown(Box::new(e)))?;
    Ok(results)
}

/// Applies a changeset under a savepoint, so that a conflict undoes it and nothing else.
fn apply_alone(
    transaction: &mut Transaction<'_>,
    changes: &Changeset,
) -> Result<Result<Committed, Conflict>, StoreError> {
    let savepoint = transaction.savepoint().map_err(|e| StoreError::Unavailable(Box::new(e)))?;
    match apply(&savepoint, changes) {
        Ok(committed) => {
            savepoint.commit().map_err(|e| StoreError::Unavailable(Box::new(e)))?;
            Ok(Ok(committed))
        }
        // Dropping a savepoint rolls it back.
        Err(Failure::Conflict(conflict)) => Ok(Err(conflict)),
        Err(Failure::Store(error)) => Err(error),
    }
}

enum Failure {
    Conflict(Conflict),
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(StoreError::Unavailable(Box::new(error)))
    }
}

fn apply(connection: &Connection, changes: &Changeset) -> Result<Committed, Failure> {
    for (key, version) in &changes.checks {
        if stored_version(connection, key)? != Some(*version) {
            return Err(Failure::Conflict(Conflict::Version { key: key.clone() }));
        }
    }
    for put in &changes.puts {
        put_record(connection, put)?;
    }
    let mut committed = Committed::default();
    for event in &changes.events {
        let doc = serde_json::to_string(event).map_err(unusable)?;
        connection.prepare_cached("INSERT INTO event (project, run, doc) VALUES (?1, ?2, ?3)")?.execute((
            event.project.map(|p| p.to_string()),
            event.run.map(|r| r.to_string()),
            doc,
        ))?;
        committed.events.push(u64::try_from(connection.last_insert_rowid()).map_err(unusable)?);
    }
    for message in &changes.outbox {
        let doc = serde_json::to_string(message).map_err(unusable)?;
        connection.prepare_cached("INSERT INTO outbox (id, worker, doc) VALUES (?1, ?2, ?3)")?.execute((
            message.id.to_string(),
            message.job.worker.to_string(),
            doc,
        ))?;
    }
    for id in &changes.published {
        connection.prepare_cached("DELETE FROM outbox WHERE id = ?1")?.execute([id.to_string()])?;
    }
    Ok(committed)
}

/// The version of a stored record. Log chunks are never replaced, so theirs is always 1.
fn stored_version(connection: &Connection, key: &Key) -> Result<Option<u64>, Failure> {
    if key.kind == Kind::LogChunk {
        return Ok(read::get(connection, key)?.map(|chunk| chunk.version));
    }
    let sql = format!("SELECT version FROM {} WHERE id = ?1", table(key.kind));
    let found: Option<i64> =
        connection.prepare_cached(&sql)?.query_row([&key.id], |row| row.get(0)).optional()?;
    Ok(found.map(u64::try_from).transpose().map_err(unusable)?)
}

fn put_record(connection: &Connection, put: &Put) -> Result<(), Failure> {
    let key = put.record.key();
    let wrong_version = || Failure::Conflict(Conflict::Version { key: key.clone() });
    if key.kind.is_immutable() && put.expect != Expect::Absent {
        return Err(wrong_version());
    }
    let row = row(&put.record)?;
    let changed = match put.expect {
        Expect::Absent => insert(connection, key.kind, &row, false),
        Expect::Any => insert(connection, key.kind, &row, true),
        Expect::Version(version) => update(connection, &row, version),
    };
    match changed {
        Ok(1) => Ok(()),
        Ok(_) => Err(wrong_version()),
        Err(error) => Err(violation(&error).map_or_else(
            || Failure::from(error),
            |constraint| {
                constraint.map_or_else(wrong_version, |c| Failure::Conflict(Conflict::Constraint(c)))
            },
        )),
    }
}

fn insert(connection: &Connection, kind: Kind, row: &Row, replace: bool) -> rusqlite::Result<usize> {
    let all: Vec<_> = row.key.iter().chain(&row.columns).collect();
    let names = all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let places = vec!["?"; all.len()].join(", ");
    // Log chunks have no version: they are only ever inserted.
    let (version, first) = if kind == Kind::LogChunk { ("", "") } else { (", version", ", 1") };
    let mut sql = format!("INSERT INTO {} ({names}{version}) VALUES ({places}{first})", row.table);
    if replace {
        let sets = row
            .columns
            .iter()
            .map(|(name, _)| format!("{name} = excluded.{name}"))
            .collect::<Vec<_>>()
            .join(", ");
        sql.push_str(&format!(" ON CONFLICT (id) DO UPDATE SET {sets}, version = {}.version + 1", row.table));
    }
    connection.prepare_cached(&sql)?.execute(params_from_iter(all.into_iter().map(|(_, value)| value)))
}

fn update(connection: &Connection, row: &Row, version: u64) -> rusqlite::Result<usize> {
    let sets = row.columns.iter().map(|(name, _)| format!("{name} = ?")).collect::<Vec<_>>().join(", ");
    let sql = format!("UPDATE {} SET {sets}, version = version + 1 WHERE id = ? AND version = ?", row.table);
    let version = Value::Integer(i64::try_from(version).unwrap_or(i64::MAX));
    let values = row.columns.iter().chain(&row.key).map(|(_, value)| value).chain(std::iter::once(&version));
    connection.prepare_cached(&sql)?.execute(params_from_iter(values))
}

/// What a constraint error says: `Some(Some(_))` for a guard, `Some(None)` for a primary key, `None` for
/// anything else. SQLite names the columns of a violated index, and no two guards have the same ones.
fn violation(error: &rusqlite::Error) -> Option<Option<Constraint>> {
    if error.sqlite_error_code() != Some(ErrorCode::ConstraintViolation) {
        return None;
    }
    let message = error.to_string();
    let columns = message.strip_prefix("UNIQUE constraint failed: ")?;
    let constraint = match columns {
        "project.name" => Constraint::ProjectName,
        "token.hash" => Constraint::TokenHash,
        "template.project, template.name" => Constraint::TemplateName,
        "instance.project, instance.name" => Constraint::InstanceName,
        "secret.project, secret.name" => Constraint::SecretName,
        "worker.name" => Constraint::WorkerName,
        "enrollment.hash" => Constraint::EnrollmentHash,
        "attempt.fence" => Constraint::Fence,
        "attempt.run, attempt.number" => Constraint::AttemptNumber,
        "attempt.run" => Constraint::OpenAttemptPerRun,
        "attempt.worker, attempt.slot" => Constraint::OpenAttemptPerSlot,
        "attempt.exclusive" => Constraint::ExclusiveInstance,
        "run.plan_run" => Constraint::LivePromotion,
        "state_object.instance" => Constraint::StateObjectPerInstance,
        _ => return Some(None),
    };
    Some(Some(constraint))
}
