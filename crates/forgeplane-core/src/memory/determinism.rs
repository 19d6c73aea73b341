//! Time and randomness that do as they are told.

use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;

use super::lock;
use crate::ports::{Clock, Entropy};

/// A clock that stands still until it is told to move.
#[derive(Debug)]
pub struct ManualClock {
    now: Mutex<Timestamp>,
}

impl ManualClock {
    /// A clock that shows `start`.
    #[must_use]
    pub const fn new(start: Timestamp) -> Self {
        Self { now: Mutex::new(start) }
    }

    /// Moves the clock forward, to the end of time at most; answers with the new time.
    pub fn advance(&self, by: Duration) -> Timestamp {
        let mut now = lock(&self.now);
        *now = now.saturating_add(by).unwrap_or(Timestamp::MAX);
        *now
    }

    /// Sets the clock, also backwards.
    pub fn set(&self, to: Timestamp) {
        *lock(&self.now) = to;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *lock(&self.now)
    }
}

/// Bytes that follow from a seed: the same seed gives the same bytes in the same order.
///
/// **Not for production**: everybody who knows or guesses the seed knows every nonce, token and key.
#[derive(Debug)]
pub struct SeededEntropy {
    state: Mutex<u64>,
}

impl SeededEntropy {
    /// The sequence that belongs to `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: Mutex::new(seed) }
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = lock(&self.state);
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&splitmix64(&mut state).to_le_bytes()[..part.len()]);
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, full period, well mixed.
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::EntropyExt as _;

    #[test]
    fn a_clock_moves_only_when_told() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        assert_eq!(clock.now(), Timestamp::UNIX_EPOCH);
        let later = clock.advance(Duration::from_millis(1_500));
        assert_eq!((clock.now(), later.as_millisecond()), (later, 1_500));
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Timestamp::MAX);
    }

    #[test]
    fn a_seed_decides_every_byte() {
        let draw = |seed| {
            let entropy = SeededEntropy::new(seed);
            (entropy.bytes::<13>(), entropy.bytes::<16>())
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let (first, second) = draw(1);
        assert_ne!(first[..], second[..13]);
    }
}
