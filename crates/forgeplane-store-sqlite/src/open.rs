//! Opening the file: ownership, settings, schema.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::error::OpenError;
use crate::migrate;

/// Makes the directory (0700) and takes the lock; the operating system releases it when the process ends,
/// however that happens.
pub(crate) fn take_ownership(path: &Path) -> Result<File, OpenError> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { path, source }
    };
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(io(parent))?;
    }
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&lock_path)
        .map_err(io(&lock_path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::Locked { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => return Err(io(&lock_path)(source)),
    }
    // SQLite creates files by the umask; the content is not for others.
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path).map_err(io(path))?;
    Ok(lock)
}

/// The one connection that writes.
pub(crate) fn writer(path: &Path) -> Result<Connection, OpenError> {
    let mut connection = Connection::open(path).map_err(OpenError::from_sqlite)?;
    settings(&connection).map_err(OpenError::from_sqlite)?;
    migrate::migrate(&mut connection)?;
    Ok(connection)
}

fn settings(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", "ON")?;
    connection.pragma_update(None, "trusted_schema", "OFF")?;
    connection.set_prepared_statement_cache_capacity(256);
    Ok(())
}

/// Requires a file of this very schema.
pub(crate) fn check_readable(path: &Path) -> Result<(), OpenError> {
    // SQLite says only that it cannot open the file.
    File::open(path).map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
    migrate::require_current(&reader(path).map_err(OpenError::from_sqlite)?)
}

/// A connection that only reads.
pub(crate) fn reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(connection)
}
