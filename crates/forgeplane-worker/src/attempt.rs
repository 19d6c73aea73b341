//! One attempt, from delivery to receipt (`protocol.md` 1.4, S4 to S14).

use std::sync::Arc;
use std::time::Duration;

use forgeplane_core::evidence::{Cleanup, Envelope, NotStarted, Outcome, Statement};
use forgeplane_core::failpoint::{self, Failpoint};
use forgeplane_core::model::{Job, Nonce, RunError, Snapshot, StopCause};
use forgeplane_core::ports::{
    AttemptRef, ClaimGrant, ClaimRef, ClaimRequest, ControlError, EntropyExt as _, Holding,
};
use forgeplane_core::{Code, Refusal};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use crate::bundle::{NoStart, Verified, verify};
use crate::ending::ending;
use crate::error::{WorkerError, at};
use crate::executor::{Execution, ExecutionError};
use crate::host::pass;
use crate::journal::{Intent, Stage};
use crate::logs::{AttemptLog, LogSummary};
use crate::recovery::Settled;
use crate::redact::Redactor;
use crate::retry::while_unavailable;
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
    /// The coordinator does not know how the attempt ended yet; the message must come again (I6).
    Again,
    /// The user id cannot be cleaned: this worker takes no more work.
    Quarantined,
}

impl From<Settled> for Verdict {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Yes => Self::Done,
            Settled::NotYet => Self::Again,
        }
    }
}

impl Running {
    /// Deals with one delivered job. `taking` ends what is not begun: a worker that is to end neither waits for a
    /// bundle nor claims. `stop` ends waiting for the coordinator after that, not the tool.
    pub(crate) async fn deal_with(
        &self,
        job: &Job,
        taking: &CancellationToken,
        stop: &CancellationToken,
    ) -> Result<Verdict, WorkerError> {
        // A message of an attempt that was run, and whose end the coordinator has not acknowledged. A second
        // intent would overwrite the first one's outcome.
        if let Some(entry) = self.journal.find(job.fence)? {
            return Ok(self.settle(&entry, stop).await?.into());
        }
        if !self.knows_its_key().await? {
            return Ok(Verdict::Again);
        }
        let of = AttemptRef { attempt: job.attempt, fence: job.fence };
        let bundle = match while_unavailable(self.link.pause(), "fetch the bundle", taking, || {
            self.link.bundle(of)
        })
        .await
        {
            Ok(bundle) => bundle,
            // Closed, or another worker's: an old message.
            Err(ControlError::Refused(refusal)) => {
                tracing::info!(attempt = %job.attempt, %refusal, "the job is not for this worker any more");
                return Ok(Verdict::Done);
            }
            Err(ControlError::Unavailable(_)) => return Ok(Verdict::Again),
        };
        if self.processes.clear().await == Cleanup::Dirty {
            let reason = NoStart::new("dirty_uid", "processes of an earlier run cannot be killed", false);
            // Whether it was heard or not: the offer runs out by itself, and this worker takes nothing new.
            self.not_started(job, reason, stop).await?;
            return Ok(Verdict::Quarantined);
        }
        let prepared =
            verify(&self.link.coordinator_key, self.link.worker, job, bundle).and_then(|verified| {
                let tool = self.usable_tool(&verified.snapshot)?;
                let workspace = self.prepare(&verified)?;
                Ok((verified, tool, workspace))
            });
        let (verified, tool, workspace) = match prepared {
            Ok(prepared) => prepared,
            Err(reason) => {
                tracing::warn!(attempt = %job.attempt, code = reason.reason.code, "the attempt cannot start");
                return Ok(self.not_started(job, reason, stop).await?.into());
            }
        };
        let verdict = if taking.is_cancelled() {
            Ok(Verdict::Again)
        } else {
            self.claim_and_run(job, verified, tool, &workspace, stop).await
        };
        if matches!(verdict, Ok(Verdict::Quarantined)) {
            // What could not be killed may still be at work in it.
            tracing::error!(workspace = %workspace.root().display(), "a workspace is left as it is");
        } else if let Err(error) = workspace.remove() {
            tracing::error!(%error, "a workspace could not be removed; the next start of the worker tries again");
        }
        verdict
    }

    /// Ends a replacement of the key that was begun. As long as its answer is missing, the coordinator may have the next
    /// key already, and would believe nothing that the old one signs.
    async fn knows_its_key(&self) -> Result<bool, WorkerError> {
        if self.identity.next_key()?.is_none() {
            return Ok(true);
        }
        match self.link.replace_key().await {
            Ok(()) => Ok(true),
            Err(WorkerError::Control(error)) => {
                tracing::warn!(%error, "which key is in force is not known; nothing is begun before it is");
                Ok(false)
            }
            Err(local) => Err(local),
        }
    }

    fn usable_tool(&self, snapshot: &Snapshot) -> Result<&FoundTool, NoStart> {
        let missing =
            || NoStart::new("tool_missing", format!("this worker has no usable `{}`", snapshot.tool), true);
        let tool = self.tools.get(&snapshot.tool).ok_or_else(missing)?;
        if !self.executors.contains_key(&snapshot.tool) {
            return Err(missing());
        }
        if !tool.is_unchanged() {
            return Err(NoStart::new(
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

    fn prepare(&self, verified: &Verified) -> Result<Workspace, NoStart> {
        let failed = |e: std::io::Error| NoStart::new("workspace_failed", e.to_string(), true);
        let workspace =
            Workspace::create(&self.config.workspace_root, verified.manifest.attempt, self.config.isolation)
                .map_err(failed)?;
        let filled = unpack::unpack(&verified.bundle.source, &workspace.source, &Limits::default())
            .map_err(|e| NoStart::new("invalid_bundle", e.to_string(), false))
            .and_then(|()| workspace.give_source().map_err(failed));
        match filled {
            Ok(()) => Ok(workspace),
            Err(reason) => {
                // The reason is what counts; what is left is removed at the next start.
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
        waiting: &CancellationToken,
    ) -> Result<Verdict, WorkerError> {
        let intent = Intent {
            project: job.project,
            run: job.run,
            attempt: job.attempt,
            number: verified.manifest.number,
            fence: job.fence,
            // H3: fresh for every intent.
            nonce: Nonce(self.host.entropy().bytes()),
            worker: self.link.worker,
            snapshot: verified.manifest.snapshot,
            bundle: verified.digest,
            plan: verified.manifest.plan,
        };
        failpoint::reach(Failpoint::Prepared);
        self.journal.record(&intent, Stage::Intent)?;
        failpoint::reach(Failpoint::IntentJournaled);
        let _held = self.hold(&intent);
        let request = ClaimRequest {
            attempt: AttemptRef { attempt: intent.attempt, fence: intent.fence },
            nonce: intent.nonce,
        };
        let grant =
            match while_unavailable(self.link.pause(), "claim", waiting, || self.link.claim(request)).await {
                Ok(grant) if grant.nonce == intent.nonce => grant,
                Ok(_) => {
                    return Err(ControlError::Refused(Refusal::new(
                        Code::FenceMismatch,
                        "the grant names another nonce",
                    ))
                    .into());
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
        failpoint::reach(Failpoint::GrantReceived);
        let stop = self.begin(intent.fence);
        let envelope = self.execute(&intent, &verified, grant, tool, workspace, &stop, waiting).await;
        self.end();
        let (envelope, cleanup) = envelope?;
        let settled = self.deliver(&intent, &envelope, waiting).await?;
        Ok(if cleanup == Cleanup::Dirty { Verdict::Quarantined } else { settled.into() })
    }

    /// Runs the tool and signs; the signed envelope is journaled when this returns.
    #[allow(clippy::too_many_arguments)]
    async fn execute(
        &self,
        intent: &Intent,
        verified: &Verified,
        grant: ClaimGrant,
        tool: &FoundTool,
        workspace: &Workspace,
        stop: &StopLatch,
        waiting: &CancellationToken,
    ) -> Result<(Envelope, Cleanup), WorkerError> {
        let claim = ClaimRef { attempt: intent.attempt, fence: intent.fence, nonce: intent.nonce };
        let snapshot = &verified.snapshot;
        let values: Vec<SecretString> = grant.secrets.iter().map(|s| s.value.clone()).collect();
        let redactor = Redactor::new(&values);
        let log = AttemptLog::start(
            self.host.clock(),
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
                    &*self.host,
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
        failpoint::reach(Failpoint::StartedJournaled);
        let begun = self.host.uptime();
        let deadline = {
            let (host, stop, timeout) = (Arc::clone(&self.host), stop.clone(), grant.execution_timeout);
            tokio::spawn(async move {
                pass(&*host, timeout).await;
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
            processes: &*self.processes,
            log: log.writer(),
            stop,
            link: &self.link,
            claim,
            waiting,
            unsaved: &self.unsaved,
            artifacts: std::collections::BTreeMap::new(),
            started: false,
            stopped_by: None,
            forced: false,
            show_timeout: self.config.show_timeout,
        };
        let silence = snapshot.no_output_timeout_s.map(|seconds| {
            let (stop, output) = (stop.clone(), log.writer().clone());
            tokio::spawn(async move {
                output.silent_for(Duration::from_secs(seconds)).await;
                stop.stop(StopCause::Silence);
            })
        });
        let ended_before = self.host.out_of_memory();
        let executor = self.executors.get(&snapshot.tool);
        let result = match executor {
            Some(executor) => executor.execute(&mut execution).await,
            None => Err(ExecutionError::Invalid { code: "tool_missing", message: "no executor".into() }),
        };
        let (artifacts, started, stopped_by, forced) = (
            std::mem::take(&mut execution.artifacts),
            execution.started,
            execution.stopped_by,
            execution.forced,
        );
        drop(execution);
        deadline.abort();
        if let Some(silence) = silence {
            silence.abort();
        }
        let cleanup = self.processes.clear().await;
        let state = match state {
            Some(server) => server.finish(&self.unsaved, waiting).await?,
            None => StateResult::default(),
        };
        if let Some(refusal) = &state.refused {
            log.writer()
                .say(&format!("[forgeplane: a state document was refused and kept aside: {refusal}]"));
        }
        if state.undelivered {
            log.writer().say(&format!(
                "[forgeplane: the last state document could not be delivered; the worker keeps it as {}]",
                self.unsaved.state_of(intent.fence).display()
            ));
        }
        let mut ending = ending(result, &state, stopped_by, snapshot, forced);
        if self.host.out_of_memory() > ended_before {
            ending.for_want_of_memory();
        }
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
            stop: stopped_by,
            forced,
            effects_unknown: ending.effects_unknown,
            tool: Some(tool.identity()),
            duration_ms: u64::try_from(self.host.uptime().saturating_sub(begun).as_millis())
                .unwrap_or(u64::MAX),
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
        failpoint::reach(Failpoint::ToolEnded);
        let envelope = self.sign_and_journal(intent, &outcome)?;
        failpoint::reach(Failpoint::SignedJournaled);
        let kind = outcome.outcome.as_str();
        metrics::counter!("forgeplane_worker_attempts_total", "outcome" => kind).increment(1);
        metrics::histogram!("forgeplane_worker_attempt_seconds", "outcome" => kind)
            .record(self.host.uptime().saturating_sub(begun).as_secs_f64());
        Ok((envelope, cleanup))
    }

    pub(crate) fn sign_and_journal<S: Statement>(
        &self,
        intent: &Intent,
        statement: &S,
    ) -> Result<Envelope, WorkerError> {
        let envelope = Envelope::sign(statement, &self.identity.signing_key())
            .map_err(|e| at("the outcome")(std::io::Error::other(e)))?;
        self.journal.record(intent, Stage::Signed { envelope: envelope.to_json() })?;
        Ok(envelope)
    }

    /// Tells the coordinator that the tool was never started, before any intent was journaled.
    async fn not_started(
        &self,
        job: &Job,
        why: NoStart,
        stop: &CancellationToken,
    ) -> Result<Settled, WorkerError> {
        let statement = NotStarted {
            project: job.project,
            run: job.run,
            attempt: job.attempt,
            fence: job.fence,
            nonce: None,
            worker: self.link.worker,
            reason: why.reason,
            retryable: why.retryable,
        };
        let envelope = Envelope::sign(&statement, &self.identity.signing_key())
            .map_err(|e| at("the statement")(std::io::Error::other(e)))?;
        match while_unavailable(self.link.pause(), "report", stop, || self.link.conclude(envelope.clone()))
            .await
        {
            Ok(_) => Ok(Settled::Yes),
            Err(ControlError::Unavailable(_)) => Ok(Settled::NotYet),
            Err(ControlError::Refused(refusal)) => {
                tracing::warn!(attempt = %job.attempt, %refusal, "the report was refused");
                Ok(Settled::Yes)
            }
        }
    }

    pub(crate) fn hold(&self, intent: &Intent) -> crate::worker::Held<'_> {
        self.holdings.hold(Holding { fence: intent.fence, nonce: intent.nonce })
    }
}

fn redacted(redactor: &Redactor, text: &str) -> String {
    String::from_utf8_lossy(&redactor.redact_all(text.as_bytes())).into_owned()
}
