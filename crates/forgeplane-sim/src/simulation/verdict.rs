//! Whether what is recorded is what happened, and whether everything came to an end.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use forgeplane_core::check::check;
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::{Conclusion, Envelope, Outcome};
use forgeplane_core::id::{AttemptId, InstanceId};
use forgeplane_core::model::*;
use forgeplane_core::ports::{EventFilter, Page, Select, Store as _, StoreExt as _};

use super::cluster::Cluster;
use super::people::People;
use super::world::Deeds;

/// What was found at the end of a schedule.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) violations: Vec<String>,
    /// Comparisons that were made.
    pub(super) compared: u64,
    pub(super) attempts: u64,
    pub(super) receipts: u64,
    pub(super) most_starts: u32,
    pub(super) history: Digest,
}

impl Verdict {
    /// Nothing was looked at yet.
    pub(super) fn new() -> Self {
        Self {
            violations: Vec::new(),
            compared: 0,
            attempts: 0,
            receipts: 0,
            most_starts: 0,
            history: Digest::of(b""),
        }
    }

    fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        self.compared += 1;
        if !holds {
            self.violations.push(what());
        }
    }
}

/// Whether nothing is left to be done: every run has ended and no journal holds anything.
pub(super) async fn is_quiet(cluster: &Cluster, people: &People) -> bool {
    journals(cluster).is_empty() && runs(cluster, people).await.iter().all(|run| run.status.is_terminal())
}

async fn runs(cluster: &Cluster, people: &People) -> Vec<Run> {
    let select = Select::Runs { project: people.alice.project, status: None, instance: None };
    let found = cluster.store.list_as::<Run>(&select, &Page::all()).await.unwrap_or_default();
    found.into_iter().map(|run| run.value).collect()
}

/// What the journals of machines that still exist hold.
fn journals(cluster: &Cluster) -> Vec<String> {
    let journals = cluster.journals().into_iter();
    journals
        .map(|(path, content)| format!("{}: {}", path.display(), String::from_utf8_lossy(&content)))
        .collect()
}

/// Compares the records with the world.
pub(super) async fn judge(cluster: &Cluster, people: &People) -> Verdict {
    let mut verdict = Verdict::new();
    let deeds = cluster.world.deeds();
    match check(&*cluster.store).await {
        Ok(report) => {
            verdict.receipts = report.receipts;
            verdict.compared += report.attempts + report.receipts + report.events + report.generations;
            verdict.violations.extend(report.violations.iter().map(ToString::to_string));
        }
        Err(error) => verdict.violations.push(error.to_string()),
    }
    let mut writers: BTreeMap<InstanceId, Vec<(AttemptId, Deeds)>> = BTreeMap::new();
    for run in runs(cluster, people).await {
        verdict.expect(run.status.is_terminal(), || format!("L1: run {} is still `{}`", run.id, run.status));
        let attempts = cluster
            .store
            .list_as::<Attempt>(&Select::Attempts(run.id), &Page::all())
            .await
            .unwrap_or_default();
        for attempt in attempts {
            verdict.attempts += 1;
            let did = deeds.get(&attempt.id).cloned().unwrap_or_default();
            compare(cluster, &mut verdict, &run, &attempt, &did).await;
            if !did.applies.is_empty() {
                writers.entry(run.instance).or_default().push((attempt.id, did));
            }
        }
    }
    let known: u64 = deeds.values().map(|did| u64::from(did.starts)).sum();
    verdict.expect(known == cluster.world.counts().starts, || "a start belongs to no attempt".into());
    for (instance, writers) in writers {
        one_at_a_time(&mut verdict, instance, &writers);
    }
    for left in journals(cluster) {
        verdict.expect(false, || format!("L4: a journal still holds {left}"));
    }
    // Of a worker and its copy one may hold what the other one's claim excludes.
    for seat in cluster.workers.iter().filter(|seat| !seat.is_copied.load(Ordering::Relaxed)) {
        for (path, _) in seat.disk.below("/state/rejected") {
            verdict.expect(false, || format!("L4: {} was refused for good", path.display()));
        }
    }
    let events = cluster.store.events(&EventFilter::default(), 0, usize::MAX).await.unwrap_or_default();
    verdict.history = Digest::of(format!("{events:?}").as_bytes());
    if !verdict.violations.is_empty() {
        tell(cluster, &events);
    }
    verdict
}

/// The whole history, for whoever looks for the reason.
fn tell(cluster: &Cluster, events: &[Event]) {
    for event in events {
        let data = serde_json::to_string(&event.data).unwrap_or_default();
        tracing::info!(seq = event.seq, at = %event.at, kind = event.kind.as_str(), data, "history");
    }
    for (attempt, did) in cluster.world.deeds() {
        tracing::info!(%attempt, ?did, "what really happened");
    }
}

async fn compare(cluster: &Cluster, verdict: &mut Verdict, run: &Run, attempt: &Attempt, did: &Deeds) {
    let id = attempt.id;
    verdict.most_starts = verdict.most_starts.max(did.starts);
    verdict.expect(did.starts <= 1, || format!("S1: attempt {id} was started {} times", did.starts));
    verdict
        .expect(did.applies.len() <= 1, || format!("S1: attempt {id} applied {} times", did.applies.len()));
    let applied = did.applies.first();
    verdict
        .expect(applied.is_none_or(|apply| apply.until.is_some()), || format!("attempt {id} still applies"));
    verdict.expect(did.starts == 0 || attempt.claim.is_some(), || {
        format!("S2: attempt {id} was started without a claim")
    });
    match &attempt.closing {
        Some(Closing::Revoked { reason }) => {
            verdict.expect(did.starts == 0, || format!("S2: attempt {id} ran and was revoked ({reason})"));
        }
        Some(Closing::Receipted { outcome: OutcomeKind::NotStarted, .. }) => {
            verdict
                .expect(did.starts == 0, || format!("S3: attempt {id} ran and is said not to have started"));
        }
        Some(Closing::Receipted { outcome: OutcomeKind::Succeeded, .. }) => {
            verdict.expect(did.starts == 1, || {
                format!("S3: attempt {id} never ran and is said to have succeeded")
            });
            let ended = applied.is_none_or(|apply| apply.exit == Some(0));
            let must = run.operation.changes_infrastructure();
            verdict.expect(ended && (applied.is_some() || !must), || {
                format!("S3: attempt {id} is said to have succeeded, and its apply ended with {applied:?}")
            });
        }
        Some(Closing::Receipted { .. } | Closing::Decided { .. }) | None => {}
    }
    if let Some(object) = attempt.state_object {
        states(cluster, verdict, attempt, object, did).await;
    }
}

/// A document whose save was answered is a generation, and an outcome names the last one.
async fn states(
    cluster: &Cluster,
    verdict: &mut Verdict,
    attempt: &Attempt,
    object: forgeplane_core::id::StateObjectId,
    did: &Deeds,
) {
    let id = attempt.id;
    let generations = cluster
        .store
        .list_as::<StateGeneration>(&Select::Generations(object), &Page::all())
        .await
        .unwrap_or_default();
    let mine: Vec<_> = generations.iter().filter(|g| g.writer.attempt == Some(id)).collect();
    for saved in &did.saved {
        verdict.expect(mine.iter().any(|g| g.digest == *saved), || {
            format!("S8: attempt {id} was told that {saved} is saved, and it is not")
        });
    }
    let receipt = cluster.store.get_as::<Receipt>(id).await.ok().flatten();
    let said = receipt.and_then(|receipt| {
        let envelope = Envelope::from_json(&receipt.envelope).ok()?;
        match Conclusion::peek(&envelope).ok()? {
            Conclusion::Outcome(outcome) => Some(outcome),
            Conclusion::NotStarted(_) => None,
        }
    });
    // A worker that had to end while a save was in doubt says so; the document may be stored all the same.
    if let Some(outcome) = said.filter(|o| o.error.as_ref().is_none_or(|e| e.code != "state_upload_failed")) {
        let last = mine.iter().map(|g| g.generation).max();
        verdict.expect(!outcome.started || interrupted(&outcome) || last == outcome.generation, || {
            format!(
                "S8: the outcome of attempt {id} names generation {:?}, and its last is {last:?}",
                outcome.generation
            )
        });
    }
}

/// Signed after a restart: what the tool saved last is not known to the worker.
fn interrupted(outcome: &Outcome) -> bool {
    outcome.error.as_ref().is_some_and(|error| error.code == "worker_restarted")
}

/// No two tools ever worked on an instance at the same time.
fn one_at_a_time(verdict: &mut Verdict, instance: InstanceId, writers: &[(AttemptId, Deeds)]) {
    let mut spans: Vec<_> = writers
        .iter()
        .flat_map(|(id, did)| {
            did.applies.iter().map(|apply| (apply.from, apply.until.unwrap_or(apply.from), *id))
        })
        .collect();
    spans.sort();
    for pair in spans.windows(2) {
        verdict.expect(pair[1].0 >= pair[0].1, || {
            format!(
                "S6: attempts {} and {} applied to instance {instance} at the same time",
                pair[0].2, pair[1].2
            )
        });
    }
}
