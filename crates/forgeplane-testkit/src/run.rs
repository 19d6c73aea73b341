//! Runs a story to its end.

use std::time::Duration;

use crate::builder::Time;

/// Longer than any story takes on a slow machine; a story that takes longer hangs, and that is a failure.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a story on a runtime of its own, with several threads.
///
/// # Panics
/// If the story panics or hangs.
pub fn story<F: Future>(story: F) -> F::Output {
    story_in(Time::Real, story)
}

/// Runs a story on a runtime of its own, in which time passes as stated.
///
/// # Panics
/// If the story panics or hangs.
pub fn story_in<F: Future>(time: Time, story: F) -> F::Output {
    let mut runtime = match time {
        Time::Real => tokio::runtime::Builder::new_multi_thread(),
        Time::Paused => tokio::runtime::Builder::new_current_thread(),
    };
    match time {
        Time::Real => runtime.worker_threads(4),
        Time::Paused => runtime.start_paused(true),
    };
    let runtime = runtime.enable_all().build().expect("a runtime for the story");
    let ended = runtime.block_on(async { tokio::time::timeout(LIMIT, story).await });
    ended.expect("the story hangs: it waits for something that does not come")
}
