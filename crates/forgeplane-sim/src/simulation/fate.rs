//! Everything that is left to chance, drawn from one seed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forgeplane_core::memory::SeededEntropy;
use forgeplane_core::ports::{Entropy, EntropyExt as _};

/// The dice of one schedule. Whoever asks first gets the first throw, so the same seed gives the same schedule.
pub(super) struct Fate {
    random: SeededEntropy,
    calm: AtomicBool,
}

impl Fate {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: SeededEntropy::new(seed), calm: AtomicBool::new(true) }
    }

    /// From now on nothing goes wrong any more; or from now on it may.
    pub(super) fn set_calm(&self, calm: bool) {
        self.calm.store(calm, Ordering::Relaxed);
    }

    /// A number from 0 to `below - 1`.
    pub(super) fn below(&self, below: u64) -> u64 {
        u64::from_le_bytes(self.random.bytes()) % below.max(1)
    }

    /// Whether something happens that happens so many times in a thousand.
    pub(super) fn happens(&self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// Whether something goes wrong that does so many times in a thousand, while things may go wrong.
    pub(super) fn fails(&self, per_mille: u64) -> bool {
        !self.calm.load(Ordering::Relaxed) && self.happens(per_mille)
    }

    /// Whole milliseconds, at most so many.
    pub(super) fn millis(&self, at_most: u64) -> Duration {
        Duration::from_millis(self.below(at_most + 1))
    }

    /// How long something takes that is usually quick and sometimes is not.
    pub(super) fn latency(&self) -> Duration {
        match self.below(100) {
            0..60 => Duration::ZERO,
            60..97 => self.millis(6),
            _ => self.millis(400),
        }
    }
}

impl Entropy for Fate {
    fn fill(&self, bytes: &mut [u8]) {
        self.random.fill(bytes);
    }
}
