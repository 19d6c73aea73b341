//! The loops that keep runs moving. Each is a `step` that a test can call, and a loop around it.
//!
//! Every step may run on several coordinators at once: what two of them decide alike, the store's versions
//! and constraints let only one of them do.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Coordinator, CoordinatorError, Result};
use crate::failpoint::{self, Failpoint};
use crate::id::{AttemptId, OutboxId};
use crate::model::*;
use crate::ports::{EventSink, Page, Select, StoreExt as _};
use crate::rules::schedule::{self, Placement};
use crate::rules::{approval, sweep};

/// How often the loops look without having been woken: only to repair missed wake-ups.
const REPAIR: Duration = Duration::from_secs(2);
/// How often time-driven rules are asked.
const SWEEP: Duration = Duration::from_secs(1);
/// How often a coordinator on a shared store looks for what others committed.
const FOREIGN: Duration = Duration::from_millis(100);
/// How many messages or events one step handles.
const WINDOW: usize = 256;

/// The running loops of a coordinator.
#[derive(Debug)]
pub struct Loops {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Loops {
    /// Ends the loops after their current step.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Coordinator {
    /// Starts scheduler, dispatcher, reconciler, sweeper and event delivery.
    #[must_use = "the loops end when the returned handle is dropped"]
    pub fn start(&self) -> Loops {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let signals = self.inner.signals.clone();
        let this = self.clone();
        tasks.spawn(woken("scheduler", stop.clone(), signals.schedule, REPAIR, move || {
            let this = this.clone();
            async move { this.schedule_step().await }
        }));
        if self.inner.dispatches {
            let this = self.clone();
            tasks.spawn(woken("dispatcher", stop.clone(), signals.outbox, REPAIR, move || {
                let this = this.clone();
                async move { this.dispatch_step().await }
            }));
        }
        if self.store().is_shared() {
            tasks.spawn(self.clone().watch_foreign(stop.clone()));
        }
        let (this, never) = (self.clone(), Arc::default());
        tasks.spawn(woken("reconciler", stop.clone(), never, SWEEP, move || {
            let this = this.clone();
            async move { this.reconcile_step().await }
        }));
        let (this, never) = (self.clone(), Arc::default());
        tasks.spawn(woken("sweeper", stop.clone(), never, SWEEP, move || {
            let this = this.clone();
            async move { this.sweep_step().await }
        }));
        for sink in &self.inner.sinks {
            tasks.spawn(self.clone().announce(Arc::clone(sink), stop.clone()));
        }
        Loops { stop, tasks }
    }

    /// Leases every run that can be placed now; answers how many were.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn schedule_step(&self) -> Result<usize> {
        let mut view = self.schedule_view().await?;
        let offers = loop {
            let (placements, _) = schedule::place(&view.as_view(self.settings(), self.now()));
            if placements.is_empty() && self.look_further(&mut view).await? {
                continue;
            }
            let mut offers = Vec::with_capacity(placements.len());
            let mut refused = Vec::new();
            for Placement { run, worker, slot } in placements {
                match self.offer(&view.queued[run], &view.workers[worker].worker, slot).await {
                    Ok(changes) => offers.push(changes),
                    Err(CoordinatorError::Refused(refusal)) => {
                        tracing::warn!(run = %view.queued[run].id, %refusal, "a run cannot be leased");
                        refused.push(view.queued[run].id);
                    }
                    Err(error) => return Err(error),
                }
            }
            if refused.is_empty() {
                break offers;
            }
            // What one run cannot use is there for the others, in this very pass.
            view.queued.retain(|run| !refused.contains(&run.id));
        };
        let mut placed = 0;
        // Together, so that the group-commit actor takes them in one transaction.
        for result in join_all(offers.into_iter().map(|changes| self.commit(changes))).await {
            match result? {
                Ok(()) => placed += 1,
                // Another coordinator was faster, or the run moved on.
                Err(conflict) => tracing::debug!(%conflict, "an offer was not made"),
            }
        }
        if placed > 0 {
            failpoint::reach(Failpoint::Offered);
        }
        Ok(placed)
    }

    async fn offer(&self, run: &Versioned<Run>, worker: &Versioned<Worker>, slot: u32) -> Result<Changeset> {
        let snapshot = self.load::<Snapshot>("snapshot", run.id).await?;
        let state = self.state_of(run.state_object).await?;
        let now = self.now();
        // After the run was read: a fence is newer than every fence the run has had.
        let fence = self.store().allocate_fence().await?;
        let ids = schedule::FreshIds {
            attempt: AttemptId::new(now, self.random()),
            fence,
            outbox: OutboxId::new(now, self.random()),
        };
        Ok(schedule::offer(run, &snapshot, state.as_deref(), worker, slot, ids, self.settings(), now)?)
    }

    /// Publishes what waits in the outbox; answers how many jobs were published.
    ///
    /// # Errors
    /// When the store cannot answer. A queue that cannot is tried again later.
    pub async fn dispatch_step(&self) -> Result<usize> {
        if !self.inner.dispatches {
            return Ok(0);
        }
        let messages = self.store().outbox(WINDOW).await?;
        let mut changes = Changeset::new();
        // Together: a broker's acknowledgement takes a while, and the queue bounds what it takes at a time.
        let publishing = messages.iter().map(|message| self.inner.queue.publish(&message.job));
        for (message, result) in messages.iter().zip(join_all(publishing).await) {
            match result {
                Ok(()) => changes.published.push(message.id),
                Err(error) => {
                    tracing::warn!(%error, run = %message.job.run, "a job could not be published; it stays in the outbox");
                }
            }
        }
        let published = changes.published.len();
        if published > 0 {
            failpoint::reach(Failpoint::Published);
            // A conflict is impossible: removing what another coordinator removed is no error.
            let _ = self.commit(changes).await?;
        }
        if published == WINDOW {
            self.inner.signals.outbox.notify_one();
        }
        Ok(published)
    }

    /// Publishes unclaimed offers again; answers how many.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn reconcile_step(&self) -> Result<usize> {
        if !self.inner.dispatches {
            // What waits in the outbox is not lost, so there is nothing to publish again.
            return self.forget_step().await;
        }
        let mut again = 0;
        for attempt in self.store().list_as::<Attempt>(&Select::OpenAttempts, &Page::all()).await? {
            let now = self.now();
            let outbox = OutboxId::new(now, self.random());
            if let Some(changes) = sweep::republish(&attempt, self.settings(), outbox, now)
                && self.commit(changes).await?.is_ok()
            {
                again += 1;
            }
        }
        Ok(again)
    }

    /// Removes messages that nobody will acknowledge, because their attempt was closed without its worker.
    async fn forget_step(&self) -> Result<usize> {
        let mut changes = Changeset::new();
        for message in self.store().outbox(WINDOW).await? {
            let attempt = self.store().get_as::<Attempt>(message.job.attempt).await?;
            if attempt.is_some_and(|attempt| !attempt.is_open()) {
                changes.published.push(message.id);
            }
        }
        let forgotten = changes.published.len();
        if forgotten > 0 {
            // A conflict is impossible: removing what another coordinator removed is no error.
            let _ = self.commit(changes).await?;
        }
        Ok(forgotten)
    }

    /// Looks for what other coordinators on a shared store committed.
    async fn watch_foreign(self, stop: CancellationToken) {
        let mut known = None;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(FOREIGN) => {}
            }
            match self.store().event_head().await {
                Ok(head) if known.is_none_or(|known| known < head) => {
                    // Own events are announced twice this way; who is woken for nothing reads once for nothing.
                    known = Some(head);
                    self.inner.signals.observe_foreign();
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "events of other coordinators could not be looked for"),
            }
            // Log bytes come without events.
            if self.inner.signals.has_log_followers() {
                self.inner.signals.wake_log_followers();
            }
        }
    }

    /// Applies what the passing of time asks for; answers how many changes that made.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn sweep_step(&self) -> Result<usize> {
        let mut changed = 0;
        let open = self.store().list_as::<Attempt>(&Select::OpenAttempts, &Page::all()).await?;
        let candidates = self.candidates().await?;
        for attempt in &open {
            let candidate = candidates.iter().find(|c| c.worker.id == attempt.worker);
            let run = self.load::<Run>("run", attempt.run).await?;
            let snapshot = self.load::<Snapshot>("snapshot", attempt.run).await?;
            let context = sweep::Context {
                attempt,
                run: &run,
                snapshot: &snapshot,
                worker: candidate.map(|c| &c.worker.value),
                contact: candidate.and_then(|c| c.contact.as_ref()),
                settings: self.settings(),
            };
            // A refusal means that the reads do not fit together any more; the next sweep reads again.
            if let Ok(Some(changes)) = sweep::attempt(&context, self.now())
                && self.commit(changes).await?.is_ok()
            {
                changed += 1;
            }
        }
        for run in self.store().list_as::<Run>(&Select::QueuedRuns, &Page::all()).await? {
            let offered = open.iter().any(|a| a.run == run.id);
            if let Ok(Some(changes)) = sweep::queue_timeout(&run, offered, self.now())
                && self.commit(changes).await?.is_ok()
            {
                changed += 1;
            }
        }
        for run in self.store().list_as::<Run>(&Select::RunsPendingApproval, &Page::all()).await? {
            let Some(id) = run.approval else { continue };
            let record = self.load::<Approval>("approval", id).await?;
            if let Ok(Some(changes)) = approval::expire(&record, &run, self.now())
                && self.commit(changes).await?.is_ok()
            {
                changed += 1;
            }
        }
        Ok(changed)
    }

    /// Delivers events to a sink, from its own cursor.
    async fn announce(self, sink: Arc<dyn EventSink>, stop: CancellationToken) {
        let mut events = self.inner.signals.events();
        let mut cursor = None;
        loop {
            events.mark_unchanged();
            match self.announce_step(&*sink, &mut cursor).await {
                Ok(0) => {}
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(%error, "events could not be delivered; they will be offered again")
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = tokio::time::timeout(REPAIR, events.changed()) => {}
            }
        }
    }

    async fn announce_step(
        &self,
        sink: &dyn EventSink,
        cursor: &mut Option<u64>,
    ) -> std::result::Result<usize, crate::ports::BoxError> {
        let after = match *cursor {
            Some(seen) => seen,
            None => sink.cursor().await?,
        };
        *cursor = Some(after);
        let events = self.store().events(&crate::ports::EventFilter::default(), after, WINDOW).await?;
        if let Some(last) = events.last() {
            sink.deliver(&events).await?;
            *cursor = Some(last.seq);
        }
        Ok(events.len())
    }

    /// Only for tests and operators' tools: decides nothing, waits until a pass changes nothing.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn settle(&self) -> Result<()> {
        loop {
            let moved = self.schedule_step().await? + self.dispatch_step().await? + self.sweep_step().await?;
            if moved == 0 {
                return Ok(());
            }
        }
    }
}

/// Runs a step whenever it is woken, and now and then without.
async fn woken<F, Fut>(
    name: &'static str,
    stop: CancellationToken,
    wake: Arc<tokio::sync::Notify>,
    every: Duration,
    step: F,
) where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<usize>>,
{
    loop {
        let began = std::time::Instant::now();
        let result = step().await;
        metrics::histogram!("forgeplane_step_seconds", "loop" => name).record(began.elapsed());
        match result {
            Ok(0) => {}
            Ok(changed) => tracing::debug!(loop_name = name, changed, "step"),
            Err(error) => tracing::warn!(loop_name = name, %error, "a step failed; it will be tried again"),
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = wake.notified() => {}
            () = tokio::time::sleep(every) => {}
        }
    }
}
