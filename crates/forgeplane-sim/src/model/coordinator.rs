//! What coordinators do: they ask the production rules and commit what those say.

use std::time::Duration;

use forgeplane_core::evidence::{Cleanup, Conclusion, NotStarted, Outcome};
use forgeplane_core::id::{AttemptId, EvidenceId, OutboxId};
use forgeplane_core::model::*;
use forgeplane_core::ports::{AttemptRef, ClaimRef, ClaimRequest};
use forgeplane_core::rules::state::StateDocument;
use forgeplane_core::rules::{
    Settings, cancel, claim, outcome, requeue, resolve, rotation, schedule, state as writing, sweep,
};
use forgeplane_testkit::fixtures::Fixtures;
use jiff::Timestamp;

use super::state::State;
use super::store::{NOW, digest};
use super::{Action, Bug, Kind, Message, Phase, Protocol, Statement};

/// Later than every lease.
fn late() -> Timestamp {
    NOW + Duration::from_secs(2_000_000_000)
}

/// Between the claim and the point where its worker is missed.
fn soon() -> Timestamp {
    NOW + Duration::from_secs(1)
}

/// Time in which a deadline passes, its worker being heard of.
fn past_deadline() -> Timestamp {
    NOW + Duration::from_secs(100_000)
}

pub(super) fn nonce(nonce: u8) -> Nonce {
    Nonce([nonce; 16])
}

/// The document that an attempt saves on top of a generation.
fn document(attempt: u8, expected: u8) -> StateDocument {
    StateDocument {
        serial: u64::from(expected) + 1,
        lineage: "lineage".into(),
        resources: 1,
        digest: forgeplane_core::digest::Digest::of(&[attempt, expected, 77]),
        bytes: 3,
    }
}

impl Protocol {
    pub(super) fn coordinator_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (stored, left) = (&state.stored, state.left);
        for (run, it) in (0_u8..).zip(&stored.runs) {
            if it.status == RunStatus::Queued && left.attempts > 0 {
                let workers = 0..self.limits.workers;
                actions.extend(workers.map(|worker| Action::Offer { run, worker }));
            }
            if !it.status.is_terminal() && left.cancels > 0 {
                actions.push(Action::Cancel(run));
            }
            if it.status.is_terminal() && left.requeues > 0 {
                actions.push(Action::Requeue(run));
            }
        }
        for (attempt, it) in (0_u8..).zip(&stored.attempts) {
            match it.state {
                AttemptState::Offered => actions.push(Action::Expire(attempt)),
                AttemptState::Claimed => {
                    actions.push(Action::Miss(attempt));
                    if left.deadlines > 0 {
                        actions.push(Action::Deadline(attempt));
                    }
                }
                AttemptState::Unresolved => {
                    actions.push(Action::HearAgain(attempt));
                    if left.decisions > 0 {
                        actions.extend([Action::DecideFailed(attempt), Action::DecideSucceeded(attempt)]);
                    }
                }
                AttemptState::Closed => {}
            }
        }
        for (worker, it) in (0_u8..).zip(&state.workers) {
            if it.up && it.phase == Phase::Idle && it.journal.is_empty() && left.rotations > 0 {
                actions.push(Action::Rotate(worker));
            }
        }
    }

    fn commit(&self, state: &mut State, changes: Changeset) -> bool {
        let closed: Vec<_> = state.stored.attempts.iter().filter(|a| !a.is_open()).cloned().collect();
        let committed = state.stored.commit(changes, self.bug == Some(Bug::NoWriterSlot));
        // A closed attempt stays as it is, and a claim is never taken back.
        let kept = closed.iter().all(|before| {
            state.stored.attempts.iter().any(|after| after.id == before.id && after.value == before.value)
        });
        state.witness.rewritten |= !kept;
        committed
    }

    pub(super) fn decide(&self, state: &mut State, action: Action) -> bool {
        match action {
            Action::Offer { run, worker } => self.offer(state, run, worker),
            Action::Expire(attempt) => self.sweep(state, attempt, None, late()),
            Action::Miss(attempt) => self.sweep(state, attempt, None, late()),
            Action::HearAgain(attempt) => self.holder(state, attempt).is_some_and(|contact| {
                let at = late() + Duration::from_secs(2);
                let held = contact.held.into_iter().map(|held| Held { at, ..held }).collect();
                let contact = WorkerContact { last_seen: at, held, ..contact };
                self.sweep(state, attempt, Some(contact), at)
            }),
            Action::Deadline(attempt) => {
                state.left.deadlines -= 1;
                self.holder(state, attempt).is_some_and(|contact| {
                    let at = past_deadline();
                    let held = contact.held.into_iter().map(|held| Held { at, ..held }).collect();
                    self.sweep(state, attempt, Some(WorkerContact { last_seen: at, held, ..contact }), at)
                })
            }
            Action::Cancel(run) => {
                state.left.cancels -= 1;
                let stored = &state.stored;
                let attempt = stored.current_of(usize::from(run)).map(|a| &*stored.attempts[usize::from(a)]);
                let run = &stored.runs[usize::from(run)];
                match cancel::cancel(run, attempt, None, &Fixtures::actor(), None, NOW) {
                    Ok(Some(changes)) => self.commit(state, changes),
                    _ => false,
                }
            }
            Action::Requeue(run) => {
                state.left.requeues -= 1;
                let stored = &state.stored;
                let place = usize::from(run);
                let last = stored.attempts.iter().rfind(|a| a.run == stored.runs[place].id);
                let context = requeue::Context {
                    run: &stored.runs[place],
                    snapshot: &stored.snapshots[place],
                    attempt: last.map(|attempt| &attempt.value),
                    instance: &stored.instance,
                    state: Some(&stored.state),
                    source: None,
                    artifact: None,
                    promoted: None,
                    approval: None,
                };
                match requeue::requeue(&context, &Fixtures::actor(), NOW) {
                    Ok(changes) => self.commit(state, changes),
                    Err(_) => false,
                }
            }
            Action::DecideFailed(attempt) => self.resolve(state, attempt, OutcomeKind::Failed),
            Action::DecideSucceeded(attempt) => {
                self.resolve(state, attempt, OutcomeKind::Succeeded) && self.confirm(state, attempt)
            }
            Action::Rotate(worker) => self.rotate(state, worker),
            other => unreachable!("{other:?} is not a coordinator's"),
        }
    }

    fn offer(&self, state: &mut State, run: u8, worker: u8) -> bool {
        let stored = &mut state.stored;
        stored.fence += 1;
        let number = u8::try_from(stored.attempts.len()).unwrap_or(u8::MAX);
        let ids = schedule::FreshIds {
            attempt: AttemptId::new(NOW, [number; 10]),
            fence: Fence(stored.fence),
            outbox: OutboxId::new(NOW, [number; 10]),
        };
        let (place, settings) = (usize::from(run), Settings::default());
        let worker = &stored.workers[usize::from(worker)];
        // Two places, so that only the guards keep two attempts of one worker apart.
        let slot = u32::from(stored.attempts.iter().any(|a| a.is_open() && a.worker == worker.id));
        if worker.quarantined.is_some() || worker.disconnected || slot > 0 {
            return false;
        }
        let offered = schedule::offer(
            &stored.runs[place],
            &stored.snapshots[place],
            Some(&stored.state),
            worker,
            slot,
            ids,
            &settings,
            NOW,
        );
        let Ok(changes) = offered else { return false };
        state.left.attempts -= 1;
        // The broker may have it from now on, and never again if it loses it: that is an offer that expires.
        self.commit(state, changes) && state.jobs.insert(number)
    }

    fn sweep(&self, state: &mut State, attempt: u8, contact: Option<WorkerContact>, now: Timestamp) -> bool {
        let (stored, settings) = (&state.stored, Settings::default());
        let run = stored.run_of(attempt);
        let it = &stored.attempts[usize::from(attempt)];
        let worker = stored.workers.iter().find(|w| w.id == it.worker);
        let context = sweep::Context {
            attempt: it,
            run: &stored.runs[run],
            snapshot: &stored.snapshots[run],
            worker: worker.map(|w| &w.value),
            contact: contact.as_ref(),
            settings: &settings,
        };
        match sweep::attempt(&context, now) {
            Ok(Some(changes)) => self.commit(state, changes),
            _ => false,
        }
    }

    /// What a heartbeat of the attempt's worker says, if it holds the claim.
    fn holder(&self, state: &State, attempt: u8) -> Option<WorkerContact> {
        let it = &state.stored.attempts[usize::from(attempt)];
        let place = state.stored.workers.iter().position(|w| w.id == it.worker)?;
        let process = &state.workers[place];
        let (held, _) = process.journal.get(&attempt)?;
        let claim = it.claim.as_ref().filter(|claim| claim.nonce == nonce(*held))?;
        process.up.then(|| WorkerContact {
            newest: Fence::default(),
            worker: it.worker,
            incarnation: state.stored.workers[place].incarnation,
            last_seen: soon(),
            held: vec![Held { fence: it.fence, nonce: claim.nonce, at: soon() }],
            draining: false,
            short_of: None,
        })
    }

    fn resolution<'a>(&self, state: &'a State, attempt: u8) -> Option<resolve::Context<'a>> {
        let stored = &state.stored;
        let it = &stored.attempts[usize::from(attempt)];
        Some(resolve::Context {
            attempt: it,
            run: &stored.runs[stored.run_of(attempt)],
            worker: stored.workers.iter().find(|w| w.id == it.worker)?,
            state: Some(&stored.state),
            fence: Fence(stored.fence),
        })
    }

    fn resolve(&self, state: &mut State, attempt: u8, outcome: OutcomeKind) -> bool {
        state.left.decisions -= 1;
        state.stored.fence += 1;
        let said = resolve::Resolution {
            outcome,
            reason: "the host is gone".into(),
            asserted: Vec::new(),
            generation: Some(state.stored.state.head),
        };
        let Some(context) = self.resolution(state, attempt) else { return false };
        match resolve::resolve(&context, &said, &Fixtures::actor(), NOW) {
            Ok(resolve::Decision::Decide(changes) | resolve::Decision::Propose(changes)) => {
                self.commit(state, changes)
            }
            Err(_) => false,
        }
    }

    fn confirm(&self, state: &mut State, attempt: u8) -> bool {
        state.stored.fence += 1;
        let second = Actor::Principal {
            id: forgeplane_core::id::PrincipalId::new(NOW, [99; 10]),
            name: match "second".parse() {
                Ok(name) => name,
                Err(_) => unreachable!("it is a name"),
            },
        };
        let Some(context) = self.resolution(state, attempt) else { return false };
        match resolve::confirm(&context, &second, NOW) {
            Ok(changes) => self.commit(state, changes),
            Err(_) => false,
        }
    }

    fn rotate(&self, state: &mut State, worker: u8) -> bool {
        state.left.rotations -= 1;
        let stored = &state.stored;
        let (it, process) = (&stored.workers[usize::from(worker)], &state.workers[usize::from(worker)]);
        let new = Fixtures::new().worker_key(it);
        let proven = rotation::Proven {
            old_key: stored.keys[usize::from(process.key)].id,
            new_key: forgeplane_core::digest::Digest::of(&[worker, process.key, 55]),
            public_key: new.public_key,
        };
        let place = u8::try_from(stored.keys.len()).unwrap_or(u8::MAX);
        match rotation::rotate(it, &stored.keys[usize::from(process.key)], None, &proven, NOW) {
            Ok(rotation::Decision::Rotate(changes)) => {
                let rotated = self.commit(state, changes);
                state.workers[usize::from(worker)].key = place;
                rotated
            }
            _ => false,
        }
    }

    /// Answers a message of a worker.
    pub(super) fn answer(&self, state: &mut State, message: Message) -> bool {
        match message {
            Message::Claim { attempt, worker, nonce } => self.claim(state, attempt, worker, nonce),
            Message::Write { attempt, worker, nonce, expected } => {
                self.write(state, attempt, worker, nonce, expected)
            }
            Message::Conclude { worker, statement } => self.conclude(state, worker, statement),
            _ => false,
        }
    }

    fn claim(&self, state: &mut State, attempt: u8, worker: u8, said: u8) -> bool {
        let stored = &state.stored;
        let run = stored.run_of(attempt);
        // A guard that is left out is a rule that sees something else than there is.
        let meant = match (self.bug, stored.current_of(run)) {
            (Some(Bug::AnyFence), Some(current)) => current,
            _ => attempt,
        };
        let mut it = Versioned::clone(&stored.attempts[usize::from(meant)]);
        let mut its_run = Versioned::clone(&stored.runs[run]);
        let other_nonce = it.claim.as_ref().is_some_and(|claim| claim.nonce != nonce(said));
        let forced = match self.bug {
            Some(Bug::AnyNonce) => other_nonce && it.is_open(),
            Some(Bug::AnyStatus) => !it.is_open(),
            _ => false,
        };
        if forced {
            (it.value.state, it.value.claim, it.value.closing) = (AttemptState::Offered, None, None);
            (its_run.value.status, its_run.value.current_attempt) = (RunStatus::Queued, Some(it.id));
        }
        let context = claim::Context {
            worker: &stored.workers[usize::from(worker)],
            attempt: &it,
            run: &its_run,
            snapshot: &stored.snapshots[run],
            state: Some(&stored.state),
            approval: None,
        };
        let request =
            ClaimRequest { attempt: AttemptRef { attempt: it.id, fence: it.fence }, nonce: nonce(said) };
        let granted = match claim::claim(&context, &request, NOW) {
            Ok(claim::Decision::Grant(changes)) => self.commit(state, changes),
            Ok(claim::Decision::Again) => true,
            Ok(claim::Decision::Refuse(changes, _)) => {
                self.commit(state, changes);
                false
            }
            Err(_) => false,
        };
        let answer = if granted {
            Message::Grant { attempt, worker, nonce: said }
        } else {
            Message::Denied { attempt, worker, nonce: said }
        };
        state.messages.insert(answer);
        true
    }

    fn write(&self, state: &mut State, attempt: u8, worker: u8, said: u8, expected: u8) -> bool {
        let stored = &state.stored;
        let run = stored.run_of(attempt);
        let mut it = Versioned::clone(&stored.attempts[usize::from(attempt)]);
        let mut document = document(attempt, expected);
        let mut builds_on = u64::from(expected);
        if self.bug == Some(Bug::AnyGeneration) {
            builds_on = stored.state.head;
            (it.value.last_generation, document.serial) = (Some(builds_on), builds_on + 1);
        }
        let next = stored.generations.iter().find(|g| g.generation == builds_on + 1);
        let context = writing::Context {
            worker: stored.workers[usize::from(worker)].id,
            attempt: &it,
            run: &stored.runs[run],
            state: &stored.state,
            next: next.map(|generation| &**generation),
            kept_aside: stored.aside.contains(&document.digest),
        };
        let claim = ClaimRef { attempt: it.id, fence: it.fence, nonce: nonce(said) };
        let head = stored.state.head;
        match writing::write(&context, claim, builds_on, &document, NOW) {
            Ok(writing::Decision::Accept(changes, generation)) => {
                if !self.commit(state, changes) {
                    return false;
                }
                state.witness.stale_write |= u64::from(expected) != head;
                let generation = u8::try_from(generation).unwrap_or(u8::MAX);
                state.messages.insert(Message::Wrote { attempt, worker, generation });
                true
            }
            Ok(writing::Decision::Again(generation)) => {
                let generation = u8::try_from(generation).unwrap_or(u8::MAX);
                state.messages.insert(Message::Wrote { attempt, worker, generation })
            }
            Ok(writing::Decision::KeepAside(changes, _)) => self.commit(state, changes),
            Err(_) => false,
        }
    }

    fn conclude(&self, state: &mut State, worker: u8, said: Statement) -> bool {
        let stored = &state.stored;
        let run = stored.run_of(said.attempt);
        let attempt = &stored.attempts[usize::from(said.attempt)];
        let its_worker = &stored.workers[usize::from(worker)];
        let settings = Settings::default();
        let mut nonce = nonce(said.nonce);
        if self.bug == Some(Bug::AnyNotStarted)
            && said.kind == Kind::NotStarted
            && let Some(claim) = &attempt.claim
        {
            nonce = claim.nonce;
        }
        let conclusion = conclusion(said.kind, attempt, nonce);
        let envelope_digest = digest(&said);
        let late = stored.late.get(&said.attempt);
        let context = outcome::Context {
            attempt,
            run: &stored.runs[run],
            snapshot: &stored.snapshots[run],
            key: &stored.keys[usize::from(said.key)],
            worker: its_worker,
            receipt: stored.receipts.get(&said.attempt).map(|receipt| &**receipt),
            kept: late.is_some_and(|kept| kept.contains(&envelope_digest)),
            artifacts: &[],
            state: Some(&stored.state),
            instance: &stored.instance,
            settings: &settings,
        };
        let signed = outcome::Signed { conclusion: &conclusion, envelope: "{}", digest: envelope_digest };
        let evidence = EvidenceId::new(NOW, [said.nonce; 10]);
        let answer = match outcome::conclude(&context, &signed, evidence, NOW) {
            Ok(outcome::Decision::Apply(changes) | outcome::Decision::Keep(changes)) => {
                self.commit(state, changes).then_some(Message::Receipt { worker, statement: said })
            }
            Ok(outcome::Decision::Again | outcome::Decision::Ignore) => {
                Some(Message::Receipt { worker, statement: said })
            }
            Err(_) => Some(Message::Refused { worker, statement: said }),
        };
        state.messages.extend(answer);
        true
    }
}

fn conclusion(kind: Kind, attempt: &Attempt, nonce: Nonce) -> Conclusion {
    let outcome = match kind {
        Kind::Succeeded => OutcomeKind::Succeeded,
        Kind::Failed => OutcomeKind::Failed,
        Kind::Canceled => OutcomeKind::Canceled,
        Kind::TimedOut => OutcomeKind::TimedOut,
        Kind::NotStarted => {
            return Conclusion::NotStarted(Box::new(NotStarted {
                project: attempt.project,
                run: attempt.run,
                attempt: attempt.id,
                fence: attempt.fence,
                nonce: Some(nonce),
                worker: attempt.worker,
                reason: RunError { code: "worker_restarted".into(), message: String::new() },
                retryable: true,
            }));
        }
    };
    Conclusion::Outcome(Box::new(Outcome {
        project: attempt.project,
        run: attempt.run,
        attempt: attempt.id,
        number: attempt.number,
        fence: attempt.fence,
        nonce,
        worker: attempt.worker,
        snapshot: attempt.snapshot,
        bundle: attempt.snapshot,
        plan: attempt.plan,
        outcome,
        started: true,
        exit_code: None,
        signal: None,
        stop: None,
        forced: false,
        effects_unknown: false,
        tool: None,
        duration_ms: 0,
        generation: None,
        state: None,
        log_bytes: 0,
        log: attempt.snapshot,
        log_incomplete: false,
        artifacts: std::collections::BTreeMap::new(),
        summary: None,
        cleanup: Cleanup::Clean,
        error: None,
    }))
}
