//! Why a store file cannot be used.

use std::io;
use std::path::PathBuf;

use rusqlite::ErrorCode;

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
    /// It was written by an older version, and may only be read.
    #[error(
        "the store has schema {found}, this version reads {known}: let this version's coordinator start on it once"
    )]
    OlderSchema {
        /// Its schema; 0 if there is none.
        found: usize,
        /// The schema this version needs.
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
            Self::OlderSchema { .. } => "store_older_schema",
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
