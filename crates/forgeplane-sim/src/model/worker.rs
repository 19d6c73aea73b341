//! What workers do: the order of their journal, their claims and their tools (`protocol.md` 1.4).

use forgeplane_core::model::{StopCause, Versioned, Worker};
use std::sync::Arc;

use super::state::{Process, Stage, State};
use super::{Action, Bug, Kind, Message, Phase, Protocol, Statement};

fn process(state: &mut State, worker: u8) -> &mut Process {
    &mut state.workers[usize::from(worker)]
}

impl Protocol {
    pub(super) fn worker_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (worker, it) in (0_u8..).zip(&state.workers) {
            if !it.up {
                actions.push(Action::Restart(worker));
                continue;
            }
            match it.phase {
                Phase::Idle if it.journal.is_empty() => {
                    let id = state.stored.workers[usize::from(worker)].id;
                    let jobs = state.jobs.iter().copied();
                    let own = jobs.filter(|job| state.stored.attempts[usize::from(*job)].worker == id);
                    actions.extend(own.map(|attempt| Action::Take { worker, attempt }));
                }
                Phase::Idle | Phase::Claiming(..) => {}
                Phase::Running(attempt, _) => {
                    actions.extend([true, false].map(|well| Action::End { worker, well }));
                    if it.saved < self.limits.writes {
                        actions.push(Action::Save(worker));
                    }
                    if state.stored.attempts[usize::from(attempt)].stop.is_some() {
                        actions.push(Action::Stop(worker));
                    }
                }
            }
            if state.left.crashes > 0 {
                actions.push(Action::Crash { worker, keeps_journal: true });
                if self.limits.lost_journals {
                    actions.push(Action::Crash { worker, keeps_journal: false });
                }
            }
        }
    }

    /// Journal INTENT, then claim.
    pub(super) fn take(&self, state: &mut State, worker: u8, attempt: u8) -> bool {
        let one = self.bug == Some(Bug::OneNonce);
        let it = process(state, worker);
        // A worker that has an intent for each job it is offered, each crash included, is busy enough.
        if it.intents >= self.limits.attempts + self.limits.crashes {
            return false;
        }
        it.intents += 1;
        let nonce = worker * 32 + if one { 1 } else { it.intents };
        it.journal.insert(attempt, (nonce, Stage::Intent));
        it.phase = Phase::Claiming(attempt, nonce);
        state.messages.insert(Message::Claim { attempt, worker, nonce });
        true
    }

    /// The tool saves a document on top of the generation it is at.
    pub(super) fn save(&self, state: &mut State, worker: u8) -> bool {
        let it = process(state, worker);
        let Phase::Running(attempt, nonce) = it.phase else { return false };
        it.saved += 1;
        let expected = it.generation;
        state.messages.insert(Message::Write { attempt, worker, nonce, expected })
    }

    pub(super) fn end(&self, state: &mut State, worker: u8, well: bool) -> bool {
        self.sign(state, worker, if well { Kind::Succeeded } else { Kind::Failed })
    }

    pub(super) fn stop(&self, state: &mut State, worker: u8) -> bool {
        let Phase::Running(attempt, _) = process(state, worker).phase else { return false };
        match state.stored.attempts[usize::from(attempt)].stop {
            Some(StopCause::Cancel) => self.sign(state, worker, Kind::Canceled),
            Some(StopCause::Deadline | StopCause::Silence) => self.sign(state, worker, Kind::TimedOut),
            None => false,
        }
    }

    /// The tool is gone: journal SIGNED, then send.
    fn sign(&self, state: &mut State, worker: u8, kind: Kind) -> bool {
        let it = process(state, worker);
        let Phase::Running(attempt, nonce) = it.phase else { return false };
        (it.tool, it.phase) = (None, Phase::Idle);
        let statement = Statement { attempt, nonce, kind, key: it.key };
        it.journal.insert(attempt, (nonce, Stage::Signed(statement)));
        self.send(state, worker, statement)
    }

    fn send(&self, state: &mut State, worker: u8, statement: Statement) -> bool {
        if self.bug == Some(Bug::ForgetBeforeReceipt) {
            process(state, worker).journal.remove(&statement.attempt);
            state.witness.forgotten.insert(statement);
        }
        state.messages.insert(Message::Conclude { worker, statement });
        true
    }

    /// A worker hears an answer.
    pub(super) fn hear(&self, state: &mut State, message: Message) -> bool {
        match message {
            Message::Grant { attempt, worker, nonce } => {
                let base = state.stored.attempts[usize::from(attempt)].base_generation;
                let it = process(state, worker);
                if !it.up || it.phase != Phase::Claiming(attempt, nonce) {
                    return false;
                }
                it.journal.insert(attempt, (nonce, Stage::Started));
                (it.phase, it.tool) = (Phase::Running(attempt, nonce), Some((attempt, nonce)));
                (it.generation, it.saved) = (u8::try_from(base).unwrap_or(u8::MAX), 0);
                *state.witness.starts.entry(attempt).or_default() += 1;
                true
            }
            Message::Denied { attempt, worker, nonce } => {
                let it = process(state, worker);
                if !it.up || it.phase != Phase::Claiming(attempt, nonce) {
                    return false;
                }
                it.phase = Phase::Idle;
                it.journal.remove(&attempt).is_some()
            }
            Message::Wrote { attempt, worker, generation } => {
                let it = process(state, worker);
                if !it.up || !matches!(it.phase, Phase::Running(running, _) if running == attempt) {
                    return false;
                }
                it.generation = it.generation.max(generation);
                true
            }
            Message::Receipt { worker, statement } => self.receipt(state, worker, statement),
            Message::Refused { worker, statement } => {
                let it = process(state, worker);
                let signed = it.journal.get(&statement.attempt).map(|(_, stage)| *stage);
                // Set aside, for people; it never counts as received.
                it.up
                    && signed == Some(Stage::Signed(statement))
                    && it.journal.remove(&statement.attempt).is_some()
            }
            _ => false,
        }
    }

    fn receipt(&self, state: &mut State, worker: u8, received: Statement) -> bool {
        let it = process(state, worker);
        let Some((_, Stage::Signed(signed))) = it.journal.get(&received.attempt).copied() else {
            return false;
        };
        // H2: only an answer about the very bytes that were sent counts.
        if !it.up || (signed != received && self.bug != Some(Bug::AnyReceipt)) {
            return false;
        }
        it.journal.remove(&received.attempt);
        state.witness.forgotten.insert(signed);
        true
    }

    /// The process is gone; its tool may go on.
    pub(super) fn crash(&self, state: &mut State, worker: u8, keeps_journal: bool) -> bool {
        state.left.crashes -= 1;
        let it = process(state, worker);
        (it.up, it.phase) = (false, Phase::Idle);
        if !keeps_journal {
            it.journal.clear();
        }
        true
    }

    /// A new process: registers, kills what it finds running, and says of each journaled attempt what it can.
    pub(super) fn restart(&self, state: &mut State, worker: u8) -> bool {
        let record = &mut state.stored.workers[usize::from(worker)];
        let registered = Worker { incarnation: record.incarnation + 1, ..record.value.clone() };
        *record = Arc::new(Versioned { value: registered, version: record.version + 1 });
        let it = process(state, worker);
        (it.up, it.tool) = (true, None);
        let key = it.key;
        let said: Vec<Statement> = it
            .journal
            .iter()
            .map(|(attempt, (nonce, stage))| match stage {
                Stage::Intent => Statement { attempt: *attempt, nonce: *nonce, kind: Kind::NotStarted, key },
                Stage::Started => Statement { attempt: *attempt, nonce: *nonce, kind: Kind::Failed, key },
                Stage::Signed(statement) => *statement,
            })
            .collect();
        for statement in said {
            let signed = (statement.nonce, Stage::Signed(statement));
            process(state, worker).journal.insert(statement.attempt, signed);
            self.send(state, worker, statement);
        }
        true
    }
}
