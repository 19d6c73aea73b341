//! Time and randomness, the only two places they come from.

use jiff::Timestamp;

/// Tells the time. With a database that has its own clock, that clock.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Gives random bytes.
pub trait Entropy: Send + Sync + 'static {
    /// Fills `bytes` with unpredictable values.
    fn fill(&self, bytes: &mut [u8]);
}

/// The operating system's random numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    /// # Panics
    /// When the operating system has no random numbers: nothing secure can be done then.
    #[allow(clippy::expect_used)]
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the operating system provides random numbers");
    }
}

/// Sugar over [`Entropy`].
pub trait EntropyExt: Entropy {
    /// `N` random bytes.
    fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }
}

impl<E: Entropy + ?Sized> EntropyExt for E {}
