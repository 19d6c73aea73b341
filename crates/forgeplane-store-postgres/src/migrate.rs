//! Numbered migrations, tracked in the table `forgeplane_schema`.
//!
//! They hold a transaction's advisory lock, not a session's, so that they work behind a transaction-mode pooler
//! and any number of coordinators may start at once.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::error::OpenError;

/// Migration `n` brings version `n` to `n + 1`. Files are never changed after a release.
const MIGRATIONS: &[&str] =
    &[include_str!("../migrations/0001_initial.sql"), include_str!("../migrations/0002_keys_stay.sql")];

/// The schema this version of Forgeplane works with.
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "a handful of migrations")]
pub(crate) const SCHEMA: i32 = MIGRATIONS.len() as i32;

/// `forgepla`, so that no other program's lock is meant.
const LOCK: i64 = 0x666f_7267_6570_6c61;

/// The schema of the database; 0 if there is none.
async fn version(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    let there: bool = sqlx::query_scalar("SELECT to_regclass('forgeplane_schema') IS NOT NULL")
        .persistent(false)
        .fetch_one(&mut *connection)
        .await?;
    if !there {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT version FROM forgeplane_schema").persistent(false).fetch_one(connection).await
}

/// Brings the database to the current schema; each migration happens whole or not at all.
pub(crate) async fn migrate(connection: &mut PgConnection, allowed: bool) -> Result<(), OpenError> {
    loop {
        let mut transaction = connection.begin().await.map_err(OpenError::Unreachable)?;
        if allowed {
            sqlx::query("SELECT pg_advisory_xact_lock($1)")
                .bind(LOCK)
                .persistent(false)
                .execute(&mut *transaction)
                .await
                .map_err(OpenError::Unreachable)?;
        }
        let found = version(&mut transaction).await.map_err(OpenError::Unreachable)?;
        let Some(sql) = usize::try_from(found).ok().and_then(|found| MIGRATIONS.get(found)) else {
            return if found == SCHEMA {
                Ok(())
            } else {
                Err(OpenError::NewerSchema { found, known: SCHEMA })
            };
        };
        if !allowed {
            return Err(OpenError::OlderSchema { found, known: SCHEMA });
        }
        let number = found + 1;
        let failed = |source| OpenError::Migration { number, source };
        transaction.execute(sqlx::raw_sql(*sql)).await.map_err(failed)?;
        let track = format!(
            "CREATE TABLE IF NOT EXISTS forgeplane_schema (single BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (single), version INTEGER NOT NULL);
             INSERT INTO forgeplane_schema (version) VALUES ({number})
                 ON CONFLICT (single) DO UPDATE SET version = excluded.version"
        );
        transaction.execute(sqlx::raw_sql(AssertSqlSafe(track))).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)?;
    }
}
