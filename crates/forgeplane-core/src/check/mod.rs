//! Whether a store holds what the protocol promises: the invariants of `protocol.md` 1.12, as far as records show them.
//!
//! The rules keep the invariants and the store guards them again; this looks at the result, from outside and without
//! either. It only reads, and works beside running coordinators: what changes while it is looked at is looked at again.
//!
//! ```
//! # use forgeplane_core::{check::check, memory::MemoryStore};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let report = check(&MemoryStore::new()).await?;
//! assert!(report.holds());
//! # Ok(()) }
//! ```

mod evidence;
mod run;
mod state;
mod worker;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::id::{AttemptId, ProjectId, WorkerId};
use crate::model::*;
use crate::ports::{Page, Select, Store, StoreError, StoreExt as _};

/// Something that must never be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Violation {
    /// The invariant, as `protocol.md` 1.12 names it.
    pub invariant: &'static str,
    /// The record.
    pub subject: String,
    /// What is wrong.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.invariant, self.subject, self.detail)
    }
}

/// What was looked at and what was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Projects.
    pub projects: u64,
    /// Runs.
    pub runs: u64,
    /// Runs that are not terminal.
    pub live_runs: u64,
    /// Attempts.
    pub attempts: u64,
    /// Receipts, each verified under the key that is pinned to its attempt.
    pub receipts: u64,
    /// Events of runs.
    pub events: u64,
    /// State generations.
    pub generations: u64,
    /// Workers.
    pub workers: u64,
    /// Everything that must not be, in order.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Whether every invariant holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Violations of one part, before it is known whether the part stood still.
#[derive(Debug, Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn expect(&mut self, holds: bool, invariant: &'static str, subject: &str, detail: impl fmt::Display) {
        if !holds {
            self.0.push(Violation { invariant, subject: subject.to_owned(), detail: detail.to_string() });
        }
    }
}

/// How often a part that changes while it is read is read again.
const TRIES: usize = 20;
/// How many records of a list are read at once.
const PAGE: usize = 500;

/// Reads the whole store and reports every violation.
///
/// # Errors
/// When the store cannot answer.
pub async fn check(store: &dyn Store) -> Result<Report, StoreError> {
    let mut report = Report::default();
    let mut fences = BTreeMap::new();
    let projects = store.list_as::<Project>(&Select::Projects, &Page::all()).await?;
    for project in &projects {
        report.projects += 1;
        runs(store, project.id, &mut fences, &mut report).await?;
        state::check(store, project.id, &mut report).await?;
    }
    open_attempts(store, &mut report).await?;
    worker::check(store, &mut report).await?;
    outbox(store, &mut report).await?;
    report.violations.sort();
    Ok(report)
}

async fn runs(
    store: &dyn Store,
    project: ProjectId,
    fences: &mut BTreeMap<Fence, AttemptId>,
    report: &mut Report,
) -> Result<(), StoreError> {
    let select = Select::Runs { project, status: None, instance: None };
    let mut live_promotions = BTreeMap::new();
    let mut page = Page::first(PAGE);
    loop {
        let runs = store.list_as::<Run>(&select, &page).await?;
        let Some(last) = runs.last() else { return Ok(()) };
        page.after = Some(last.id.to_string());
        for run in runs {
            run::check(store, run, fences, &mut live_promotions, report).await?;
        }
    }
}

/// I2 over all runs, in one consistent read.
async fn open_attempts(store: &dyn Store, report: &mut Report) -> Result<(), StoreError> {
    let open = store.list_as::<Attempt>(&Select::OpenAttempts, &Page::all()).await?;
    let mut findings = Findings::default();
    let (mut runs, mut slots, mut instances) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for attempt in &open {
        let subject = format!("attempt {}", attempt.id);
        let mut alone = |other: Option<AttemptId>, what: String| {
            if let Some(other) = other {
                findings.expect(false, "I2", &subject, format!("is open beside attempt {other}: {what}"));
            }
        };
        alone(runs.insert(attempt.run, attempt.id), format!("both of run {}", attempt.run));
        let slot: (WorkerId, u32) = (attempt.worker, attempt.slot);
        alone(slots.insert(slot, attempt.id), format!("both in slot {} of worker {}", slot.1, slot.0));
        if let Some(instance) = attempt.exclusive {
            alone(instances.insert(instance, attempt.id), format!("both change instance {instance}"));
        }
    }
    report.violations.append(&mut findings.0);
    Ok(())
}

/// I6 as far as the coordinator's side goes: what waits for publication is an attempt's, under its fence.
async fn outbox(store: &dyn Store, report: &mut Report) -> Result<(), StoreError> {
    for message in store.outbox(usize::MAX).await? {
        let job = message.job;
        let subject = format!("outbox message {}", message.id);
        let mut findings = Findings::default();
        match store.get_as::<Attempt>(job.attempt).await? {
            None => findings.expect(false, "I6", &subject, format!("attempt {} does not exist", job.attempt)),
            Some(attempt) => {
                let same = (job.run, job.fence, job.worker) == (attempt.run, attempt.fence, attempt.worker);
                findings.expect(same, "I6", &subject, format!("differs from attempt {}", attempt.id));
            }
        }
        report.violations.append(&mut findings.0);
    }
    Ok(())
}
