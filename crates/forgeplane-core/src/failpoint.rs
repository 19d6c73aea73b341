//! Places where a process dies when a test says so: after each step of `protocol.md` 1.4, before anybody else hears of
//! it.
//!
//! `FORGEPLANE_CRASH_AT=signed_journaled` lets a process abort when it reaches that place. Builds without debug assertions
//! have no such places.

use std::fmt;
use std::str::FromStr;

macro_rules! failpoints {
    ($($(#[$doc:meta])* $name:ident = $label:literal, $process:ident;)*) => {
        /// A place where a process may die.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Failpoint {
            $($(#[$doc])* $name,)*
        }

        impl Failpoint {
            /// Every place, in the order in which a run reaches them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its label.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }

            /// Whose process dies there.
            #[must_use]
            pub const fn process(self) -> Process {
                match self { $(Self::$name => Process::$process,)* }
            }
        }
    };
}

/// Whose process it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Process {
    /// A coordinator's.
    Coordinator,
    /// A worker's.
    Worker,
}

failpoints! {
    /// S0: the run is committed; whoever asked for it does not know.
    Admitted = "admitted", Coordinator;
    /// S1: the offer is committed, its job in the outbox.
    Offered = "offered", Coordinator;
    /// S2: the broker has the job; the outbox still has it too.
    Published = "published", Coordinator;
    /// S3: a worker has the job, and has done nothing with it.
    JobTaken = "job_taken", Worker;
    /// S4: the workspace is ready.
    Prepared = "prepared", Worker;
    /// S5: the intent is on disk, no claim was sent.
    IntentJournaled = "intent_journaled", Worker;
    /// S6: the claim is committed; the worker does not know.
    ClaimCommitted = "claim_committed", Coordinator;
    /// S6: the worker knows, and its journal still says INTENT.
    GrantReceived = "grant_received", Worker;
    /// S7: the journal says STARTED, and nothing was.
    StartedJournaled = "started_journaled", Worker;
    /// S8: the tool runs.
    ToolStarted = "tool_started", Worker;
    /// S8: a state generation is committed; the worker does not know.
    StateCommitted = "state_committed", Coordinator;
    /// S9: the tool is gone, and nothing is signed.
    ToolEnded = "tool_ended", Worker;
    /// S10: the outcome is on disk, and was not sent.
    SignedJournaled = "signed_journaled", Worker;
    /// S11: the receipt is committed; the worker does not know.
    ReceiptCommitted = "receipt_committed", Coordinator;
    /// S12: the worker knows, and its journal still says SIGNED.
    ReceiptReceived = "receipt_received", Worker;
    /// S12: the journal says RECEIPTED.
    ReceiptJournaled = "receipt_journaled", Worker;
    /// S14: the journal has forgotten, and the broker still has the job.
    Forgotten = "forgotten", Worker;
    /// S13: the broker has forgotten too.
    Acknowledged = "acknowledged", Worker;
}

impl fmt::Display for Failpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A label that names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no failpoint of that name")]
pub struct UnknownFailpoint;

impl FromStr for Failpoint {
    type Err = UnknownFailpoint;

    fn from_str(text: &str) -> Result<Self, UnknownFailpoint> {
        Self::ALL.iter().copied().find(|point| point.as_str() == text).ok_or(UnknownFailpoint)
    }
}

/// Dies here, if a test says so: at once, with nothing written and nobody told.
#[cfg(debug_assertions)]
pub fn reach(point: Failpoint) {
    use std::sync::OnceLock;
    static ARMED: OnceLock<Option<Failpoint>> = OnceLock::new();
    let armed = ARMED.get_or_init(|| {
        let label = std::env::var("FORGEPLANE_CRASH_AT").ok()?;
        label.parse().ok()
    });
    if *armed == Some(point) {
        std::process::abort();
    }
}

/// Nothing, in a build that people use.
#[cfg(not(debug_assertions))]
pub const fn reach(_: Failpoint) {}
