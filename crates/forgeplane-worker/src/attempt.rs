//! One attempt, from delivery to receipt (`protocol.md` 1.4, S4 to S14).

use std::sync::Arc;
use std::time::Instant;

use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::{BundleManifest, Cleanup, Envelope, NotStarted, Outcome, Statement};
use forgeplane_core::model::{Job, Nonce, Operation, OutcomeKind, RunError, Snapshot, StopCause};
use forgeplane_core::ports::{
    AttemptRef, Bundle, ClaimGrant, ClaimRef, ClaimRequest, ControlError, Holding, ReceiptAnswer,
};
use forgeplane_core::{Code, Refusal};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use crate::error::{WorkerError, at};
use crate::executor::{Execution, ExecutionError, Report};
use crate::journal::{Entry, Intent, Stage};
use crate::logs::{AttemptLog, LogSummary};
use crate::redact::Redactor;
use crate::retry::while_unavailable;
use crate::sandbox::Exit;
use crate::state_server::{StateResult, StateServer};
use crate::stop::StopLatch;
use crate::tools::FoundTool;
use crate::unpack::{self, Limits};
use crate::worker::Running;
use crate::workspace::Workspace;

/// What becomes of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The attempt is closed, or never was for us: the message is done with.
    Done,
    /// The coordinator could not be asked; the message must come again.
    Again,
    /// The user id cannot be cleaned: this worker takes no more work.
    Quarantined,
}

/// Whether the coordinator knows how an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settled {
    /// It does, or refuses for good to hear of it.
    Yes,
    /// The journal keeps what is to be said.
    NotYet,
}

impl From<Settled> for Verdict {
    /// A message is done with only when the attempt is (invariant I6).
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Yes => Self::Done,
            Settled::NotYet => Self::Again,
        }
    }
}

/// A verified bundle.
struct Verified {
    manifest: BundleManifest,
    snapshot: Snapshot,
    digest: Digest,
    bundle: Bundle,
}

/// Why an attempt does not get as far as a claim.
struct Refused {
    reason: RunError,
    retryable: bool,
}

fn refused(code: &str, message: impl Into<String>, retryable: bool) -> Refused {
    Refused { reason: RunError { code: code.to_owned(), message: message.into() }, retryable }
}

impl Running {
    /// Deals with one delivered job.
    pub(crate) async fn deal_with(
        &self,
        job: &Job,
        shutdown: &CancellationToken,
    ) -> Result<Verdict, WorkerError> {
        // A message of an attempt that was run, and whose end the coordinator has not acknowledged: a second
        // intent would overwrite the first one's outcome.
        if let Some(entry) = self.journal.find(job.fence)? {
            return Ok(self.settle(&entry, shutdown).await?.into());
        }
        let of = AttemptRef { attempt: job.attempt, fence: job.fence };
        let bundle = match while_unavailable("fetch the bundle", shutdown, || self.link.bundle(of)).await {
            Ok(bundle) => bundle,
            // Closed, or another worker's: an old message.
            Err(ControlError::Refused(refusal)) => {
                tracing::info!(attempt = %job.attempt, %refusal, "the job is not for this worker any more");
                return Ok(Verdict::Done);
            }
            Err(ControlError::Unavailable(_)) => return Ok(Verdict::Again),
        };
        if self.sandbox.sweep().await == Cleanup::Dirty {
            let reason = refused("dirty_uid", "processes of an earlier run cannot be killed", false);
            self.not_started(job, None, reason, shutdown).await?;
            return Ok(Verdict::Quarantined);
        }
        let prepared = self.verify(job, bundle).and_then(|verified| {
            let tool = self.usable_tool(&verified.snapshot)?;
            let workspace = self.prepare(&verified)?;
            Ok((verified, tool, workspace))
        });
        let (verified, tool, workspace) = match prepared {
            Ok(prepared) => prepared,
            Err(reason) => {
                tracing::warn!(attempt = %job.attempt, code = reason.reason.code, "the attempt cannot start");
                self.not_started(job, None, reason, shutdown).await?;
                return Ok(Verdict::Done);
            }
        };
        let verdict = self.claim_and_run(job, verified, tool, &workspace, shutdown).await;
        if matches!(verdict, Ok(Verdict::Quarantined)) {
            tracing::error!("a workspace is left as it is: what could not be killed may still work in it");
        } else if let Err(error) = workspace.remove() {
            tracing::error!(%error, "a workspace could not be removed");
        }
        verdict
    }

    /// Signature under the pinned key first, then every digest (faults G5).
    fn verify(&self, job: &Job, bundle: Bundle) -> Result<Verified, Refused> {
        let bad = |what: &str| refused("bundle_refused", format!("the bundle does not verify: {what}"), true);
        let manifest: BundleManifest =
            bundle.manifest.verify(&self.link.coordinator_key).map_err(|e| bad(&e.to_string()))?;
        if manifest.attempt != job.attempt || manifest.fence != job.fence || manifest.run != job.run {
            return Err(bad("it is for another attempt"));
        }
        if manifest.worker != self.link.worker {
            return Err(bad("it is for another worker"));
        }
        if Digest::of(&bundle.snapshot) != manifest.snapshot {
            return Err(bad("the snapshot has another digest"));
        }
        if Digest::of(&bundle.source) != manifest.source {
            return Err(bad("the source has another digest"));
        }
        let digest = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map(|b| Digest::of(b));
        if digest(&bundle.state) != manifest.state.as_ref().and_then(|s| s.digest) {
            return Err(bad("the state has another digest"));
        }
        if digest(&bundle.lock_file) != manifest.lock_file {
            return Err(bad("the lock file has another digest"));
        }
        if digest(&bundle.plan) != manifest.plan {
            return Err(refused(
                "artifact_digest_mismatch",
                "the plan file is not the one that was approved",
                false,
            ));
        }
        let snapshot: Snapshot = serde_json::from_slice(&bundle.snapshot).map_err(|e| bad(&e.to_string()))?;
        if snapshot.run != job.run || snapshot.source != manifest.source {
            return Err(bad("the snapshot is another run's"));
        }
        if snapshot.plan.as_ref().map(|p| p.digest) != manifest.plan {
            return Err(refused(
                "artifact_digest_mismatch",
                "the plan file is not the one that was approved",
                false,
            ));
        }
        Ok(Verified { manifest, snapshot, digest: bundle.manifest.digest(), bundle })
    }

    fn usable_tool(&self, snapshot: &Snapshot) -> Result<&FoundTool, Refused> {
        let missing =
            || refused("tool_missing", format!("this worker has no usable `{}`", snapshot.tool), true);
        let tool = self.tools.get(&snapshot.tool).ok_or_else(missing)?;
        if !self.executors.contains_key(&snapshot.tool) {
            return Err(missing());
        }
        if !tool.is_unchanged() {
            return Err(refused(
                "tool_changed",
                format!(
                    "the executable of `{}` is not the one this worker found when it started",
                    snapshot.tool
                ),
                true,
            ));
        }
        Ok(tool)
    }

    fn prepare(&self, verified: &Verified) -> Result<Workspace, Refused> {
        let failed = |e: std::io::Error| refused("workspace_failed", e.to_string(), true);
        let workspace =
            Workspace::create(&self.config.workspace_root, verified.manifest.attempt, self.config.isolation)
                .map_err(failed)?;
        let filled = unpack::unpack(&verified.bundle.source, &workspace.source, &Limits::default())
            .map_err(|e| refused("invalid_bundle", e.to_string(), false))
            .and_then(|()| workspace.give_source().map_err(failed));
        match filled {
            Ok(()) => Ok(workspace),
            Err(reason) => {
                // The reason is what counts; what is left is removed at the next try.
                let _ = workspace.remove();
                Err(reason)
            }
        }
    }

    async fn claim_and_run(
        &self,
        job: &Job,
        verified: Verified,
        tool: &FoundTool,
        workspace: &Workspace,
        shutdown: &CancellationToken,
    ) -> Result<Verdict, WorkerError> {
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|e| at("random numbers")(std::io::Error::other(e)))?;
        let intent = Intent {
            project: job.project,
            run: job.run,
            attempt: job.attempt,
            number: verified.manifest.number,
            fence: job.fence,
            // H3: fresh for every intent.
            nonce: Nonce(nonce),
            worker: self.link.worker,
            snapshot: verified.manifest.snapshot,
            bundle: verified.digest,
            plan: verified.manifest.plan,
        };
        self.journal.record(&intent, Stage::Intent)?;
        let _held = self.hold(&intent);
        let request = ClaimRequest {
            attempt: AttemptRef { attempt: intent.attempt, fence: intent.fence },
            nonce: intent.nonce,
        };
        let grant = match while_unavailable("claim", shutdown, || self.link.claim(request)).await {
            Ok(grant) if grant.nonce == intent.nonce => grant,
            Ok(_) => {
                return Err(ControlError::Refused(Refusal::new(
                    Code::FenceMismatch,
                    "the grant names another nonce",
                ))
                .into());
            }
            // An earlier try may have been granted, and its answer lost: the intent is kept.
            Err(ControlError::Refused(refusal)) if is_about_the_worker(&refusal) => {
                tracing::error!(attempt = %intent.attempt, %refusal, "the coordinator does not hear this worker");
                return Ok(Verdict::Again);
            }
            Err(ControlError::Refused(refusal)) => {
                tracing::info!(attempt = %intent.attempt, %refusal, "the claim was refused");
                self.journal.forget(&intent)?;
                return Ok(Verdict::Done);
            }
            // Not known whether the claim was committed: the journal says INTENT, and the next start will
            // sign that the tool never ran for this nonce.
            Err(ControlError::Unavailable(_)) => return Ok(Verdict::Again),
        };
        let stop = self.begin(intent.fence);
        let envelope = self.execute(&intent, &verified, grant, tool, workspace, &stop).await;
        self.end();
        let (envelope, dirty) = envelope?;
        let settled = self.deliver(&intent, &envelope, shutdown).await?;
        Ok(if dirty { Verdict::Quarantined } else { settled.into() })
    }

    /// Runs the tool and signs; the signed envelope is journaled when this returns.
    async fn execute(
        &self,
        intent: &Intent,
        verified: &Verified,
        grant: ClaimGrant,
        tool: &FoundTool,
        workspace: &Workspace,
        stop: &StopLatch,
    ) -> Result<(Envelope, bool), WorkerError> {
        let claim = ClaimRef { attempt: intent.attempt, fence: intent.fence, nonce: intent.nonce };
        let snapshot = &verified.snapshot;
        let values: Vec<SecretString> = grant.secrets.iter().map(|s| s.value.clone()).collect();
        let redactor = Redactor::new(&values);
        let log = AttemptLog::start(
            Arc::clone(&self.link),
            claim,
            &workspace.private,
            &redactor,
            self.config.log_cap_bytes,
        )?;
        let state = match &verified.manifest.state {
            None => None,
            Some(state) => Some(
                StateServer::start(
                    Arc::clone(&self.link),
                    claim,
                    state.generation,
                    verified.bundle.state.clone(),
                    snapshot.operation.writes_state(),
                )
                .await?,
            ),
        };
        if self.config.isolation == crate::sandbox::Isolation::UnsafeNone {
            log.writer().say("[forgeplane: UNSAFE: this worker runs tools without isolation]");
        }
        self.journal.record(intent, Stage::Started)?;
        let begun = Instant::now();
        let deadline = {
            let (stop, timeout) = (stop.clone(), grant.execution_timeout);
            tokio::spawn(async move {
                tokio::time::sleep(timeout).await;
                stop.stop(StopCause::Deadline);
            })
        };
        let mut execution = Execution {
            snapshot,
            workspace,
            tool,
            plan: verified.bundle.plan.as_ref(),
            lock_file: verified.bundle.lock_file.as_ref(),
            secrets: &grant.secrets,
            state: state.as_ref(),
            sandbox: &self.sandbox,
            log: log.writer(),
            stop,
            link: &self.link,
            claim,
            artifacts: std::collections::BTreeMap::new(),
            started: false,
            forced: false,
            show_timeout: self.config.show_timeout,
        };
        let executor = self.executors.get(&snapshot.tool);
        let result = match executor {
            Some(executor) => executor.execute(&mut execution).await,
            None => Err(ExecutionError::Invalid { code: "tool_missing", message: "no executor".into() }),
        };
        let (artifacts, started, forced) =
            (std::mem::take(&mut execution.artifacts), execution.started, execution.forced);
        drop(execution);
        deadline.abort();
        let cleanup = self.sandbox.sweep().await;
        let state = match state {
            Some(server) => server.finish().await,
            None => StateResult::default(),
        };
        if let Some(refusal) = &state.refused {
            log.writer()
                .say(&format!("[forgeplane: a state document was refused and kept aside: {refusal}]"));
        }
        let ending = ending(result, &state, stop.cause(), snapshot, forced);
        if let Some(error) = &ending.error {
            log.writer().say(&format!(
                "[forgeplane: {}: {}]",
                error.code,
                redacted(&redactor, &error.message)
            ));
        }
        let log: LogSummary = log.finish(self.config.log_wait).await;
        let outcome = Outcome {
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
            outcome: ending.outcome,
            started,
            exit_code: ending.exit.and_then(|e| e.code),
            signal: ending.exit.and_then(|e| e.signal),
            stop: stop.cause(),
            forced,
            effects_unknown: ending.effects_unknown,
            tool: Some(tool.identity()),
            duration_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            generation: state.generation,
            state: state.digest,
            log_bytes: log.bytes,
            log: log.digest,
            log_incomplete: log.incomplete,
            artifacts,
            summary: ending.summary,
            cleanup,
            error: ending.error.map(|e| RunError { message: redacted(&redactor, &e.message), ..e }),
        };
        let envelope = self.sign_and_journal(intent, &outcome)?;
        Ok((envelope, cleanup == Cleanup::Dirty))
    }

    fn sign_and_journal<S: Statement>(
        &self,
        intent: &Intent,
        statement: &S,
    ) -> Result<Envelope, WorkerError> {
        let envelope = Envelope::sign(statement, self.identity.signing_key())
            .map_err(|e| at("the outcome")(std::io::Error::other(e)))?;
        self.journal.record(intent, Stage::Signed { envelope: envelope.to_json() })?;
        Ok(envelope)
    }

    /// Sends a journaled envelope until the coordinator has it, then forgets the attempt.
    async fn deliver(
        &self,
        intent: &Intent,
        envelope: &Envelope,
        shutdown: &CancellationToken,
    ) -> Result<Settled, WorkerError> {
        match while_unavailable("deliver the outcome", shutdown, || self.link.conclude(envelope.clone()))
            .await
        {
            Ok(answer) if is_receipt_of(&answer, intent, envelope) => {
                self.journal.record(intent, Stage::Receipted)?;
                self.journal.forget(intent)?;
                Ok(Settled::Yes)
            }
            // H2: an answer about other bytes is no receipt; the journal keeps what was signed.
            Ok(answer) => {
                tracing::error!(attempt = %answer.attempt, "the coordinator acknowledged another envelope than was sent");
                Ok(Settled::NotYet)
            }
            Err(ControlError::Refused(refusal)) if is_about_the_worker(&refusal) => {
                tracing::error!(attempt = %intent.attempt, %refusal, "the outcome is kept: the coordinator does not hear this worker");
                Ok(Settled::NotYet)
            }
            Err(ControlError::Refused(refusal)) => {
                let kept = self.journal.set_aside(intent, &envelope.to_json())?;
                tracing::error!(attempt = %intent.attempt, %refusal, kept = %kept.display(), "the coordinator refuses the outcome for good");
                self.journal.forget(intent)?;
                Ok(Settled::Yes)
            }
            // Shutting down: the next start, or the next delivery, sends the same bytes.
            Err(ControlError::Unavailable(_)) => Ok(Settled::NotYet),
        }
    }

    /// Tells the coordinator that the tool was never started, before any intent was journaled.
    async fn not_started(
        &self,
        job: &Job,
        nonce: Option<Nonce>,
        refused: Refused,
        shutdown: &CancellationToken,
    ) -> Result<(), WorkerError> {
        let statement = NotStarted {
            project: job.project,
            run: job.run,
            attempt: job.attempt,
            fence: job.fence,
            nonce,
            worker: self.link.worker,
            reason: refused.reason,
            retryable: refused.retryable,
        };
        let envelope = Envelope::sign(&statement, self.identity.signing_key())
            .map_err(|e| at("the statement")(std::io::Error::other(e)))?;
        match while_unavailable("report", shutdown, || self.link.conclude(envelope.clone())).await {
            Ok(_) | Err(ControlError::Unavailable(_)) => Ok(()),
            Err(ControlError::Refused(refusal)) => {
                tracing::warn!(attempt = %job.attempt, %refusal, "the report was refused");
                Ok(())
            }
        }
    }

    /// Deals with what the journal remembers from before a restart. The user id was swept already.
    pub(crate) async fn recover(&self, shutdown: &CancellationToken) -> Result<(), WorkerError> {
        for entry in self.journal.entries()? {
            self.settle(&entry, shutdown).await?;
            let leftover = self.config.workspace_root.join(entry.intent.attempt.to_string());
            if leftover.exists() {
                std::fs::remove_dir_all(&leftover).map_err(at(&leftover))?;
            }
        }
        Ok(())
    }

    /// Brings a journaled attempt, whose tool does not run any more, to its end.
    async fn settle(&self, entry: &Entry, shutdown: &CancellationToken) -> Result<Settled, WorkerError> {
        let intent = &entry.intent;
        let _held = self.hold(intent);
        tracing::warn!(attempt = %intent.attempt, fence = %intent.fence, stage = stage_name(&entry.stage), "an attempt is settled from the journal");
        let envelope = match &entry.stage {
            Stage::Intent => self.sign_and_journal(intent, &never_started(intent))?,
            Stage::Started => self.sign_and_journal(intent, &interrupted(intent))?,
            Stage::Signed { envelope } => {
                Envelope::from_json(envelope).map_err(|error| WorkerError::StateCorrupt {
                    path: self.config.state_dir.join("journal"),
                    reason: format!("the signed outcome of fence {} cannot be read: {error}", intent.fence),
                })?
            }
            Stage::Receipted => {
                self.journal.forget(intent)?;
                return Ok(Settled::Yes);
            }
        };
        self.deliver(intent, &envelope, shutdown).await
    }
}

/// A refusal of *this worker* says nothing about the attempt a call was for. Taken for an answer, it would make
/// the worker drop an intent or an outcome that the coordinator still waits for.
const fn is_about_the_worker(refusal: &Refusal) -> bool {
    matches!(
        refusal.code,
        Code::WorkerDisabled | Code::KeyUnusable | Code::EnrollmentRefused | Code::Unauthenticated
    )
}

fn is_receipt_of(answer: &ReceiptAnswer, intent: &Intent, envelope: &Envelope) -> bool {
    answer.attempt == intent.attempt && answer.envelope_digest == envelope.digest()
}

const fn stage_name(stage: &Stage) -> &'static str {
    match stage {
        Stage::Intent => "intent",
        Stage::Started => "started",
        Stage::Signed { .. } => "signed",
        Stage::Receipted => "receipted",
    }
}

fn redacted(redactor: &Redactor, text: &str) -> String {
    String::from_utf8_lossy(&redactor.redact_all(text.as_bytes())).into_owned()
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

fn interrupted(intent: &Intent) -> Outcome {
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
        cleanup: Cleanup::Clean,
        error: Some(RunError {
            code: "worker_restarted".into(),
            message: "the worker restarted while the tool ran; what the tool saved last is the current state, and what it did after that is not known".into(),
        }),
    }
}

/// How an attempt ended.
struct Ending {
    outcome: OutcomeKind,
    exit: Option<Exit>,
    summary: Option<forgeplane_core::model::PlanSummary>,
    error: Option<RunError>,
    effects_unknown: bool,
}

/// The table of `protocol.md` 1.7: success counts even after a stop; otherwise the first stop cause decides.
fn ending(
    result: Result<Report, ExecutionError>,
    state: &StateResult,
    stop: Option<StopCause>,
    snapshot: &Snapshot,
    forced: bool,
) -> Ending {
    let changes = snapshot.operation.changes_infrastructure();
    let interrupted = matches!(result, Err(ExecutionError::Stopped(_)));
    let (exit, summary, mut error) = match result {
        Ok(report) => (report.exit, report.summary, report.error),
        Err(ExecutionError::Stopped(exit)) => (exit, None, None),
        Err(error) => (None, None, Some(error.run_error())),
    };
    let mut outcome = match (&error, stop) {
        (None, _) if !interrupted => OutcomeKind::Succeeded,
        (_, Some(StopCause::Cancel)) => OutcomeKind::Canceled,
        (_, Some(StopCause::Deadline)) => OutcomeKind::TimedOut,
        (_, None) => OutcomeKind::Failed,
    };
    if let Some(refusal) = &state.refused {
        // Whatever the tool made of it: what it did is not what the state says.
        outcome = OutcomeKind::Failed;
        error = Some(RunError { code: refusal.code.as_str().to_owned(), message: refusal.to_string() });
    }
    let error = match outcome {
        OutcomeKind::Canceled => {
            Some(RunError { code: "canceled".into(), message: "the tool was stopped on request".into() })
        }
        OutcomeKind::TimedOut => Some(RunError {
            code: "deadline_exceeded".into(),
            message: format!("the tool was stopped: it ran longer than {} s", snapshot.execution_timeout_s),
        }),
        _ => error,
    };
    // A killed Ansible leaves remote commands running; a killed apply may have done more than it saved.
    let remote =
        snapshot.operation == Operation::Execute && stop.is_some() && outcome != OutcomeKind::Succeeded;
    Ending { outcome, exit, summary, error, effects_unknown: (forced && changes) || remote }
}

impl Running {
    fn hold(&self, intent: &Intent) -> crate::worker::Held<'_> {
        self.holdings.hold(Holding { fence: intent.fence, nonce: intent.nonce })
    }
}
