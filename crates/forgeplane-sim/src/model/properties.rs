//! What must hold in every state (`protocol.md` 1.12), and what must be reachable for that to mean anything.

use forgeplane_core::model::*;
use stateright::Property;

use super::store::digest;
use super::{Kind, Protocol, State, Statement};

pub(super) fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always("I1: a tool is started once for each fence", started_once),
        Property::always("I2: one claimed attempt for each run and instance", claimed_once),
        Property::always("I3: two tools never change one instance together", tools_apart),
        Property::always("I4: a running tool holds its claim", tool_holds_claim),
        Property::always("I5: receipts close their attempts, and nothing closed changes", receipts_close),
        Property::always("I6: what a worker forgets is received", forgotten_is_received),
        Property::always("I7: success has a receipt or a decision of two", success_is_proven),
        Property::always("I8: only the newest attempt of a run is open", newest_is_open),
        Property::always("I9: a claim is never taken back", claims_stay),
        Property::always("I11: state grows by one accepted write at a time", state_grows),
        Property::always("I13: an ended run has no open attempt", ended_is_over),
        Property::sometimes("a run succeeds", |_: &Protocol, state: &State| {
            state.stored.runs.iter().any(|run| run.status == RunStatus::Succeeded)
        }),
        Property::sometimes("a worker is missed while its tool runs", |_: &Protocol, state: &State| {
            let unresolved =
                |attempt: u8| state.stored.attempts[usize::from(attempt)].state == AttemptState::Unresolved;
            state.workers.iter().any(|worker| worker.tool.is_some_and(|(attempt, _)| unresolved(attempt)))
        }),
    ]
}

fn started_once(_: &Protocol, state: &State) -> bool {
    state.witness.starts.values().all(|starts| *starts <= 1)
}

fn claimed_once(_: &Protocol, state: &State) -> bool {
    let claimed: Vec<_> = state
        .stored
        .attempts
        .iter()
        .filter(|a| matches!(a.state, AttemptState::Claimed | AttemptState::Unresolved))
        .collect();
    claimed.iter().enumerate().all(|(index, one)| {
        claimed[..index].iter().all(|other| {
            one.run != other.run && (one.exclusive.is_none() || one.exclusive != other.exclusive)
        })
    })
}

/// Whether an operator has ended the attempt: they said that its tool is gone.
fn is_decided(state: &State, attempt: u8) -> bool {
    matches!(state.stored.attempts[usize::from(attempt)].closing, Some(Closing::Decided { .. }))
}

fn tools_apart(_: &Protocol, state: &State) -> bool {
    let running = state.workers.iter().filter_map(|worker| worker.tool);
    running.filter(|(attempt, _)| !is_decided(state, *attempt)).count() <= 1
}

fn tool_holds_claim(_: &Protocol, state: &State) -> bool {
    state.workers.iter().filter_map(|worker| worker.tool).all(|(attempt, nonce)| {
        let it = &state.stored.attempts[usize::from(attempt)];
        let open = matches!(it.state, AttemptState::Claimed | AttemptState::Unresolved);
        let own = it.claim.as_ref().is_some_and(|c| c.nonce == super::coordinator::nonce(nonce));
        own && (open || is_decided(state, attempt))
    })
}

fn receipts_close(_: &Protocol, state: &State) -> bool {
    let receipts = state.stored.receipts.iter().all(|(attempt, receipt)| {
        matches!(
            &state.stored.attempts[usize::from(*attempt)].closing,
            Some(Closing::Receipted { envelope, .. }) if *envelope == receipt.envelope_digest
        )
    });
    receipts && !state.witness.rewritten
}

/// Never silently lost: a worker gives a statement up only when the coordinator has it for good. That an intent which was
/// never granted did not start says nothing, and need not be kept.
fn forgotten_is_received(_: &Protocol, state: &State) -> bool {
    let says_something = |statement: &&Statement| {
        let claim = state.stored.attempts[usize::from(statement.attempt)].claim.as_ref();
        statement.kind != Kind::NotStarted
            || claim.is_some_and(|claim| claim.nonce == super::coordinator::nonce(statement.nonce))
    };
    state.witness.forgotten.iter().filter(says_something).all(|statement| {
        let sent = digest(statement);
        let receipted =
            state.stored.receipts.get(&statement.attempt).is_some_and(|r| r.envelope_digest == sent);
        receipted || state.stored.late.get(&statement.attempt).is_some_and(|late| late.contains(&sent))
    })
}

fn success_is_proven(_: &Protocol, state: &State) -> bool {
    state.stored.runs.iter().enumerate().all(|(place, run)| {
        run.status != RunStatus::Succeeded
            || state.stored.current_of(place).is_some_and(|attempt| {
                let receipt = state.stored.receipts.get(&attempt);
                let decision = state.stored.decisions.get(&attempt);
                receipt.is_some_and(|r| r.outcome == OutcomeKind::Succeeded)
                    || decision.is_some_and(|d| d.confirmed_by.is_some())
            })
    })
}

fn newest_is_open(_: &Protocol, state: &State) -> bool {
    let attempts = &state.stored.attempts;
    attempts.iter().enumerate().all(|(index, attempt)| {
        let later: Vec<_> = attempts[index + 1..].iter().filter(|it| it.run == attempt.run).collect();
        later.iter().all(|it| it.fence > attempt.fence) && (later.is_empty() || !attempt.is_open())
    })
}

fn claims_stay(_: &Protocol, state: &State) -> bool {
    state.stored.attempts.iter().all(|attempt| match attempt.state {
        AttemptState::Offered => attempt.claim.is_none(),
        AttemptState::Claimed | AttemptState::Unresolved => attempt.claim.is_some(),
        AttemptState::Closed => {
            !(matches!(attempt.closing, Some(Closing::Revoked { .. })) && attempt.claim.is_some())
        }
    })
}

fn state_grows(_: &Protocol, state: &State) -> bool {
    let numbers = state.stored.generations.iter().map(|generation| generation.generation);
    numbers.eq(1..=state.stored.state.head) && !state.witness.stale_write
}

fn ended_is_over(_: &Protocol, state: &State) -> bool {
    let open = |run: &Run| state.stored.attempts.iter().any(|a| a.is_open() && a.run == run.id);
    state.stored.runs.iter().all(|run| !run.status.is_terminal() || !open(run))
}
