//! Why a database cannot be used.

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The connection options do not say where the database is.
    #[error(
        "the database URL cannot be used: {0}; it looks like `postgres://user:password@host:5432/database`"
    )]
    Url(#[source] sqlx::Error),
    /// The server cannot be reached or does not let us in.
    #[error("the database cannot be reached: {0}")]
    Unreachable(#[source] sqlx::Error),
    /// The server is too old.
    #[error("the server is PostgreSQL {found}, {needed} or newer is needed")]
    OldServer {
        /// Its version, as PostgreSQL numbers them (`150004`).
        found: i32,
        /// The oldest version that is supported.
        needed: i32,
    },
    /// The server may lose committed transactions.
    #[error(
        "the server may forget what it committed: `{setting}` is `{found}`, and an attempt that ran could run again; \
         set it to `{needed}`, or set `unsafe_durability` if this database may lose its content"
    )]
    NotDurable {
        /// The setting.
        setting: &'static str,
        /// Its value.
        found: String,
        /// The value it must have.
        needed: &'static str,
    },
    /// It was written by a newer version.
    #[error(
        "the database has schema {found}, this version knows {known}: use the newer Forgeplane that wrote it, or restore a backup from before the upgrade"
    )]
    NewerSchema {
        /// Its schema.
        found: i32,
        /// The newest schema this version knows.
        known: i32,
    },
    /// The schema is not there yet, and this connection may not make it.
    #[error(
        "the database has schema {found}, this version needs {known}: start once with `migrate` set, as a role that may create tables"
    )]
    OlderSchema {
        /// Its schema; 0 if there is none.
        found: i32,
        /// The schema this version needs.
        known: i32,
    },
    /// A migration failed; it left nothing behind.
    #[error("migration {number} failed and left nothing behind: {source}")]
    Migration {
        /// Which one.
        number: i32,
        /// Why.
        source: sqlx::Error,
    },
}

impl OpenError {
    /// Stable machine code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Url(_) => "store_url_invalid",
            Self::Unreachable(_) => "store_unavailable",
            Self::OldServer { .. } => "store_server_too_old",
            Self::NotDurable { .. } => "store_not_durable",
            Self::NewerSchema { .. } => "store_newer_schema",
            Self::OlderSchema { .. } => "store_older_schema",
            Self::Migration { .. } => "store_migration_failed",
        }
    }

    /// Whether opening again may succeed without anybody changing anything.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_))
    }
}
