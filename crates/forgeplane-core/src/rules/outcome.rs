//! What a signed statement does (`protocol.md` 1.5, 1.8, S11).
//!
//! The signature was verified before (by [`crate::evidence`]); here the statement is held against what is
//! stored. Rules H1 and H2 of the protocol live here: a `not_started` only counts for the very nonce that
//! claimed, and every answer names the digest of what was received.

use jiff::Timestamp;
use serde_json::json;

use super::lifecycle::Command;
use super::{RunDraft, Settings, object};
use crate::digest::Digest;
use crate::evidence::{Cleanup, Conclusion, NotStarted, Outcome};
use crate::id::EvidenceId;
use crate::model::*;
use crate::refusal::{Code, Refusal};

/// What the rule looks at.
#[derive(Debug)]
pub struct Context<'a> {
    /// The attempt.
    pub attempt: &'a Versioned<Attempt>,
    /// Its run.
    pub run: &'a Versioned<Run>,
    /// The run's snapshot.
    pub snapshot: &'a Snapshot,
    /// The key that signed.
    pub key: &'a WorkerKey,
    /// The worker the attempt is leased to.
    pub worker: &'a Versioned<Worker>,
    /// The receipt, if there is one.
    pub receipt: Option<&'a Receipt>,
    /// Whether these very bytes are kept as evidence already.
    pub kept: bool,
    /// What the attempt published.
    pub artifacts: &'a [Artifact],
    /// The managed state.
    pub state: Option<&'a Versioned<StateObject>>,
    /// The instance.
    pub instance: &'a Versioned<Instance>,
    /// System settings.
    pub settings: &'a Settings,
}

/// A verified statement and the bytes it came in.
#[derive(Debug)]
pub struct Signed<'a> {
    /// What it says.
    pub conclusion: &'a Conclusion,
    /// The envelope's JSON text.
    pub envelope: &'a str,
    /// Its digest.
    pub digest: Digest,
}

/// What becomes of a statement.
#[derive(Debug)]
pub enum Decision {
    /// It ends the attempt.
    Apply(Changeset),
    /// It did so before.
    Again,
    /// It changes nothing and says nothing new.
    Ignore,
    /// It changes nothing but is kept.
    Keep(Changeset),
}

/// Decides what a verified statement does.
///
/// # Errors
/// [`Code::InvalidEvidence`] when it does not speak of this attempt; [`Code::FenceMismatch`] for another nonce.
pub fn conclude(
    context: &Context<'_>,
    signed: &Signed<'_>,
    evidence: EvidenceId,
    now: Timestamp,
) -> Result<Decision, Refusal> {
    let Context { attempt, key, worker, receipt, .. } = context;
    // Before a claim the key may have been replaced since the offer.
    let pinned = key.id == attempt.key || (attempt.claim.is_none() && key.id == worker.key);
    if key.worker != attempt.worker || !pinned {
        return Err(Refusal::new(
            Code::InvalidEvidence,
            "the statement is not signed by the key pinned to the attempt",
        ));
    }
    if let Some(receipt) = receipt {
        if receipt.envelope_digest == signed.digest {
            return Ok(Decision::Again);
        }
        return keep(context, signed, "outcome_conflict", evidence, now);
    }
    if key.status == KeyStatus::Compromised {
        return keep(context, signed, "key_compromised", evidence, now);
    }
    match signed.conclusion {
        Conclusion::NotStarted(statement) => not_started(context, statement, signed, evidence, now),
        Conclusion::Outcome(outcome) => {
            matches_attempt(context, outcome)?;
            match (attempt.state, &attempt.closing) {
                (AttemptState::Claimed | AttemptState::Unresolved, _) => apply(context, outcome, signed, now),
                (AttemptState::Closed, Some(Closing::Decided { .. })) => {
                    keep(context, signed, "operator_decided", evidence, now)
                }
                _ => Err(Refusal::new(
                    Code::AttemptClosed,
                    format!("attempt {} was never claimed", attempt.id),
                )),
            }
        }
    }
}

fn matches_attempt(context: &Context<'_>, outcome: &Outcome) -> Result<(), Refusal> {
    let Context { attempt, run, .. } = context;
    let wrong =
        |what: &str| Err(Refusal::new(Code::InvalidEvidence, format!("the outcome names another {what}")));
    if outcome.project != attempt.project {
        return wrong("project");
    }
    if outcome.run != attempt.run || outcome.run != run.id {
        return wrong("run");
    }
    if outcome.attempt != attempt.id || outcome.number != attempt.number {
        return wrong("attempt");
    }
    if outcome.fence != attempt.fence {
        return wrong("fence");
    }
    if outcome.worker != attempt.worker {
        return wrong("worker");
    }
    if outcome.snapshot != attempt.snapshot {
        return wrong("snapshot");
    }
    if outcome.plan != attempt.plan {
        return wrong("plan");
    }
    if outcome.outcome == OutcomeKind::NotStarted {
        return wrong("kind of statement");
    }
    match &attempt.claim {
        Some(claim) if claim.nonce == outcome.nonce => Ok(()),
        _ => Err(Refusal::new(Code::FenceMismatch, "the outcome names another claim nonce")),
    }
}

fn apply(
    context: &Context<'_>,
    outcome: &Outcome,
    signed: &Signed<'_>,
    now: Timestamp,
) -> Result<Decision, Refusal> {
    let Context { attempt, run, worker, .. } = context;
    let mut draft = RunDraft::of(run, Actor::Worker { id: attempt.worker }, now);
    let mut kind = outcome.outcome;
    let mut error = outcome.error.clone();
    let plan = if kind == OutcomeKind::Succeeded && run.operation.publishes_plan() {
        let plan = plan_artifact(context, outcome, now);
        if plan.is_none() {
            // Succeeding without the artifact would leave a plan that looks promotable and is not.
            kind = OutcomeKind::Failed;
            error = Some(RunError {
                code: Code::ArtifactMissing.as_str().to_owned(),
                message: "the plan succeeded but its artifact did not arrive".to_owned(),
            });
        }
        plan
    } else {
        None
    };
    let status = draft.step(Command::Conclude(kind))?;
    draft.run.error = error;
    draft.run.summary = outcome.summary;
    draft.run.not_started = 0;
    draft.event(
        terminal_event(status),
        object([
            ("attempt", json!(attempt.id)),
            ("number", json!(attempt.number)),
            ("envelope", json!(signed.digest)),
            ("summary", json!(outcome.summary)),
            ("error", json!(draft.run.error.clone())),
            ("forced", json!(outcome.forced)),
            ("effects_unknown", json!(outcome.effects_unknown)),
        ]),
    );
    let mut extra: Vec<Put> = Vec::new();
    if let Some(plan) = plan {
        extra.push(Put { record: plan.into(), expect: Expect::Absent });
    }
    if run.operation == Operation::Teardown && status == RunStatus::Succeeded {
        draft.event(EventKind::InstanceTornDown, object([("instance", json!(run.instance))]));
        let instance = Instance { torn_down_by: Some(run.id), ..context.instance.value.clone() };
        extra.push(Put { record: instance.into(), expect: Expect::Version(context.instance.version) });
        if let Some(state) = context.state {
            let archived = StateObject { archived: true, ..state.value.clone() };
            extra.push(Put { record: archived.into(), expect: Expect::Version(state.version) });
        }
    }
    let mut changes = draft.finish();
    changes.puts.append(&mut extra);
    changes.update(
        attempt.version,
        Attempt {
            state: AttemptState::Closed,
            closed_at: Some(now),
            closing: Some(Closing::Receipted { envelope: signed.digest, outcome: kind }),
            ..attempt.value.clone()
        },
    );
    changes.insert(receipt(context, signed, outcome.outcome, now));
    if outcome.cleanup == Cleanup::Dirty {
        quarantine(&mut changes, worker, "dirty_uid", now);
    }
    Ok(Decision::Apply(changes))
}

fn not_started(
    context: &Context<'_>,
    statement: &NotStarted,
    signed: &Signed<'_>,
    evidence: EvidenceId,
    now: Timestamp,
) -> Result<Decision, Refusal> {
    let Context { attempt, run, worker, settings, snapshot, .. } = context;
    names_attempt(attempt, statement)?;
    match (attempt.state, &attempt.claim) {
        // Most often an intent whose offer was withdrawn; a decided attempt's claimant is another matter.
        (AttemptState::Closed, _) => return keep(context, signed, "operator_decided", evidence, now),
        (AttemptState::Offered, _) => {}
        (AttemptState::Claimed | AttemptState::Unresolved, Some(claim))
            if Some(claim.nonce) == statement.nonce => {}
        // H1: an old intent's "not started" says nothing about a newer claim, whose tool may be running.
        (AttemptState::Claimed | AttemptState::Unresolved, _) => {
            return Err(Refusal::new(Code::FenceMismatch, "the statement names another claim nonce"));
        }
    }
    let mut draft = RunDraft::of(run, Actor::Worker { id: attempt.worker }, now);
    let tries = draft.run.not_started + 1;
    let again = statement.retryable && tries < settings.max_not_started;
    draft.event(
        EventKind::AttemptNotStarted,
        object([
            ("attempt", json!(attempt.id)),
            ("number", json!(attempt.number)),
            ("code", json!(statement.reason.code)),
            ("message", json!(statement.reason.message)),
            ("tries", json!(tries)),
        ]),
    );
    let status = draft.step(if again { Command::Release } else { Command::FailToStart })?;
    draft.run.not_started = tries;
    draft.run.current_attempt = None;
    draft.run.started_at = None;
    match status {
        RunStatus::Queued => {
            draft.enqueue(snapshot.queue_timeout_s);
            draft.event(EventKind::RunQueued, object([("reason", json!("not_started"))]));
        }
        RunStatus::Failed => {
            draft.run.error = Some(statement.reason.clone());
            draft.event(EventKind::RunFailed, object([("code", json!(statement.reason.code))]));
        }
        _ => draft.event(EventKind::RunCanceled, object([("reason", json!("not_started"))])),
    }
    let mut changes = draft.finish();
    changes.update(
        attempt.version,
        Attempt {
            state: AttemptState::Closed,
            closed_at: Some(now),
            closing: Some(Closing::Receipted { envelope: signed.digest, outcome: OutcomeKind::NotStarted }),
            ..attempt.value.clone()
        },
    );
    changes.insert(receipt(context, signed, OutcomeKind::NotStarted, now));
    if statement.reason.code == "dirty_uid" {
        quarantine(&mut changes, worker, "dirty_uid", now);
    }
    Ok(Decision::Apply(changes))
}

fn names_attempt(attempt: &Attempt, statement: &NotStarted) -> Result<(), Refusal> {
    if statement.run != attempt.run
        || statement.attempt != attempt.id
        || statement.fence != attempt.fence
        || statement.worker != attempt.worker
        || statement.project != attempt.project
    {
        return Err(Refusal::new(Code::InvalidEvidence, "the statement names another attempt"));
    }
    Ok(())
}

fn plan_artifact(context: &Context<'_>, outcome: &Outcome, now: Timestamp) -> Option<PlanArtifact> {
    let stored = |kind: ArtifactKind| {
        let signed = outcome.artifacts.get(&kind)?;
        context.artifacts.iter().find(|a| a.kind == kind && a.digest == *signed).map(|a| a.digest)
    };
    Some(PlanArtifact {
        run: context.run.id,
        project: context.run.project,
        attempt: context.attempt.id,
        plan: stored(ArtifactKind::Plan)?,
        json: stored(ArtifactKind::PlanJson),
        text: stored(ArtifactKind::PlanText),
        lock_file: stored(ArtifactKind::LockFile),
        base_generation: context.attempt.base_generation,
        summary: outcome.summary.unwrap_or_default(),
        at: now,
    })
}

fn receipt(context: &Context<'_>, signed: &Signed<'_>, outcome: OutcomeKind, now: Timestamp) -> Receipt {
    Receipt {
        attempt: context.attempt.id,
        run: context.run.id,
        project: context.run.project,
        envelope: signed.envelope.to_owned(),
        envelope_digest: signed.digest,
        key: context.key.id,
        outcome,
        at: now,
    }
}

fn keep(
    context: &Context<'_>,
    signed: &Signed<'_>,
    why: &str,
    id: EvidenceId,
    now: Timestamp,
) -> Result<Decision, Refusal> {
    let outcome = match signed.conclusion {
        Conclusion::Outcome(outcome) => {
            matches_attempt(context, outcome)?;
            outcome.outcome
        }
        Conclusion::NotStarted(statement) => {
            names_attempt(context.attempt, statement)?;
            // About an intent that never became the claim there is nothing to tell.
            let claimant = context.attempt.claim.as_ref().map(|c| c.nonce);
            if claimant.is_none() || claimant != statement.nonce {
                return Ok(Decision::Ignore);
            }
            OutcomeKind::NotStarted
        }
    };
    if context.kept {
        return Ok(Decision::Ignore);
    }
    let mut draft = RunDraft::of(context.run, Actor::Worker { id: context.attempt.worker }, now);
    draft.event(
        EventKind::EvidenceKept,
        object([("attempt", json!(context.attempt.id)), ("why", json!(why)), ("outcome", json!(outcome))]),
    );
    let mut changes = draft.finish();
    changes.insert(LateEvidence {
        id,
        attempt: context.attempt.id,
        run: context.run.id,
        project: context.run.project,
        envelope: signed.envelope.to_owned(),
        envelope_digest: signed.digest,
        outcome,
        why: why.to_owned(),
        at: now,
    });
    Ok(Decision::Keep(changes))
}

pub(crate) fn quarantine(changes: &mut Changeset, worker: &Versioned<Worker>, reason: &str, now: Timestamp) {
    if worker.quarantined.is_some() {
        return;
    }
    changes.update(worker.version, Worker { quarantined: Some(reason.to_owned()), ..worker.value.clone() });
    changes.events.push(Event::beside_runs(
        None,
        EventKind::WorkerQuarantined,
        Actor::system("outcome"),
        now,
        object([("worker", json!(worker.id)), ("reason", json!(reason))]),
    ));
}

/// The event of a terminal status.
pub(crate) const fn terminal_event(status: RunStatus) -> EventKind {
    match status {
        RunStatus::Succeeded => EventKind::RunSucceeded,
        RunStatus::TimedOut => EventKind::RunTimedOut,
        RunStatus::Canceled => EventKind::RunCanceled,
        _ => EventKind::RunFailed,
    }
}
