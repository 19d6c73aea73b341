//! Read-only connections, used by blocking tasks beside the writer.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use forgeplane_core::id::{AttemptId, WorkerId};
use forgeplane_core::model::*;
use forgeplane_core::ports::{EventFilter, StoreError};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use tokio::sync::Semaphore;

use crate::open;
use crate::row::{LOG_COLUMNS, log_chunk, record, table, unusable};
use crate::select::Query;

/// How many reads run at once.
const READERS: usize = 4;

/// The read-only connections.
#[derive(Clone)]
pub(crate) struct Readers {
    path: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Connection>>>,
    places: Arc<Semaphore>,
}

fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}

impl Readers {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path: Arc::new(path), idle: Arc::default(), places: Arc::new(Semaphore::new(READERS)) }
    }

    /// Runs a read on a connection of its own, off the async threads.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(unavailable)?;
        let this = self.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let _place = place;
            let idle = this.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = match idle {
                Some(connection) => connection,
                None => open::reader(&this.path).map_err(unavailable)?,
            };
            let result = read(&connection);
            if result.is_ok() {
                this.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            }
            result
        });
        reading.await.map_err(unavailable)?
    }
}

/// Reads one record.
pub(crate) fn get(connection: &Connection, key: &Key) -> Result<Option<Versioned<Record>>, StoreError> {
    if key.kind == Kind::LogChunk {
        let Some((attempt, offset)) = key.id.split_once('/') else { return Ok(None) };
        let Ok(offset) = offset.parse::<i64>() else { return Ok(None) };
        let sql = format!("SELECT {LOG_COLUMNS} FROM log_chunk WHERE attempt = ?1 AND start = ?2");
        let mut statement = connection.prepare_cached(&sql).map_err(unavailable)?;
        let mut rows = statement.query((attempt, offset)).map_err(unavailable)?;
        return match rows.next().map_err(unavailable)? {
            Some(row) => Ok(Some(Versioned { value: log_chunk(row)?.into(), version: 1 })),
            None => Ok(None),
        };
    }
    let sql = format!("SELECT version, doc FROM {} WHERE id = ?", table(key.kind));
    let query = Query { kind: key.kind, sql, values: vec![Value::Text(key.id.clone())] };
    Ok(records(connection, &query)?.into_iter().next())
}

/// Reads the records of a query.
pub(crate) fn records(connection: &Connection, query: &Query) -> Result<Vec<Versioned<Record>>, StoreError> {
    let mut statement = connection.prepare_cached(&query.sql).map_err(unavailable)?;
    let mut rows = statement.query(params_from_iter(&query.values)).map_err(unavailable)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(unavailable)? {
        let version = u64::try_from(row.get::<_, i64>(0).map_err(unusable)?).map_err(unusable)?;
        let doc = row.get_ref(1).map_err(unusable)?.as_str().map_err(unusable)?;
        found.push(Versioned { value: record(query.kind, doc)?, version });
    }
    Ok(found)
}

/// Reads events.
pub(crate) fn events(
    connection: &Connection,
    filter: &EventFilter,
    after: u64,
    limit: usize,
) -> Result<Vec<Event>, StoreError> {
    let mut sql = "SELECT seq, doc FROM event WHERE seq > ?".to_owned();
    let mut values = vec![Value::Integer(i64::try_from(after).unwrap_or(i64::MAX))];
    if let Some(project) = filter.project {
        sql.push_str(" AND project = ?");
        values.push(Value::Text(project.to_string()));
    }
    if let Some(run) = filter.run {
        sql.push_str(" AND run = ?");
        values.push(Value::Text(run.to_string()));
    }
    sql.push_str(" ORDER BY seq LIMIT ?");
    values.push(Value::Integer(i64::try_from(limit).unwrap_or(i64::MAX)));
    let mut statement = connection.prepare_cached(&sql).map_err(unavailable)?;
    let mut rows = statement.query(params_from_iter(values)).map_err(unavailable)?;
    let mut events = Vec::new();
    while let Some(row) = rows.next().map_err(unavailable)? {
        let mut event: Event =
            serde_json::from_str(row.get_ref(1).map_err(unusable)?.as_str().map_err(unusable)?)
                .map_err(unusable)?;
        event.seq = u64::try_from(row.get::<_, i64>(0).map_err(unusable)?).map_err(unusable)?;
        events.push(event);
    }
    Ok(events)
}

/// Reads the outbox, of one worker or whole.
pub(crate) fn outbox(
    connection: &Connection,
    worker: Option<WorkerId>,
    limit: usize,
) -> Result<Vec<OutboxMessage>, StoreError> {
    let mut values = vec![Value::Integer(i64::try_from(limit).unwrap_or(i64::MAX))];
    let filter = match worker {
        Some(worker) => {
            values.push(Value::Text(worker.to_string()));
            " WHERE worker = ?2"
        }
        None => "",
    };
    let mut statement = connection
        .prepare_cached(&format!("SELECT doc FROM outbox{filter} ORDER BY id LIMIT ?1"))
        .map_err(unavailable)?;
    let mut rows = statement.query(params_from_iter(values)).map_err(unavailable)?;
    let mut messages = Vec::new();
    while let Some(row) = rows.next().map_err(unavailable)? {
        let doc = row.get_ref(0).map_err(unusable)?.as_str().map_err(unusable)?;
        messages.push(serde_json::from_str(doc).map_err(unusable)?);
    }
    Ok(messages)
}

/// The number of the newest event.
pub(crate) fn event_head(connection: &Connection) -> Result<u64, StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT coalesce(max(seq), 0) FROM event").map_err(unavailable)?;
    let head: i64 = statement.query_row([], |row| row.get(0)).map_err(unavailable)?;
    u64::try_from(head).map_err(unusable)
}

/// Reads log chunks from the one that contains byte `from` on.
pub(crate) fn log(
    connection: &Connection,
    attempt: AttemptId,
    from: u64,
    max_bytes: usize,
) -> Result<Vec<LogChunk>, StoreError> {
    // Chunks do not overlap, so the one that contains `from` is the last that starts at or before it.
    let sql = format!(
        "SELECT {LOG_COLUMNS} FROM log_chunk WHERE attempt = ?1 AND start >= coalesce(
             (SELECT max(start) FROM log_chunk WHERE attempt = ?1 AND start <= ?2), 0)
         ORDER BY start"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(unavailable)?;
    let from_sql = i64::try_from(from).unwrap_or(i64::MAX);
    let mut rows = statement.query((attempt.to_string(), from_sql)).map_err(unavailable)?;
    let (mut chunks, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next().map_err(unavailable)? {
        let chunk = log_chunk(row)?;
        if chunk.end() <= from {
            continue;
        }
        bytes += chunk.frame.bytes.len();
        if bytes > max_bytes && !chunks.is_empty() {
            break;
        }
        chunks.push(chunk);
    }
    Ok(chunks)
}

/// Where an attempt's log ends.
pub(crate) fn log_end(connection: &Connection, attempt: AttemptId) -> Result<u64, StoreError> {
    let sql = "SELECT start + length(bytes) FROM log_chunk WHERE attempt = ?1 ORDER BY start DESC LIMIT 1";
    let mut statement = connection.prepare_cached(sql).map_err(unavailable)?;
    let mut rows = statement.query([attempt.to_string()]).map_err(unavailable)?;
    match rows.next().map_err(unavailable)? {
        Some(row) => u64::try_from(row.get::<_, i64>(0).map_err(unusable)?).map_err(unusable),
        None => Ok(0),
    }
}
