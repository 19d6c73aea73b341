//! Partitions of the append-only tables: events by number, logs by the month of their attempt.

use std::collections::BTreeSet;

use forgeplane_core::Timestamp;
use forgeplane_core::id::AttemptId;
use jiff::ToSpan as _;
use jiff::civil::Date;
use jiff::tz::Offset;
use sqlx::PgConnection;

/// Events in one partition.
const EVENTS: i64 = 1 << 22;

/// Makes the partition of event `seq` and the one after it, so that none is missing when it is needed.
pub(crate) async fn ensure_events(connection: &mut PgConnection, seq: i64) -> Result<(), sqlx::Error> {
    for number in [seq / EVENTS, seq / EVENTS + 1] {
        sqlx::query("SELECT forgeplane_event_partition($1, $2)")
            .bind(number)
            .bind(EVENTS)
            .persistent(false)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// A month of log partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Month(Date);

impl Month {
    /// The month of an instant, UTC.
    pub(crate) fn of(at: Timestamp) -> Self {
        Self(Offset::UTC.to_datetime(at).date().first_of_month())
    }

    /// The month in which an attempt's id was made.
    pub(crate) fn of_attempt(attempt: AttemptId) -> Self {
        Self::of(attempt.created_at())
    }

    /// The month after this one; the last month of time is its own successor.
    pub(crate) fn next(self) -> Self {
        self.0.checked_add(1.month()).map_or(self, Self)
    }

    /// The smallest attempt id of the month.
    fn first_attempt(self) -> String {
        let start = Offset::UTC.to_timestamp(self.0.at(0, 0, 0, 0)).unwrap_or(Timestamp::MAX);
        AttemptId::new(start, [0; 10]).to_string()
    }
}

/// Makes the partitions of the logs of these months.
pub(crate) async fn ensure_logs(
    connection: &mut PgConnection,
    months: &BTreeSet<Month>,
) -> Result<(), sqlx::Error> {
    for month in months {
        sqlx::query("SELECT forgeplane_log_partition($1, $2, $3)")
            .bind(month.0.strftime("%Y_%m").to_string())
            .bind(month.first_attempt())
            .bind(month.next().first_attempt())
            .persistent(false)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn an_attempt_lies_between_the_bounds_of_its_month() {
        for text in [
            "1970-01-01T00:00:00Z",
            "2026-12-01T00:00:00Z",
            "2026-12-31T23:59:59.999Z",
            "2038-01-19T03:14:08Z",
        ] {
            for random in [[0; 10], [0xff; 10]] {
                let attempt = AttemptId::new(at(text), random);
                let month = Month::of_attempt(attempt);
                assert_eq!(month, Month::of(at(text)));
                let id = attempt.to_string();
                assert!(month.first_attempt() <= id && id < month.next().first_attempt(), "{text}");
            }
        }
    }
}
