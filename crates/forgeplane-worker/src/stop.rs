//! The stop latch of an attempt: cancel, deadline and shutdown share it, and the first one counts.

use forgeplane_core::model::StopCause;
use tokio::sync::watch;

/// Set once, watched by whoever runs commands.
#[derive(Debug, Clone)]
pub(crate) struct StopLatch(watch::Sender<Option<StopCause>>);

impl Default for StopLatch {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl StopLatch {
    /// Asks to stop; later causes change nothing.
    pub(crate) fn stop(&self, cause: StopCause) {
        self.0.send_if_modified(|first| {
            let news = first.is_none();
            first.get_or_insert(cause);
            news
        });
    }

    /// The first cause, if a stop was asked for.
    pub(crate) fn cause(&self) -> Option<StopCause> {
        *self.0.borrow()
    }

    /// Waits until a stop is asked for.
    pub(crate) async fn stopped(&self) -> StopCause {
        let mut watch = self.0.subscribe();
        loop {
            if let Some(cause) = *watch.borrow_and_update() {
                return cause;
            }
            // The sender is `self`, which outlives this call.
            let _ = watch.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn d3_the_first_cause_counts() {
        let latch = StopLatch::default();
        assert_eq!(latch.cause(), None);
        latch.stop(StopCause::Deadline);
        latch.stop(StopCause::Cancel);
        assert_eq!(latch.stopped().await, StopCause::Deadline);
    }
}
