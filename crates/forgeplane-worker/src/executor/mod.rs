//! Executors: how a tool is run for an operation.
//!
//! An [`Executor`] turns a prepared attempt ([`Execution`]) into commands. It decides what to run and what an
//! exit code means; everything else (isolation, logs, stop, state, signing) is the worker's and the same for
//! every tool. To add a tool, implement the trait and give it to the worker's builder
//! ([`Worker::executor`](crate::Worker::executor)), and let `executor_conformance!` of `forgeplane-testkit` tell whether it
//! keeps the promises of every executor. `examples/bash-executor` does all of that for scripts.
//!
//! Rules for an executor:
//! - Run tools only through [`Execution::command`] and [`Execution::capture`]: they isolate, log and stop.
//! - Never put an input or a secret into arguments; they are readable by every process of the machine.
//! - The exit code is the truth. A command that was stopped returns [`ExecutionError::Stopped`]; pass it on.

mod ansible;
mod terraform;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forgeplane_core::digest::Digest;
use forgeplane_core::failpoint::{self, Failpoint};
use forgeplane_core::model::{
    ArtifactKind, LogStream, Object, PlanSummary, RunError, Snapshot, StopCause, Tool,
};
use forgeplane_core::ports::{ArtifactUpload, ClaimRef, ControlError, GrantedSecret};
use forgeplane_core::rules::environment::{reserved, text};
use forgeplane_core::rules::inputs::{put_at, remove_at};
use secrecy::ExposeSecret as _;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::sync::CancellationToken;

pub use ansible::AnsibleExecutor;
pub use terraform::TerraformExecutor;

use crate::host::{Process, Processes};
use crate::link::Link;
use crate::logs::LogWriter;
use crate::retry::while_unavailable;
use crate::sandbox::{CommandSpec, Exit, SandboxError};
use crate::state_server::StateServer;
use crate::stop::StopLatch;
use crate::tools::FoundTool;
use crate::unsaved::Unsaved;
use crate::workspace::Workspace;

/// How long pipes are read on after the tool ended and everything of it was killed.
const DRAIN: Duration = Duration::from_secs(5);

/// How long a killed tool may take to be gone. One that the kernel holds must not hold up the outcome, which
/// says then that the user id is dirty.
const DYING: Duration = Duration::from_secs(10);

/// Runs one tool.
#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// The tool.
    fn tool(&self) -> Tool;

    /// Runs the snapshot's operation. `Ok` says what happened, also when the tool failed.
    ///
    /// # Errors
    /// When the execution could not be carried through: stopped, or something around the tool failed.
    async fn execute(&self, execution: &mut Execution<'_>) -> Result<Report, ExecutionError>;
}

/// What a tool did.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// How the deciding command ended.
    pub exit: Option<Exit>,
    /// Why the operation did not succeed; absent: it did.
    pub error: Option<RunError>,
    /// What was planned or applied.
    pub summary: Option<PlanSummary>,
}

impl Report {
    /// The operation failed because a command did.
    #[must_use]
    pub fn command_failed(what: &str, exit: Exit) -> Self {
        let how = match (exit.code, exit.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no exit status".to_owned(),
        };
        Self {
            exit: Some(exit),
            error: Some(RunError {
                code: "tool_failed".into(),
                message: format!("{what} ended with {how}; see the log"),
            }),
            summary: None,
        }
    }
}

/// Why an execution could not be carried through.
#[derive(Debug, thiserror::Error)]
pub enum ExecutionError {
    /// A stop was asked for; the command, if one ran, ended like this.
    #[error("the run was stopped")]
    Stopped(Option<Exit>),
    /// The tool could not be started or watched.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The workspace could not be read or written.
    #[error("the workspace: {0}")]
    Io(#[from] std::io::Error),
    /// The coordinator refused something.
    #[error("the coordinator: {0}")]
    Control(#[from] ControlError),
    /// Something is not as it must be.
    #[error("{message}")]
    Invalid {
        /// Stable code of the run's error.
        code: &'static str,
        /// What is wrong.
        message: String,
    },
}

impl ExecutionError {
    /// The run's error.
    #[must_use]
    pub fn run_error(&self) -> RunError {
        let code = match self {
            Self::Stopped(_) => "stopped",
            Self::Sandbox(error) => error.code(),
            Self::Io(_) => "workspace_failed",
            Self::Control(ControlError::Refused(refusal)) => refusal.code.as_str(),
            Self::Control(ControlError::Unavailable(_)) => "coordinator_unavailable",
            Self::Invalid { code, .. } => code,
        };
        RunError { code: code.to_owned(), message: self.to_string() }
    }
}

/// A prepared attempt: what an executor works with.
pub struct Execution<'a> {
    /// What to do.
    pub snapshot: &'a Snapshot,
    /// Where.
    pub workspace: &'a Workspace,
    /// The tool that was found at start-up.
    pub tool: &'a FoundTool,
    /// The plan file to apply, as approved.
    pub plan: Option<&'a Bytes>,
    /// The dependency lock file of that plan.
    pub lock_file: Option<&'a Bytes>,
    pub(crate) secrets: &'a [GrantedSecret],
    pub(crate) state: Option<&'a StateServer>,
    pub(crate) processes: &'a dyn Processes,
    pub(crate) log: &'a LogWriter,
    pub(crate) stop: &'a StopLatch,
    pub(crate) link: &'a Link,
    pub(crate) claim: ClaimRef,
    /// Ends waiting for the coordinator.
    pub(crate) waiting: &'a CancellationToken,
    pub(crate) unsaved: &'a Unsaved,
    pub(crate) artifacts: BTreeMap<ArtifactKind, Digest>,
    pub(crate) started: bool,
    /// The stop that was acted on: a command was interrupted, or not started.
    pub(crate) stopped_by: Option<StopCause>,
    pub(crate) forced: bool,
    pub(crate) show_timeout: Duration,
}

impl Execution<'_> {
    /// The variables of the source: inputs with secrets at their paths, without what is in the environment. Goes into
    /// files only.
    #[must_use]
    pub fn inputs(&self) -> Value {
        let mut inputs = self.all_inputs();
        for path in self.snapshot.environment.values() {
            remove_at(&mut inputs, path);
        }
        inputs
    }

    fn all_inputs(&self) -> Value {
        let mut inputs = Value::Object(self.snapshot.inputs.clone());
        for secret in self.secrets {
            put_at(&mut inputs, &secret.path, Value::String(secret.value.expose_secret().to_owned()));
        }
        inputs
    }

    /// The template's entry point: a relative path inside the source.
    ///
    /// # Errors
    /// A path that could leave the source. The worker writes there as root, so it does not rely on others to
    /// have checked.
    pub fn entrypoint(&self) -> Result<PathBuf, ExecutionError> {
        let path = PathBuf::from(self.snapshot.entrypoint.clone().unwrap_or_default());
        let inside = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
        if path.components().all(inside) {
            Ok(path)
        } else {
            Err(ExecutionError::Invalid {
                code: "invalid_entrypoint",
                message: format!("the entry point `{}` is not inside the source", path.display()),
            })
        }
    }

    /// Keeps a state document that the tool could not save: at the coordinator, or else on this worker.
    pub(crate) async fn keep_state(&mut self, document: Vec<u8>) -> Result<(), ExecutionError> {
        match self.publish(ArtifactKind::ErroredState, document.clone()).await {
            Err(ExecutionError::Control(error)) => {
                let path = self
                    .unsaved
                    .keep(self.claim.fence, &document)
                    .map_err(|error| std::io::Error::other(error.to_string()))?;
                self.say(&format!(
                    "[forgeplane: it could not be delivered ({error}); the worker keeps it as {}]",
                    path.display()
                ));
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// The inputs as top-level names.
    #[must_use]
    pub fn input_names(&self) -> Object {
        self.inputs().as_object().cloned().unwrap_or_default()
    }

    /// The environment every command starts from: nothing of the worker's own, and the inputs that belong there.
    ///
    /// # Errors
    /// A variable that would change the tool itself, for the worker does not rely on others to have checked; a value
    /// that cannot be in an environment.
    pub fn environment(&self) -> Result<Vec<(OsString, OsString)>, ExecutionError> {
        let mut environment = base_environment(&self.tool.path, &self.workspace.home, &self.workspace.tmp);
        let inputs = self.all_inputs();
        for (name, path) in &self.snapshot.environment {
            if let Some(why) = reserved(name) {
                return Err(ExecutionError::Invalid {
                    code: "variable_reserved",
                    message: format!("the environment variable `{name}` cannot be set: {why}"),
                });
            }
            let Some(value) = inputs.pointer(path) else { continue };
            // The value of a secret could not be looked at before.
            let value = text(value).ok_or_else(|| ExecutionError::Invalid {
                code: "variable_unusable",
                message: format!(
                    "`{path}` cannot be the environment variable `{name}`: it is no text, or has a NUL"
                ),
            })?;
            environment.push((name.into(), value.into()));
        }
        Ok(environment)
    }

    /// Writes a line of the worker's own into the log.
    pub fn say(&self, line: &str) {
        self.log.say(line);
    }

    /// Runs the tool with its output in the log. A stop sends exactly one SIGINT to its process group, waits
    /// for the grace period, and kills.
    ///
    /// # Errors
    /// [`ExecutionError::Stopped`] if a stop was asked for before or while it ran and it did not succeed.
    pub async fn command(
        &mut self,
        args: &[OsString],
        env: Vec<(OsString, OsString)>,
        cwd: &Path,
    ) -> Result<Exit, ExecutionError> {
        let mut running = self.spawn(args, env, cwd).await?;
        let pumps = [
            running.stdout().map(|pipe| tokio::spawn(pump(self.log.clone(), LogStream::Stdout, pipe))),
            running.stderr().map(|pipe| tokio::spawn(pump(self.log.clone(), LogStream::Stderr, pipe))),
        ];
        let exit = self.watch(&mut *running).await;
        // A child of the tool may hold a pipe open: the command ends at its exit, not at the end of its pipes.
        self.processes.sweep().await;
        for mut pump in pumps.into_iter().flatten() {
            if tokio::time::timeout(DRAIN, &mut pump).await.is_err() {
                pump.abort();
            }
        }
        self.after(exit?)
    }

    /// Runs the tool and gives back its standard output (at most `max_bytes`) instead of logging it. Ends
    /// after `timeout` at the latest. Only for commands that change nothing.
    ///
    /// # Errors
    /// As [`Execution::command`]; also when it takes too long or prints too much.
    pub async fn capture(
        &mut self,
        args: &[OsString],
        env: Vec<(OsString, OsString)>,
        cwd: &Path,
        timeout: Duration,
        max_bytes: u64,
    ) -> Result<(Exit, Vec<u8>), ExecutionError> {
        let mut running = self.spawn(args, env, cwd).await?;
        let stderr =
            running.stderr().map(|pipe| tokio::spawn(pump(self.log.clone(), LogStream::Stderr, pipe)));
        let stdout = running.stdout();
        let reading = async {
            let mut output = Vec::new();
            if let Some(pipe) = stdout {
                pipe.take(max_bytes + 1).read_to_end(&mut output).await?;
            }
            Ok::<_, std::io::Error>(output)
        };
        let both = async { tokio::join!(reading, self.watch(&mut *running)) };
        let ended = tokio::time::timeout(timeout, both).await;
        if ended.is_err() {
            running.kill();
        }
        self.processes.sweep().await;
        if let Some(stderr) = stderr {
            stderr.abort();
        }
        let Ok((output, exit)) = ended else {
            return Err(ExecutionError::Invalid {
                code: "tool_timeout",
                message: format!("the tool did not answer within {} s", timeout.as_secs()),
            });
        };
        let output = output?;
        if output.len() as u64 > max_bytes {
            return Err(ExecutionError::Invalid {
                code: "too_large",
                message: format!("the tool printed more than {max_bytes} bytes"),
            });
        }
        Ok((self.after(exit?)?, output))
    }

    async fn spawn(
        &mut self,
        args: &[OsString],
        env: Vec<(OsString, OsString)>,
        cwd: &Path,
    ) -> Result<Box<dyn Process>, ExecutionError> {
        if let Some(cause) = self.stop.cause() {
            self.stopped_by.get_or_insert(cause);
            return Err(ExecutionError::Stopped(None));
        }
        let spec =
            CommandSpec { program: self.tool.path.clone(), args: args.to_vec(), env, cwd: cwd.to_owned() };
        self.log.hear();
        let running = self.processes.spawn(spec).await?;
        self.started = true;
        failpoint::reach(Failpoint::ToolStarted);
        Ok(running)
    }

    async fn watch(&mut self, running: &mut dyn Process) -> Result<Exit, SandboxError> {
        tokio::select! {
            // An end that came first counts, also if a stop has come since.
            biased;
            exit = running.wait() => return exit,
            cause = self.stop.stopped() => {
                self.stopped_by.get_or_insert(cause);
                let why = match cause {
                    StopCause::Cancel => "a cancel was asked for",
                    StopCause::Deadline => "the execution deadline passed",
                    StopCause::Silence => "the tool printed nothing for too long",
                };
                self.log.say(&format!(
                    "[forgeplane: {why}: interrupting the tool, which has {} s to save its state]",
                    self.snapshot.cancel_grace_s
                ));
                running.interrupt();
            }
        }
        match tokio::time::timeout(self.snapshot.cancel_grace(), running.wait()).await {
            Ok(exit) => exit,
            Err(_) => {
                self.forced = true;
                self.log.say("[forgeplane: the tool did not stop in time and is killed]");
                running.kill();
                match tokio::time::timeout(DYING, running.wait()).await {
                    Ok(exit) => exit,
                    Err(_) => {
                        self.log
                            .say("[forgeplane: the tool cannot be killed; the operating system holds it]");
                        Ok(Exit { code: None, signal: None })
                    }
                }
            }
        }
    }

    /// A failure counts as stopped only if the command was interrupted: a stop that comes after its end
    /// changes nothing.
    fn after(&self, exit: Exit) -> Result<Exit, ExecutionError> {
        if exit.code != Some(0) && self.stopped_by.is_some() {
            return Err(ExecutionError::Stopped(Some(exit)));
        }
        Ok(exit)
    }

    /// Publishes a file for the run.
    ///
    /// # Errors
    /// When the coordinator refuses it.
    pub async fn publish(&mut self, kind: ArtifactKind, bytes: Vec<u8>) -> Result<Digest, ExecutionError> {
        let digest = Digest::of(&bytes);
        let upload = ArtifactUpload { claim: self.claim, kind, digest, bytes: bytes.into() };
        while_unavailable(self.link.pause(), "publish an artifact", self.waiting, || {
            self.link.put_artifact(upload.clone())
        })
        .await?;
        self.artifacts.insert(kind, digest);
        Ok(digest)
    }
}

async fn pump(log: LogWriter, stream: LogStream, pipe: impl AsyncRead + Unpin) {
    log.pump(stream, pipe).await;
}

/// The name a tool's program has in `PATH`.
pub(crate) const fn program(tool: Tool) -> &'static str {
    match tool {
        Tool::Ansible => "ansible-playbook",
        other => other.label(),
    }
}

/// What every command gets: a fixed `PATH` that also finds the tool's neighbours, its own `HOME` and
/// `TMPDIR`, and nothing of the worker's environment (faults G20).
pub(crate) fn base_environment(program: &Path, home: &Path, tmp: &Path) -> Vec<(OsString, OsString)> {
    let mut path = OsString::from("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    if let Some(directory) = program.parent() {
        let mut first = PathBuf::from(directory).into_os_string();
        first.push(":");
        first.push(&path);
        path = first;
    }
    [
        ("PATH".into(), path),
        ("HOME".into(), home.into()),
        ("TMPDIR".into(), tmp.into()),
        ("LANG".into(), "C.UTF-8".into()),
        ("CHECKPOINT_DISABLE".into(), "1".into()),
    ]
    .into()
}
