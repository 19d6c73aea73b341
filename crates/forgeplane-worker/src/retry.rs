//! Asking again: with growing pauses, for as long as it makes sense.

use std::time::Duration;

use forgeplane_core::ports::ControlError;
use tokio_util::sync::CancellationToken;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(15);

/// Pauses between tries: doubling, with full jitter, at most 15 s.
#[derive(Debug)]
pub(crate) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Pause {
    /// Waits; `false` if `stop` was cancelled meanwhile.
    pub(crate) async fn wait(&mut self, stop: &CancellationToken) -> bool {
        let mut random = [0; 2];
        // Without randomness the pause is simply not jittered.
        let _ = getrandom::fill(&mut random);
        let share = f64::from(u16::from_le_bytes(random)) / f64::from(u16::MAX);
        let pause = self.0.mul_f64(0.5 + share / 2.0);
        self.0 = (self.0 * 2).min(LONGEST);
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = stop.cancelled() => false,
        }
    }
}

/// Repeats a call while the coordinator is not available; gives the last error when `stop` is cancelled.
pub(crate) async fn while_unavailable<T, F, Fut>(
    what: &str,
    stop: &CancellationToken,
    call: F,
) -> Result<T, ControlError>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, ControlError>>,
{
    let mut pause = Pause::default();
    loop {
        match call().await {
            Err(ControlError::Unavailable(error)) => {
                tracing::warn!(what, %error, "the coordinator is not available; trying again");
                if !pause.wait(stop).await {
                    return Err(ControlError::Unavailable(error));
                }
            }
            other => return other,
        }
    }
}
