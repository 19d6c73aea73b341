//! How to reach the database.

use secrecy::SecretString;
use serde::Deserialize;

/// How to reach the database and how to use it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PostgresOptions {
    /// Where it is and who we are: `postgres://user:password@host:5432/database?sslmode=verify-full&sslrootcert=…`.
    pub url: SecretString,
    /// The most connections of this coordinator. One of them commits, the others read.
    pub connections: u32,
    /// Keep statements prepared on their connection. Off behind a pooler that gives out connections by
    /// transaction and does not follow prepared statements (PgBouncer before 1.21).
    pub prepared_statements: bool,
    /// Bring the schema up to date. Off where another role migrates before.
    pub migrate: bool,
    /// Only read: nothing is migrated, commits are refused, and a role that may only read is enough.
    pub read_only: bool,
    /// Accept a server that may lose committed transactions. Only for databases whose content may be lost.
    pub unsafe_durability: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            url: SecretString::from(""),
            connections: 10,
            prepared_statements: true,
            migrate: true,
            read_only: false,
            unsafe_durability: false,
        }
    }
}

impl PostgresOptions {
    /// The defaults for the database at `url`.
    #[must_use]
    pub fn new(url: impl Into<SecretString>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }
}
