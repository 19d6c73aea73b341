//! The event sink port: the library's way to follow what happens.

use async_trait::async_trait;

use super::BoxError;
use crate::model::Event;

/// Receives every event, in order, at least once.
#[async_trait]
pub trait EventSink: Send + Sync + 'static {
    /// The sequence number of the last event the sink has dealt with; 0 for none. Asked once at start-up.
    ///
    /// # Errors
    /// When the sink cannot tell; asked again later.
    async fn cursor(&self) -> Result<u64, BoxError>;

    /// Takes some events. After an error the same events are offered again.
    ///
    /// # Errors
    /// When the sink could not deal with them.
    async fn deliver(&self, events: &[Event]) -> Result<(), BoxError>;
}
