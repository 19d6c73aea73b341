//! One run: its attempts, evidence, approval and history.

use std::collections::BTreeMap;

use super::{Findings, Report, TRIES, evidence};
use crate::id::{AttemptId, RunId};
use crate::model::*;
use crate::ports::{EventFilter, Page, Select, Store, StoreError, StoreExt as _};

/// A run and what belongs to it, read while it stood still.
pub(super) struct Whole {
    pub(super) run: Run,
    pub(super) attempts: Vec<Attempt>,
    pub(super) receipts: BTreeMap<AttemptId, Receipt>,
    pub(super) decisions: BTreeMap<AttemptId, OperatorDecision>,
    pub(super) approval: Option<Approval>,
    pub(super) events: Vec<Event>,
}

/// Every change of a run or of its attempts' states writes the run's record; while that stands still, so do they.
async fn read(store: &dyn Store, mut run: Versioned<Run>) -> Result<Option<Whole>, StoreError> {
    for _ in 0..TRIES {
        let mut attempts: Vec<Attempt> = store
            .list_as::<Attempt>(&Select::Attempts(run.id), &Page::all())
            .await?
            .into_iter()
            .map(|attempt| attempt.value)
            .collect();
        // Ids of one millisecond are in no order.
        attempts.sort_by_key(|attempt| attempt.number);
        let (mut receipts, mut decisions) = (BTreeMap::new(), BTreeMap::new());
        for attempt in &attempts {
            receipts.extend(store.get_as::<Receipt>(attempt.id).await?.map(|r| (attempt.id, r.value)));
            decisions
                .extend(store.get_as::<OperatorDecision>(attempt.id).await?.map(|d| (attempt.id, d.value)));
        }
        let approval = match run.approval {
            Some(id) => store.get_as::<Approval>(id).await?.map(|approval| approval.value),
            None => None,
        };
        let filter = EventFilter { project: None, run: Some(run.id) };
        let events = store.events(&filter, 0, usize::MAX).await?;
        let Some(again) = store.get_as::<Run>(run.id).await? else { return Ok(None) };
        if again.version == run.version {
            let run = run.value;
            return Ok(Some(Whole { run, attempts, receipts, decisions, approval, events }));
        }
        run = again;
    }
    Ok(None)
}

pub(super) async fn check(
    store: &dyn Store,
    run: Versioned<Run>,
    fences: &mut BTreeMap<Fence, AttemptId>,
    live_promotions: &mut BTreeMap<RunId, RunId>,
    report: &mut Report,
) -> Result<(), StoreError> {
    let subject = format!("run {}", run.id);
    let mut findings = Findings::default();
    let Some(whole) = read(store, run).await? else {
        findings.expect(false, "I13", &subject, "vanished, or changes without end");
        report.violations.append(&mut findings.0);
        return Ok(());
    };
    report.runs += 1;
    report.live_runs += u64::from(!whole.run.status.is_terminal());
    report.attempts += whole.attempts.len() as u64;
    report.events += whole.events.len() as u64;
    report.receipts += whole.receipts.len() as u64;

    attempts_in_order(&whole, &subject, fences, &mut findings);
    for attempt in &whole.attempts {
        one_attempt(&whole, attempt, &mut findings);
        if let Some(receipt) = whole.receipts.get(&attempt.id) {
            evidence::check(store, attempt, receipt, &mut findings).await?;
        }
    }
    status_fits_attempts(&whole, &subject, &mut findings);
    approved_before_claimed(&whole, &mut findings);
    history(&whole, &subject, &mut findings);
    if let Some(plan) = whole.run.plan.as_ref().filter(|_| !whole.run.status.is_terminal()) {
        let other = live_promotions.insert(plan.run, whole.run.id);
        findings.expect(
            other.is_none(),
            "I2",
            &subject,
            format!("plan {} is promoted by another live run too: {other:?}", plan.run),
        );
    }
    report.violations.append(&mut findings.0);
    Ok(())
}

/// I8, and fences are nobody else's.
fn attempts_in_order(
    whole: &Whole,
    subject: &str,
    fences: &mut BTreeMap<Fence, AttemptId>,
    findings: &mut Findings,
) {
    let Whole { run, attempts, .. } = whole;
    let counted = run.attempts as usize == attempts.len();
    findings.expect(
        counted,
        "I8",
        subject,
        format!("counts {} of {} attempts", run.attempts, attempts.len()),
    );
    for (index, attempt) in attempts.iter().enumerate() {
        let number = attempt.number as usize == index + 1;
        findings.expect(number, "I8", subject, format!("attempt {} is number {}", index + 1, attempt.number));
        let newest = index + 1 == attempts.len();
        findings.expect(
            newest || !attempt.is_open(),
            "I8",
            subject,
            format!("attempt {} is open, but not the newest", attempt.number),
        );
        if let Some(before) = index.checked_sub(1).map(|before| &attempts[before]) {
            let grows = before.fence < attempt.fence;
            findings.expect(
                grows,
                "I8",
                subject,
                format!("fence {} follows {}", attempt.fence, before.fence),
            );
        }
        if let Some(other) = fences.insert(attempt.fence, attempt.id) {
            let what = format!("fence {} is that of attempt {other} too", attempt.fence);
            findings.expect(other == attempt.id, "I1", &format!("attempt {}", attempt.id), what);
        }
    }
}

/// I5, I9, I16 of one attempt.
fn one_attempt(whole: &Whole, attempt: &Attempt, findings: &mut Findings) {
    let subject = format!("attempt {}", attempt.id);
    let mut expect =
        |holds: bool, invariant: &'static str, what: &str| findings.expect(holds, invariant, &subject, what);
    expect(attempt.project == whole.run.project, "I16", "belongs to another project than its run");
    expect(attempt.snapshot == whole.run.snapshot, "I12", "executes another snapshot than its run");
    match attempt.state {
        AttemptState::Offered => expect(attempt.claim.is_none(), "I9", "is offered, but was claimed"),
        AttemptState::Claimed | AttemptState::Unresolved => {
            expect(attempt.claim.is_some(), "I9", "is claimed by nobody");
        }
        AttemptState::Closed => {}
    }
    let receipt = whole.receipts.get(&attempt.id);
    let decision = whole.decisions.get(&attempt.id);
    let closed = attempt.state == AttemptState::Closed;
    expect(closed == attempt.closing.is_some(), "I5", "does not say how it was closed, or is not closed");
    match &attempt.closing {
        Some(Closing::Receipted { envelope, .. }) => {
            let same = receipt.is_some_and(|r| r.envelope_digest == *envelope);
            expect(same, "I5", "was closed by an envelope of which there is no receipt");
            expect(decision.is_none(), "I5", "has a receipt and a decision");
        }
        Some(Closing::Revoked { .. }) => {
            expect(attempt.claim.is_none(), "I9", "was claimed, and revoked all the same");
            expect(receipt.is_none(), "I5", "was revoked, and has a receipt");
        }
        Some(Closing::Decided { outcome }) => {
            let same = decision.is_some_and(|d| d.outcome == *outcome);
            expect(same, "I5", "was closed by a decision that is not there");
            expect(receipt.is_none(), "I5", "has a decision and a receipt");
        }
        None => {
            expect(receipt.is_none() && decision.is_none(), "I5", "has a receipt or decision, but is open")
        }
    }
}

/// I7, and no status without the attempt it needs.
fn status_fits_attempts(whole: &Whole, subject: &str, findings: &mut Findings) {
    let Whole { run, attempts, receipts, decisions, .. } = whole;
    let last = attempts.last();
    let state = last.map(|a| a.state);
    match run.status {
        RunStatus::Running | RunStatus::Canceling => {
            let executes = matches!(state, Some(AttemptState::Claimed | AttemptState::Unresolved));
            findings.expect(
                executes,
                "I4",
                subject,
                format!("is {}, but its attempt is {state:?}", run.status),
            );
        }
        RunStatus::Queued => {
            let waits = matches!(state, None | Some(AttemptState::Offered | AttemptState::Closed));
            findings.expect(waits, "I4", subject, format!("is queued, but its attempt is {state:?}"));
        }
        RunStatus::Succeeded => {
            let current = last.filter(|last| run.current_attempt == Some(last.id));
            let proven = current.is_some_and(|last| {
                receipts.get(&last.id).is_some_and(|r| r.outcome == OutcomeKind::Succeeded)
                    || decisions.get(&last.id).is_some_and(|d| {
                        d.outcome == OutcomeKind::Succeeded
                            && d.confirmed_by.as_ref().is_some_and(|second| *second != d.actor)
                    })
            });
            findings.expect(
                proven,
                "I7",
                subject,
                "succeeded, but its newest attempt has neither such a receipt nor two people's decision",
            );
        }
        RunStatus::PendingApproval => {
            findings.expect(last.is_none(), "I12", subject, "waits for approval, but was offered");
        }
        RunStatus::Failed | RunStatus::Canceled | RunStatus::TimedOut => {
            let over = !matches!(last, Some(last) if last.is_open());
            findings.expect(over, "I13", subject, format!("is {}, but its attempt is open", run.status));
        }
    }
}

/// I12: what a gated run was claimed for had been approved before, and nothing else. What came before is told by the
/// order of events, never by times: a clock may jump.
fn approved_before_claimed(whole: &Whole, findings: &mut Findings) {
    let Some(id) = whole.run.approval else { return };
    let mut approved = false;
    for event in &whole.events {
        match event.kind {
            EventKind::ApprovalPending => approved = false,
            EventKind::ApprovalApproved => approved = true,
            EventKind::RunRunning => {
                let subject = format!("run {}", whole.run.id);
                findings.expect(approved, "I12", &subject, "was claimed before it was approved");
            }
            _ => {}
        }
    }
    for attempt in whole.attempts.iter().filter(|attempt| attempt.claim.is_some()) {
        let subject = format!("attempt {}", attempt.id);
        let Some(approval) = &whole.approval else {
            findings.expect(false, "I12", &subject, format!("approval {id} does not exist"));
            continue;
        };
        let approved = approval.status == ApprovalStatus::Approved;
        findings.expect(approved, "I12", &subject, "was claimed without an approval");
        let same = approval.plan_digest == attempt.plan && approval.snapshot == attempt.snapshot;
        findings.expect(same, "I12", &subject, "executes something else than was approved");
    }
}

/// I13, I16, I18: the history has no gap, its order is that of the whole store, and it tells the status.
fn history(whole: &Whole, subject: &str, findings: &mut Findings) {
    let Whole { run, events, .. } = whole;
    let (mut told, mut seq) = (None::<RunStatus>, 0);
    for (index, event) in events.iter().enumerate() {
        let position = index as u64 + 1;
        let number = format!("event {} stands at {position}", event.run_seq);
        findings.expect(event.run_seq == position, "I18", subject, number);
        findings.expect(event.seq > seq, "I18", subject, format!("event {position} is out of order"));
        findings.expect(
            event.project == Some(run.project),
            "I16",
            subject,
            format!("event {position} is another project's"),
        );
        seq = event.seq;
        let Some(next) = status_of(event.kind) else { continue };
        if let Some(before) = told.filter(|before| before.is_terminal()) {
            let requeued = next == RunStatus::Queued
                && before != RunStatus::Succeeded
                && index.checked_sub(1).is_some_and(|i| events[i].kind == EventKind::RunRequeued);
            findings.expect(requeued, "I13", subject, format!("{before} became {next} without a requeue"));
        }
        told = Some(next);
    }
    let all = events.len() as u64 == run.last_event;
    findings.expect(
        all,
        "I18",
        subject,
        format!("{} events are recorded of {}", events.len(), run.last_event),
    );
    findings.expect(
        told == Some(run.status),
        "I18",
        subject,
        format!("is {}, but its history ends as {told:?}", run.status),
    );
}

fn status_of(kind: EventKind) -> Option<RunStatus> {
    Some(match kind {
        EventKind::ApprovalPending => RunStatus::PendingApproval,
        EventKind::RunQueued => RunStatus::Queued,
        EventKind::RunRunning => RunStatus::Running,
        EventKind::RunCanceling => RunStatus::Canceling,
        EventKind::RunSucceeded => RunStatus::Succeeded,
        EventKind::RunFailed => RunStatus::Failed,
        EventKind::RunCanceled => RunStatus::Canceled,
        EventKind::RunTimedOut => RunStatus::TimedOut,
        _ => return None,
    })
}
