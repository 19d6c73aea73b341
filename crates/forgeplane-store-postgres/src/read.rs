//! Reads.

use std::time::Duration;

use forgeplane_core::id::{AttemptId, WorkerId};
use forgeplane_core::model::*;
use forgeplane_core::ports::{EventFilter, StoreError};
use sqlx::postgres::{PgArguments, PgConnection, PgPool, PgRow};
use sqlx::{Connection as _, Postgres, Row as _};

use crate::row::{LOG_COLUMNS, Value, log_chunk, record, unusable};
use crate::select::Query;
use crate::statement;

/// A read that takes longer is given up; the server or the way to it is not well.
const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}

/// The connections for reading.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    pub(crate) pool: PgPool,
    pub(crate) persistent: bool,
}

/// Whether the connection failed rather than the statement: then the next connection may do better.
pub(crate) fn is_about_the_connection(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        // Class 57P: the server shuts down or has crashed; class 08: the connection is gone.
        sqlx::Error::Database(error) => {
            error.code().is_some_and(|code| code.starts_with("57P") || code.starts_with("08"))
        }
        _ => false,
    }
}

impl Reader {
    /// Reads rows; on other connections if the first ones turn out to be dead, as all do after a server's restart.
    pub(crate) async fn rows(&self, sql: &str, values: &[Value]) -> Result<Vec<PgRow>, StoreError> {
        // The server cannot hold this character in a text, so no row has it.
        if values.iter().any(|value| matches!(value, Value::Text(Some(text)) if text.contains('\0'))) {
            return Ok(Vec::new());
        }
        let mut left = self.pool.options().get_max_connections();
        loop {
            let reading = tokio::time::timeout(PATIENCE, self.once(sql, values.to_vec()));
            match reading.await.map_err(unavailable)? {
                Ok(rows) => return Ok(rows),
                Err(error) if left > 0 && is_about_the_connection(&error) => left -= 1,
                Err(error) => return Err(unavailable(error)),
            }
        }
    }

    async fn once(&self, sql: &str, values: Vec<Value>) -> Result<Vec<PgRow>, sqlx::Error> {
        let query = statement::query(sql.to_owned(), statement::values(values)?, self.persistent);
        let mut connection = self.pool.acquire().await?;
        let result = if self.persistent {
            query.fetch_all(&mut *connection).await
        } else {
            // A statement is parsed and then executed: without a transaction around both, a pooler may send the
            // two to different servers.
            in_transaction(&mut connection, query).await
        };
        if result.as_ref().is_err_and(is_about_the_connection) {
            connection.close_on_drop();
        }
        result
    }

    /// Reads the records of a query.
    pub(crate) async fn records(&self, query: &Query) -> Result<Vec<Versioned<Record>>, StoreError> {
        let rows = self.rows(&query.sql, &query.values).await?;
        rows.iter()
            .map(|row| {
                let version = u64::try_from(row.try_get::<i64, _>(0).map_err(unusable)?).map_err(unusable)?;
                let doc: &str = row.try_get(1).map_err(unusable)?;
                Ok(Versioned { value: record(query.kind, doc)?, version })
            })
            .collect()
    }

    /// Reads one log chunk.
    pub(crate) async fn chunk(&self, id: &str) -> Result<Option<Versioned<Record>>, StoreError> {
        let Some((attempt, offset)) = id.split_once('/') else { return Ok(None) };
        let Ok(offset) = offset.parse::<i64>() else { return Ok(None) };
        let sql = format!("SELECT {LOG_COLUMNS} FROM log_chunk WHERE attempt = $1 AND start = $2");
        let values = [Value::Text(Some(attempt.to_owned())), Value::Number(Some(offset))];
        let rows = self.rows(&sql, &values).await?;
        rows.first().map(|row| Ok(Versioned { value: log_chunk(row)?.into(), version: 1 })).transpose()
    }

    /// Reads events.
    pub(crate) async fn events(
        &self,
        filter: &EventFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        let mut sql = "SELECT seq, doc FROM event WHERE seq > $1".to_owned();
        let mut values = vec![Value::Number(Some(i64::try_from(after).unwrap_or(i64::MAX)))];
        if let Some(project) = filter.project {
            values.push(Value::Text(Some(project.to_string())));
            sql.push_str(&format!(" AND project = ${}", values.len()));
        }
        if let Some(run) = filter.run {
            values.push(Value::Text(Some(run.to_string())));
            sql.push_str(&format!(" AND run = ${}", values.len()));
        }
        values.push(Value::Number(Some(i64::try_from(limit).unwrap_or(i64::MAX))));
        sql.push_str(&format!(" ORDER BY seq LIMIT ${}", values.len()));
        let rows = self.rows(&sql, &values).await?;
        rows.iter()
            .map(|row| {
                let mut event: Event =
                    serde_json::from_str(row.try_get(1).map_err(unusable)?).map_err(unusable)?;
                event.seq = u64::try_from(row.try_get::<i64, _>(0).map_err(unusable)?).map_err(unusable)?;
                Ok(event)
            })
            .collect()
    }

    /// Reads the outbox, of one worker or whole.
    pub(crate) async fn outbox(
        &self,
        worker: Option<WorkerId>,
        limit: usize,
    ) -> Result<Vec<OutboxMessage>, StoreError> {
        let mut values = vec![Value::Number(Some(i64::try_from(limit).unwrap_or(i64::MAX)))];
        let filter = match worker {
            Some(worker) => {
                values.push(Value::Text(Some(worker.to_string())));
                " WHERE worker = $2"
            }
            None => "",
        };
        let rows =
            self.rows(&format!("SELECT doc FROM outbox{filter} ORDER BY id LIMIT $1"), &values).await?;
        rows.iter()
            .map(|row| serde_json::from_str(row.try_get(0).map_err(unusable)?).map_err(unusable))
            .collect()
    }

    /// The number of the newest event.
    pub(crate) async fn event_head(&self) -> Result<u64, StoreError> {
        let rows = self.rows("SELECT seq FROM event_head", &[]).await?;
        let row = rows.first().ok_or_else(|| unusable(sqlx::Error::RowNotFound))?;
        u64::try_from(row.try_get::<i64, _>(0).map_err(unusable)?).map_err(unusable)
    }

    /// Reads log chunks from the one that contains byte `from` on. The server adds up the sizes, so that a long
    /// log does not travel to be thrown away.
    pub(crate) async fn log(
        &self,
        attempt: AttemptId,
        from: u64,
        max_bytes: usize,
    ) -> Result<Vec<LogChunk>, StoreError> {
        // Chunks do not overlap, so the one that contains `from` is the last that starts at or before it, and the
        // log's offsets say how many bytes lie between two chunks.
        let sql = format!(
            "WITH first AS (SELECT coalesce((SELECT max(start) FROM log_chunk WHERE attempt = $1 AND start <= $2), 0) AS start)
             SELECT {LOG_COLUMNS} FROM log_chunk WHERE attempt = $1
                 AND start >= (SELECT start FROM first)
                 AND (start <= $2 OR start - $2 < $3)
             ORDER BY start"
        );
        let number = |value: Option<i64>| Value::Number(Some(value.unwrap_or(i64::MAX)));
        let values = [
            Value::Text(Some(attempt.to_string())),
            number(i64::try_from(from).ok()),
            number(i64::try_from(max_bytes).ok()),
        ];
        let rows = self.rows(&sql, &values).await?;
        let (mut chunks, mut bytes) = (Vec::with_capacity(rows.len()), 0);
        for row in &rows {
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

    /// The number of log bytes of an attempt.
    pub(crate) async fn log_end(&self, attempt: AttemptId) -> Result<u64, StoreError> {
        let sql =
            "SELECT start + length(bytes) FROM log_chunk WHERE attempt = $1 ORDER BY start DESC LIMIT 1";
        let rows = self.rows(sql, &[Value::Text(Some(attempt.to_string()))]).await?;
        match rows.first() {
            Some(row) => u64::try_from(row.try_get::<i64, _>(0).map_err(unusable)?).map_err(unusable),
            None => Ok(0),
        }
    }

    /// The next fence. Asking again after an answer was lost skips one, which is harmless.
    pub(crate) async fn fence(&self) -> Result<Fence, StoreError> {
        let rows = self.rows("SELECT nextval('fence')", &[]).await?;
        let row = rows.first().ok_or_else(|| unusable(sqlx::Error::RowNotFound))?;
        Ok(Fence(u64::try_from(row.try_get::<i64, _>(0).map_err(unusable)?).map_err(unusable)?))
    }
}

async fn in_transaction(
    connection: &mut PgConnection,
    query: sqlx::query::Query<'_, Postgres, PgArguments>,
) -> Result<Vec<PgRow>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let rows = query.fetch_all(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(rows)
}
