//! Asking again: with growing pauses, for as long as it makes sense.

use std::sync::Arc;
use std::time::Duration;

use forgeplane_core::ports::{ControlError, Entropy, EntropyExt as _};
use tokio_util::sync::CancellationToken;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(15);

/// Pauses between tries: doubling, with full jitter, at most 15 s.
pub(crate) struct Pause {
    next: Duration,
    entropy: Arc<dyn Entropy>,
}

impl Pause {
    pub(crate) fn new(entropy: Arc<dyn Entropy>) -> Self {
        Self { next: FIRST, entropy }
    }

    /// What was waited for came: the next pause is a short one again.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }

    /// Waits; `false` if `stop` was cancelled meanwhile.
    pub(crate) async fn wait(&mut self, stop: &CancellationToken) -> bool {
        let share = f64::from(u16::from_le_bytes(self.entropy.bytes())) / f64::from(u16::MAX);
        let pause = self.next.mul_f64(0.5 + share / 2.0);
        self.next = (self.next * 2).min(LONGEST);
        tokio::select! {
            biased;
            () = tokio::time::sleep(pause) => true,
            () = stop.cancelled() => false,
        }
    }
}

/// How long a call that is under way may still take once nobody wants to wait any more.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Repeats a call while the coordinator is not available; gives the last error when `stop` is cancelled. A
/// call is always tried once, and one that gets no answer at all does not hold up the end for long.
pub(crate) async fn while_unavailable<T, F, Fut>(
    mut pause: Pause,
    what: &str,
    stop: &CancellationToken,
    call: F,
) -> Result<T, ControlError>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, ControlError>>,
{
    let out_of_patience = async {
        stop.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::pin!(out_of_patience);
    loop {
        let answer = tokio::select! {
            biased;
            answer = call() => answer,
            () = &mut out_of_patience => Err(ControlError::Unavailable("no answer".into())),
        };
        match answer {
            Err(ControlError::Unavailable(error)) => {
                tracing::warn!(what, %error, "the coordinator is not available; trying again");
                if stop.is_cancelled() || !pause.wait(stop).await {
                    return Err(ControlError::Unavailable(error));
                }
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use forgeplane_core::ports::SystemEntropy;

    use super::*;

    fn pause() -> Pause {
        Pause::new(Arc::new(SystemEntropy))
    }

    #[tokio::test]
    async fn a_call_is_repeated_until_it_is_answered() {
        let tries = AtomicUsize::new(0);
        let call = || async {
            match tries.fetch_add(1, Ordering::SeqCst) {
                0..2 => Err(ControlError::Unavailable("away".into())),
                n => Ok(n),
            }
        };
        assert_eq!(while_unavailable(pause(), "test", &CancellationToken::new(), call).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_call_is_tried_once_although_the_end_was_asked_for() {
        let stop = CancellationToken::new();
        stop.cancel();
        assert_eq!(while_unavailable(pause(), "test", &stop, || async { Ok(7) }).await.unwrap(), 7);
        let away = || async { Err::<(), _>(ControlError::Unavailable("away".into())) };
        assert!(while_unavailable(pause(), "test", &stop, away).await.is_err());
    }

    #[tokio::test]
    async fn a_call_without_an_answer_does_not_hold_up_the_end() {
        let stop = CancellationToken::new();
        stop.cancel();
        let begun = std::time::Instant::now();
        let silent = || std::future::pending::<Result<(), ControlError>>();
        assert!(while_unavailable(pause(), "test", &stop, silent).await.is_err());
        assert!(begun.elapsed() >= LAST_WORDS);
    }
}
