//! Settling journaled attempts: after a restart, and whenever an outcome could not be delivered at once.

use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::{Cleanup, Envelope, NotStarted, Outcome};
use forgeplane_core::failpoint::{self, Failpoint};
use forgeplane_core::model::{OutcomeKind, RunError};
use forgeplane_core::ports::{ControlError, ReceiptAnswer};
use tokio_util::sync::CancellationToken;

use crate::error::WorkerError;
use crate::journal::{Entry, Intent, Stage};
use crate::retry::while_unavailable;
use crate::worker::Running;

/// How many answered heartbeats it takes to know that nobody else uses this identity: the other one notices with its next
/// heartbeat that its session was replaced, and this one with the one after that.
const COMING_FORWARD: u32 = 4;

/// Whether an attempt is over for this worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The coordinator has the statement, or will never take it: the journal has forgotten the attempt.
    Yes,
    /// It could not be delivered before the worker had to end; the journal still holds it.
    NotYet,
}

impl Running {
    /// Deals with what the journal remembers from before a restart. The user id was swept already. `false`: something is
    /// left that nothing may be said of, so nothing may be begun, either.
    pub(crate) async fn recover(&self, stop: &CancellationToken) -> Result<bool, WorkerError> {
        let entries = self.journal.entries()?;
        // Of these something would be said that is not signed yet.
        let undecided = |entry: &Entry| matches!(entry.stage, Stage::Intent | Stage::Started);
        if entries.iter().any(|entry| undecided(entry) && self.journal.wrote(entry))
            && !self.is_alone(stop).await
        {
            return Ok(false);
        }
        for entry in entries {
            let (attempt, fence, stage) = (entry.intent.attempt, entry.intent.fence, entry.stage.name());
            if undecided(&entry) && !self.journal.wrote(&entry) {
                let kept = self.journal.disbelieve(&entry.intent)?;
                tracing::error!(
                    %attempt, %fence, stage, kept = %kept.display(),
                    "this state directory is a copy, and its journal says nothing of what came of this attempt after it was copied: unless the original is used again, an operator has to resolve the attempt"
                );
                continue;
            }
            tracing::warn!(%attempt, %fence, stage, "recovering an attempt from the journal");
            metrics::counter!("forgeplane_worker_recovered_total", "stage" => stage).increment(1);
            self.settle(&entry, stop).await?;
        }
        Ok(true)
    }

    /// Waits until another worker with this identity, if there is one, has had the time to come forward: of a machine that was
    /// cloned as a whole nothing tells the copy, and a tool may be running on the other one. `false`: there is one, or the worker ends.
    async fn is_alone(&self, stop: &CancellationToken) -> bool {
        let mut beats = self.beats.subscribe();
        tokio::select! {
            biased;
            () = self.link.out_of_service.cancelled() => false,
            () = stop.cancelled() => false,
            // The sender lives as long as `self`.
            _ = beats.wait_for(|beats| *beats >= COMING_FORWARD) => true,
        }
    }

    /// Signs what can be said of a journaled attempt that does not run, and delivers it.
    pub(crate) async fn settle(
        &self,
        entry: &Entry,
        stop: &CancellationToken,
    ) -> Result<Settled, WorkerError> {
        let intent = &entry.intent;
        let _held = self.hold(intent);
        let envelope = match &entry.stage {
            Stage::Intent => self.sign_and_journal(intent, &never_started(intent))?,
            Stage::Started => self.sign_and_journal(intent, &interrupted(intent, self.found_at_start))?,
            Stage::Signed { envelope } => {
                Envelope::from_json(envelope).map_err(|error| WorkerError::StateCorrupt {
                    path: self.journal.path(intent),
                    reason: format!("the signed outcome cannot be read: {error}"),
                })?
            }
            Stage::Receipted => {
                self.journal.forget(intent)?;
                return Ok(Settled::Yes);
            }
        };
        self.deliver(intent, &envelope, stop).await
    }

    /// Sends a journaled envelope until the coordinator has it, then forgets the attempt.
    pub(crate) async fn deliver(
        &self,
        intent: &Intent,
        envelope: &Envelope,
        stop: &CancellationToken,
    ) -> Result<Settled, WorkerError> {
        let send = || async {
            let answer = self.link.conclude(envelope.clone()).await?;
            if is_receipt_of(&answer, intent, envelope) {
                return Ok(());
            }
            // H2: an answer about other bytes is no receipt. The journal keeps what was signed, and it is
            // sent again.
            tracing::error!(attempt = %answer.attempt, "the coordinator acknowledged another envelope than was sent");
            Err(ControlError::Unavailable("the receipt is for another envelope".into()))
        };
        match while_unavailable(self.link.pause(), "deliver the outcome", stop, send).await {
            Ok(()) => {
                failpoint::reach(Failpoint::ReceiptReceived);
                self.journal.record(intent, Stage::Receipted)?;
                failpoint::reach(Failpoint::ReceiptJournaled);
            }
            Err(ControlError::Refused(refusal)) => {
                let kept = self.journal.set_aside(intent, &envelope.to_json())?;
                tracing::error!(attempt = %intent.attempt, %refusal, kept = %kept.display(), "the coordinator refuses the outcome for good");
            }
            // The worker ends: the next start sends the same bytes.
            Err(ControlError::Unavailable(_)) => return Ok(Settled::NotYet),
        }
        self.journal.forget(intent)?;
        Ok(Settled::Yes)
    }
}

fn is_receipt_of(answer: &ReceiptAnswer, intent: &Intent, envelope: &Envelope) -> bool {
    answer.attempt == intent.attempt && answer.envelope_digest == envelope.digest()
}

fn never_started(intent: &Intent) -> NotStarted {
    NotStarted {
        project: intent.project,
        run: intent.run,
        attempt: intent.attempt,
        fence: intent.fence,
        nonce: Some(intent.nonce),
        worker: intent.worker,
        reason: RunError {
            code: "worker_restarted".into(),
            message: "the worker restarted before it started the tool".into(),
        },
        retryable: true,
    }
}

fn interrupted(intent: &Intent, cleanup: Cleanup) -> Outcome {
    Outcome {
        project: intent.project,
        run: intent.run,
        attempt: intent.attempt,
        number: intent.number,
        fence: intent.fence,
        nonce: intent.nonce,
        worker: intent.worker,
        snapshot: intent.snapshot,
        bundle: intent.bundle,
        plan: intent.plan,
        outcome: OutcomeKind::Failed,
        started: true,
        exit_code: None,
        signal: None,
        stop: None,
        forced: true,
        effects_unknown: true,
        tool: None,
        duration_ms: 0,
        generation: None,
        state: None,
        log_bytes: 0,
        log: Digest::of(b""),
        log_incomplete: true,
        artifacts: std::collections::BTreeMap::new(),
        summary: None,
        cleanup,
        error: Some(RunError {
            code: "worker_restarted".into(),
            message: "the worker restarted while the tool ran; what the tool saved last is the current state, and what it did after that is not known".into(),
        }),
    }
}
