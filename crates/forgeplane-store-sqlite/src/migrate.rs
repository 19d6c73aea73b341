//! Numbered migrations, tracked by `PRAGMA user_version`.

use rusqlite::{Connection, TransactionBehavior};

use crate::error::OpenError;

/// Migration `n` brings version `n` to `n + 1`. Files are never changed after a release.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_initial.sql"),
    include_str!("../migrations/0002_outbox_of_worker.sql"),
    include_str!("../migrations/0003_keys_stay.sql"),
];

/// The schema this version of Forgeplane works with.
pub(crate) const SCHEMA: usize = MIGRATIONS.len();

/// `Forg`, written into the file's header, so that another program's database is not taken for ours.
const APPLICATION_ID: i64 = 0x466f_7267;

/// The file's schema. Refuses other programs' files and newer schemas.
fn found(connection: &Connection) -> Result<usize, OpenError> {
    let found = version(connection)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(OpenError::from_sqlite)?;
    let application: i64 = connection
        .query_row("PRAGMA application_id", [], |row| row.get(0))
        .map_err(OpenError::from_sqlite)?;
    if tables > 0 && application != APPLICATION_ID {
        return Err(OpenError::NotForgeplane);
    }
    if found > SCHEMA {
        return Err(OpenError::NewerSchema { found, known: SCHEMA });
    }
    Ok(found)
}

/// Requires the current schema.
pub(crate) fn require_current(connection: &Connection) -> Result<(), OpenError> {
    match found(connection)? {
        SCHEMA => Ok(()),
        found => Err(OpenError::OlderSchema { found, known: SCHEMA }),
    }
}

/// Brings the file to the current schema; each migration happens whole or not at all.
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), OpenError> {
    let found = found(connection)?;
    for (number, sql) in MIGRATIONS.iter().enumerate().skip(found) {
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(OpenError::from_sqlite)?;
        transaction.execute_batch(sql).map_err(OpenError::from_sqlite)?;
        transaction
            .pragma_update(None, "user_version", i64::try_from(number + 1).unwrap_or(i64::MAX))
            .map_err(OpenError::from_sqlite)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(OpenError::from_sqlite)?;
        transaction.commit().map_err(OpenError::from_sqlite)?;
    }
    Ok(())
}

fn version(connection: &Connection) -> Result<usize, OpenError> {
    let version: i64 =
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(OpenError::from_sqlite)?;
    Ok(usize::try_from(version).unwrap_or(usize::MAX))
}
