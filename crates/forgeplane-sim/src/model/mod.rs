//! The model: what there is, what can happen next, and what must never be.

mod coordinator;
mod properties;
mod state;
mod store;
mod worker;

use stateright::{Model, Property};

pub use state::{Kind, Message, Phase, Process, Stage, State, Statement, Witness};
pub use store::Stored;

/// How far the model goes. Everything within is visited.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Workers.
    pub workers: u8,
    /// Runs, all of one instance, which each of them changes.
    pub runs: u8,
    /// Offers, all runs together.
    pub attempts: u8,
    /// Crashes of workers.
    pub crashes: u8,
    /// Crashes may lose the journal too.
    pub lost_journals: bool,
    /// State documents that a tool saves.
    pub writes: u8,
    /// Cancel requests.
    pub cancels: u8,
    /// Requeues.
    pub requeues: u8,
    /// Operators' decisions.
    pub decisions: u8,
    /// Replaced keys.
    pub rotations: u8,
    /// Deadlines that pass.
    pub deadlines: u8,
}

impl Default for Limits {
    /// One run, one worker, everything else once.
    fn default() -> Self {
        Self {
            workers: 1,
            runs: 1,
            attempts: 2,
            crashes: 1,
            lost_journals: true,
            writes: 1,
            cancels: 0,
            requeues: 0,
            decisions: 0,
            rotations: 0,
            deadlines: 0,
        }
    }
}

/// A guard that is left out, to see whether its absence is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// H1: a `not_started` counts whatever nonce it names.
    AnyNotStarted,
    /// H2: a worker takes any answer as the receipt of what it sent.
    AnyReceipt,
    /// H3: a worker uses one nonce for everything.
    OneNonce,
    /// A claim counts for the run's current attempt, whatever fence it names.
    AnyFence,
    /// A second claim with another nonce is granted.
    AnyNonce,
    /// A claim is granted whatever state the attempt is in.
    AnyStatus,
    /// Two attempts may change one instance at the same time.
    NoWriterSlot,
    /// A state write counts whatever generation it builds on.
    AnyGeneration,
    /// A worker forgets an outcome when it is sent.
    ForgetBeforeReceipt,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::AnyNotStarted,
        Self::AnyReceipt,
        Self::OneNonce,
        Self::AnyFence,
        Self::AnyNonce,
        Self::AnyStatus,
        Self::NoWriterSlot,
        Self::AnyGeneration,
        Self::ForgetBeforeReceipt,
    ];
}

/// Something that happens. Attempts and workers are named by their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The scheduler offers a run to a worker.
    Offer {
        /// The run.
        run: u8,
        /// The worker.
        worker: u8,
    },
    /// An offer expires.
    Expire(u8),
    /// A worker is missed.
    Miss(u8),
    /// A missed worker is heard of again, with its claim.
    HearAgain(u8),
    /// The deadline of an execution passes.
    Deadline(u8),
    /// Somebody cancels a run.
    Cancel(u8),
    /// Somebody requeues a run.
    Requeue(u8),
    /// An operator decides that an unresolved execution failed.
    DecideFailed(u8),
    /// Two operators decide that an unresolved execution succeeded.
    DecideSucceeded(u8),
    /// A message arrives; it may arrive again.
    Deliver(Message),
    /// A worker takes a job from the broker.
    Take {
        /// The worker.
        worker: u8,
        /// The attempt of the job.
        attempt: u8,
    },
    /// The tool of a worker saves its state.
    Save(u8),
    /// The tool of a worker ends.
    End {
        /// The worker.
        worker: u8,
        /// Whether it did what it should.
        well: bool,
    },
    /// A worker stops its tool as it was asked to.
    Stop(u8),
    /// A worker replaces its key.
    Rotate(u8),
    /// A worker crashes; its tool goes on.
    Crash {
        /// The worker.
        worker: u8,
        /// Whether its disk survives.
        keeps_journal: bool,
    },
    /// A crashed worker starts again, and kills what it finds running.
    Restart(u8),
}

/// The protocol within limits.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// How far it goes.
    pub limits: Limits,
    /// The guard that is left out.
    pub bug: Option<Bug>,
    start: State,
}

impl Protocol {
    /// The protocol as it is.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, bug: None, start: State::start(limits) }
    }

    /// The protocol without one of its guards.
    #[must_use]
    pub fn without(bug: Bug, limits: Limits) -> Self {
        Self { bug: Some(bug), ..Self::new(limits) }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.coordinator_actions(state, actions);
        self.worker_actions(state, actions);
        actions.extend(state.messages.iter().copied().map(Action::Deliver));
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let happened = match action {
            Action::Take { worker, attempt } => self.take(&mut state, worker, attempt),
            Action::Save(worker) => self.save(&mut state, worker),
            Action::End { worker, well } => self.end(&mut state, worker, well),
            Action::Stop(worker) => self.stop(&mut state, worker),
            Action::Crash { worker, keeps_journal } => self.crash(&mut state, worker, keeps_journal),
            Action::Restart(worker) => self.restart(&mut state, worker),
            Action::Deliver(message) if message.is_answer() => self.hear(&mut state, message),
            Action::Deliver(message) => self.answer(&mut state, message),
            other => self.decide(&mut state, other),
        };
        // What changes nothing is no step.
        (happened && state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
