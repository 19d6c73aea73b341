//! The database's clock.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use forgeplane_core::Timestamp;
use forgeplane_core::ports::Clock;
use sqlx::PgConnection;

/// How often the clock is compared with the database's.
pub(crate) const COMPARE: Duration = Duration::from_secs(10);

/// The database's clock: all coordinators on one database tell the same time, whatever their machines say.
///
/// Between comparisons (every ten seconds) it runs by the machine's monotonic clock, so that telling the time needs
/// no query and a step of the machine's clock has no effect.
#[derive(Debug, Clone)]
pub struct DatabaseClock {
    anchor: Arc<RwLock<(Instant, Timestamp)>>,
}

impl DatabaseClock {
    /// Reads the database's clock for the first time.
    pub(crate) async fn read(connection: &mut PgConnection) -> Result<Self, sqlx::Error> {
        Ok(Self { anchor: Arc::new(RwLock::new(measure(connection).await?)) })
    }

    /// Compares with the database again.
    pub(crate) async fn compare(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let anchor = measure(connection).await?;
        *self.anchor.write().unwrap_or_else(PoisonError::into_inner) = anchor;
        Ok(())
    }
}

impl Clock for DatabaseClock {
    fn now(&self) -> Timestamp {
        let (instant, time) = *self.anchor.read().unwrap_or_else(PoisonError::into_inner);
        time.checked_add(instant.elapsed()).unwrap_or(Timestamp::MAX)
    }
}

/// The database's time, and the middle of the exchange that told it.
async fn measure(connection: &mut PgConnection) -> Result<(Instant, Timestamp), sqlx::Error> {
    let asked = Instant::now();
    let micros: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        .persistent(false)
        .fetch_one(connection)
        .await?;
    let middle = asked + asked.elapsed() / 2;
    let time = Timestamp::from_microsecond(micros).map_err(|e| sqlx::Error::Decode(e.into()))?;
    Ok((middle, time))
}
