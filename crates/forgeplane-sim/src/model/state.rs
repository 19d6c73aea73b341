//! What there is at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use super::Limits;
use super::store::Stored;

/// How an execution ended, as a worker signs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// It did what it should.
    Succeeded,
    /// It did not.
    Failed,
    /// It was stopped on request.
    Canceled,
    /// It was stopped by the deadline.
    TimedOut,
    /// It never began, and never will under this nonce.
    NotStarted,
}

/// A signed statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Statement {
    /// The attempt it is about.
    pub attempt: u8,
    /// The claim's nonce.
    pub nonce: u8,
    /// What it says.
    pub kind: Kind,
    /// The key that signed.
    pub key: u8,
}

/// A message on its way. It arrives any number of times, in any order, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// "I begin to execute this attempt now."
    Claim {
        /// The attempt.
        attempt: u8,
        /// Who says so.
        worker: u8,
        /// The intent's nonce.
        nonce: u8,
    },
    /// "Begin."
    Grant {
        /// The attempt.
        attempt: u8,
        /// To whom.
        worker: u8,
        /// The nonce it was granted to.
        nonce: u8,
    },
    /// "Do not."
    Denied {
        /// The attempt.
        attempt: u8,
        /// To whom.
        worker: u8,
        /// The nonce it was refused to.
        nonce: u8,
    },
    /// A state document.
    Write {
        /// The attempt.
        attempt: u8,
        /// Who sends it.
        worker: u8,
        /// The claim's nonce.
        nonce: u8,
        /// The generation it builds on.
        expected: u8,
    },
    /// "That is this generation."
    Wrote {
        /// The attempt.
        attempt: u8,
        /// To whom.
        worker: u8,
        /// The generation.
        generation: u8,
    },
    /// A signed statement.
    Conclude {
        /// Who sends it.
        worker: u8,
        /// The statement.
        statement: Statement,
    },
    /// "I have this statement for good."
    Receipt {
        /// To whom.
        worker: u8,
        /// The statement that was received.
        statement: Statement,
    },
    /// "I will never take this statement."
    Refused {
        /// To whom.
        worker: u8,
        /// The statement.
        statement: Statement,
    },
}

impl Message {
    /// Whether it goes to a worker.
    #[must_use]
    pub const fn is_answer(self) -> bool {
        matches!(
            self,
            Self::Grant { .. }
                | Self::Denied { .. }
                | Self::Wrote { .. }
                | Self::Receipt { .. }
                | Self::Refused { .. }
        )
    }
}

/// How far a journaled attempt got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// A claim may have been sent.
    Intent,
    /// The tool may have been started.
    Started,
    /// This statement is to be delivered.
    Signed(Statement),
}

/// What a worker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Nothing, or settling what its journal has.
    Idle,
    /// It waits for the grant of this attempt and nonce.
    Claiming(u8, u8),
    /// Its tool runs for this attempt and nonce.
    Running(u8, u8),
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Process {
    /// Whether it runs.
    pub up: bool,
    /// How many intents it ever had; each gets a nonce of its own.
    pub intents: u8,
    /// The key it signs with.
    pub key: u8,
    /// What it is doing.
    pub phase: Phase,
    /// The state generation its tool is at.
    pub generation: u8,
    /// Documents its tool has saved.
    pub saved: u8,
    /// What is on its disk: by attempt, the nonce and how far it got.
    pub journal: BTreeMap<u8, (u8, Stage)>,
    /// The tool on its machine: attempt and nonce. It may outlive the worker's process.
    pub tool: Option<(u8, u8)>,
}

/// What only an observer of everything knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Witness {
    /// How often a tool was started, by attempt.
    pub starts: BTreeMap<u8, u8>,
    /// Statements that a worker believes to be received for good.
    pub forgotten: BTreeSet<Statement>,
    /// A state write was accepted that did not build on the head.
    pub stale_write: bool,
    /// Something happened to a record that never happens.
    pub rewritten: bool,
}

/// What there is at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The coordinators' store.
    pub stored: Stored,
    /// The workers.
    pub workers: Vec<Process>,
    /// Attempts whose job is with the broker.
    pub jobs: BTreeSet<u8>,
    /// Messages on their way.
    pub messages: BTreeSet<Message>,
    /// What an observer knows.
    pub witness: Witness,
    /// What may still happen.
    pub left: Left,
}

/// What may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Left {
    pub attempts: u8,
    pub crashes: u8,
    pub cancels: u8,
    pub requeues: u8,
    pub decisions: u8,
    pub rotations: u8,
    pub deadlines: u8,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.stored.hash(hasher);
        self.workers.hash(hasher);
        self.jobs.hash(hasher);
        self.messages.hash(hasher);
        self.witness.hash(hasher);
        self.left.hash(hasher);
    }
}

impl State {
    /// Queued runs, idle workers.
    #[must_use]
    pub fn start(limits: Limits) -> Self {
        let stored = Stored::start(limits);
        let process = Process {
            up: true,
            intents: 0,
            key: 0,
            phase: Phase::Idle,
            generation: 0,
            saved: 0,
            journal: BTreeMap::new(),
            tool: None,
        };
        Self {
            stored,
            workers: (0..limits.workers).map(|key| Process { key, ..process.clone() }).collect(),
            jobs: BTreeSet::new(),
            messages: BTreeSet::new(),
            witness: Witness::default(),
            left: Left {
                attempts: limits.attempts,
                crashes: limits.crashes,
                cancels: limits.cancels,
                requeues: limits.requeues,
                decisions: limits.decisions,
                rotations: limits.rotations,
                deadlines: limits.deadlines,
            },
        }
    }
}
