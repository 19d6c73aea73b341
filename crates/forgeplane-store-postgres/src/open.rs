//! Opening the database: connections, what the server must promise, schema.

use std::str::FromStr as _;
use std::time::Duration;

use secrecy::ExposeSecret as _;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection as _, PgConnection};

use crate::error::OpenError;
use crate::options::PostgresOptions;

/// `server_version_num` of the oldest supported server.
const OLDEST: i32 = 140_000;

/// A pooled connection that was idle for longer is asked whether it lives before it is used.
const DOUBT: Duration = Duration::from_secs(1);

/// The pool. Nothing is connected yet.
pub(crate) fn pool(options: &PostgresOptions) -> Result<PgPool, OpenError> {
    let connect = PgConnectOptions::from_str(options.url.expose_secret())
        .map_err(OpenError::Url)?
        .application_name("forgeplane")
        .statement_cache_capacity(if options.prepared_statements { 512 } else { 0 })
        // Poolers refuse start-up parameters that they do not know; no floating point numbers are read.
        .extra_float_digits(None::<i8>);
    Ok(PgPoolOptions::new()
        .max_connections(options.connections.max(2))
        .acquire_timeout(Duration::from_secs(5))
        .test_before_acquire(false)
        .before_acquire(|connection, meta| {
            Box::pin(async move {
                if meta.idle_for > DOUBT {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
        .connect_lazy_with(connect))
}

/// Requires a server that keeps what it commits.
pub(crate) async fn check(connection: &mut PgConnection, unsafe_durability: bool) -> Result<(), OpenError> {
    let setting = async |connection: &mut PgConnection, name: &'static str| {
        sqlx::query_scalar::<_, String>("SELECT current_setting($1)")
            .bind(name)
            .persistent(false)
            .fetch_one(connection)
            .await
            .map_err(OpenError::Unreachable)
    };
    let found = setting(connection, "server_version_num").await?.parse().unwrap_or(0);
    if found < OLDEST {
        return Err(OpenError::OldServer { found, needed: OLDEST });
    }
    // `local` and above wait for this server's own disk.
    for (name, refused, needed) in
        [("fsync", "off", "on"), ("full_page_writes", "off", "on"), ("synchronous_commit", "off", "on")]
    {
        let value = setting(connection, name).await?;
        if value == refused {
            if !unsafe_durability {
                return Err(OpenError::NotDurable { setting: name, found: value, needed });
            }
            tracing::warn!(setting = name, value, "the database may lose committed transactions");
        }
    }
    Ok(())
}
