//! Opening the file: ownership, settings, schema.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::migrate;

/// Why a store file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("another process works with {}; one SQLite file belongs to one process: stop the other one, or use another file", .path.display())]
    Locked {
        /// The store file.
        path: PathBuf,
    },
    /// It was written by a newer version.
    #[error(
        "the store has schema {found}, this version knows {known}: use the newer Forgeplane that wrote it, or restore a backup from before the upgrade"
    )]
    NewerSchema {
        /// Its schema.
        found: usize,
        /// The newest schema this version knows.
        known: usize,
    },
    /// It is not SQLite at all.
    #[error("the file is not an SQLite database: choose another file, or restore it from a backup")]
    NotADatabase(#[source] rusqlite::Error),
    /// It is another program's database.
    #[error("the file is an SQLite database of another program: choose another file")]
    NotForgeplane,
    /// The file or its directory cannot be read, written or created.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// SQLite failed.
    #[error("the database cannot be opened: {0}")]
    Sqlite(#[source] rusqlite::Error),
}

impl OpenError {
    /// Stable machine code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "store_locked",
            Self::NewerSchema { .. } => "store_newer_schema",
            Self::NotADatabase(_) => "store_not_a_database",
            Self::NotForgeplane => "store_not_forgeplane",
            Self::Io { .. } | Self::Sqlite(_) => "store_unavailable",
        }
    }

    pub(crate) fn from_sqlite(error: rusqlite::Error) -> Self {
        if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) {
            Self::NotADatabase(error)
        } else {
            Self::Sqlite(error)
        }
    }
}

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

/// A connection that only reads.
pub(crate) fn reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(connection)
}
