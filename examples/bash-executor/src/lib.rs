//! An executor of one's own: a run of the tool `bash` executes the script that the template names as its entry point.
//!
//! The script is started where the source is, with the inputs in the file that `$INPUTS` names:
//!
//! ```bash
//! source "$INPUTS"
//! echo "deploying $version to $region"
//! ```
//!
//! A worker offers it once it is told of the executor and of the tool, and a coordinator admits such runs once its settings
//! name the tool:
//!
//! ```
//! # use std::sync::Arc;
//! # use forgeplane_core::memory::MemoryQueue;
//! # use forgeplane_core::model::Tool;
//! # use forgeplane_core::ports::{ControlPlane, JobQueue};
//! # use forgeplane_core::rules::Settings;
//! # use forgeplane_worker::{Tools, Worker, WorkerConfig};
//! # use forgeplane_example_bash_executor::BashExecutor;
//! # fn worker(mut config: WorkerConfig, control: impl ControlPlane, queue: Arc<dyn JobQueue>) {
//! config.tools = Tools::Explicit([(Tool::Bash, "/bin/bash".into())].into());
//! let worker = Worker::new(config, control, queue).executor(BashExecutor);
//!
//! let mut settings = Settings::default();
//! settings.executors.insert(Tool::Bash);
//! # }
//! ```
#![forbid(unsafe_code)]

use std::fmt::Write as _;

use async_trait::async_trait;
use forgeplane_core::model::{Object, Operation, Tool};
use forgeplane_worker::executor::{Execution, ExecutionError, Executor, Report};
use serde_json::Value;

/// Runs scripts with `bash`.
#[derive(Debug, Clone, Copy, Default)]
pub struct BashExecutor;

#[async_trait]
impl Executor for BashExecutor {
    fn tool(&self) -> Tool {
        Tool::Bash
    }

    async fn execute(&self, execution: &mut Execution<'_>) -> Result<Report, ExecutionError> {
        if execution.snapshot.operation != Operation::Execute {
            return Err(invalid("unsupported_operation", "scripts are only executed".into()));
        }
        let script = execution.entrypoint()?;
        let source = execution.workspace.source.clone();
        if !source.join(&script).is_file() {
            return Err(invalid(
                "invalid_entrypoint",
                format!("the source has no script `{}`", script.display()),
            ));
        }
        // Inputs go by file: arguments can be read by every process of the machine.
        let assignments = assignments(&execution.input_names())?;
        let inputs = execution.workspace.put_input("inputs.sh", assignments.as_bytes())?;
        let mut env = execution.environment()?;
        env.push(("INPUTS".into(), inputs.into()));
        let args = ["--noprofile", "--norc", "--"].map(Into::into).into_iter().chain([script.into()]);
        let exit = execution.command(&args.collect::<Vec<_>>(), env, &source).await?;
        // The exit code is the truth; `Report` without an error is a success.
        if exit.code == Some(0) {
            Ok(Report { exit: Some(exit), ..Report::default() })
        } else {
            Ok(Report::command_failed("the script", exit))
        }
    }
}

fn invalid(code: &'static str, message: String) -> ExecutionError {
    ExecutionError::Invalid { code, message }
}

/// A shell variable for each input; what is not a text is written as JSON.
fn assignments(inputs: &Object) -> Result<String, ExecutionError> {
    let mut text = String::new();
    for (name, value) in inputs {
        let mut letters = name.chars();
        let begins = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !begins || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(invalid("invalid_input", format!("the input `{name}` cannot be a shell variable")));
        }
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        // In single quotes everything is itself but the quote.
        let _ = writeln!(text, "{name}='{}'", value.replace('\'', r"'\''"));
    }
    Ok(text)
}
