//! The executor suite finds what it is there to find: each planted fault fails the story that is about it.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use async_trait::async_trait;
use forgeplane_core::model::Tool;
use forgeplane_testkit::ExecutorKit;
use forgeplane_testkit::executor::{self, Script};
use forgeplane_testkit::run::story;
use forgeplane_worker::executor::{Execution, ExecutionError, Executor, Report};
use libtest_mimic::{Failed, Trial};

const HONEST: u8 = 0;
const INPUTS_AS_ARGUMENTS: u8 = 1;
const ENVIRONMENT_OF_THE_WORKER: u8 = 2;
const EXIT_CODE_IGNORED: u8 = 3;
const ENTRY_POINT_TRUSTED: u8 = 4;
const INPUTS_FORGOTTEN: u8 = 5;
const STOP_TAKEN_FOR_SUCCESS: u8 = 6;

/// Runs a script with `sh`, and does one thing wrong.
struct Shell<const FAULT: u8>;

#[async_trait]
impl<const FAULT: u8> Executor for Shell<FAULT> {
    fn tool(&self) -> Tool {
        Tool::Bash
    }

    async fn execute(&self, execution: &mut Execution<'_>) -> Result<Report, ExecutionError> {
        let script = execution.entrypoint()?;
        let source = execution.workspace.source.clone();
        if FAULT != ENTRY_POINT_TRUSTED && !source.join(&script).is_file() {
            let message = format!("there is no `{}`", script.display());
            return Err(ExecutionError::Invalid { code: "invalid_entrypoint", message });
        }
        let inputs = execution.inputs();
        let of = |name: &str| inputs[name].as_str().unwrap_or_default().to_owned();
        let mut env = execution.environment()?;
        if FAULT == ENVIRONMENT_OF_THE_WORKER {
            env.extend(std::env::vars_os());
        }
        if FAULT != INPUTS_FORGOTTEN {
            let greeting = execution.workspace.put_input("greeting", of("greeting").as_bytes())?;
            let token = execution.workspace.put_input("token", of("token").as_bytes())?;
            env.push(("GREETING".into(), greeting.into()));
            env.push(("TOKEN".into(), token.into()));
        }
        let mut args: Vec<OsString> = vec![script.into()];
        if FAULT == INPUTS_AS_ARGUMENTS {
            args.push(of("greeting").into());
        }
        let exit = match execution.command(&args, env, &source).await {
            Err(ExecutionError::Stopped(exit)) if FAULT == STOP_TAKEN_FOR_SUCCESS => {
                return Ok(Report { exit, ..Report::default() });
            }
            other => other?,
        };
        if exit.code == Some(0) || FAULT == EXIT_CODE_IGNORED {
            Ok(Report { exit: Some(exit), ..Report::default() })
        } else {
            Ok(Report::command_failed("the script", exit))
        }
    }
}

struct Kit<const FAULT: u8>;

impl<const FAULT: u8> ExecutorKit for Kit<FAULT> {
    const NAME: &'static str = "shell";
    const ENTRYPOINT: Option<&'static str> = Some("run.sh");

    fn executor() -> impl Executor {
        Shell::<FAULT>
    }

    fn tool(_: &Path) -> PathBuf {
        "/bin/bash".into()
    }

    fn source(script: Script) -> Vec<(&'static str, &'static str)> {
        let run = match script {
            Script::Greet => "cat ${GREETING:-/dev/null} ${TOKEN:-/dev/null}\n",
            Script::Fail => "echo about to fail\nexit 3\n",
            Script::Wait => "echo waiting\nsleep 600\n",
        };
        vec![("run.sh", run)]
    }
}

/// A test that passes if the story does not.
fn found<F: Future<Output = ()> + 'static>(called: &str, tell: fn() -> F) -> Trial {
    Trial::test(format!("planted::{called}"), move || {
        catch_unwind(AssertUnwindSafe(|| story(tell())))
            .map_or(Ok(()), |()| Err(Failed::from("the story did not find the planted fault")))
    })
}

fn main() -> ExitCode {
    executor::main(|| {
        let mut trials = executor::trials::<Kit<HONEST>>();
        trials.extend([
            found(
                "inputs_as_arguments",
                executor::arguments_hold_no_input_and_the_environment_nothing_of_the_worker::<
                    Kit<INPUTS_AS_ARGUMENTS>,
                >,
            ),
            found(
                "environment_of_the_worker",
                executor::arguments_hold_no_input_and_the_environment_nothing_of_the_worker::<
                    Kit<ENVIRONMENT_OF_THE_WORKER>,
                >,
            ),
            found("exit_code_ignored", executor::a_failure_is_a_failure::<Kit<EXIT_CODE_IGNORED>>),
            found(
                "entry_point_trusted",
                executor::a_missing_entry_point_is_named::<Kit<ENTRY_POINT_TRUSTED>>,
            ),
            found("inputs_forgotten", executor::a_run_does_what_its_source_says::<Kit<INPUTS_FORGOTTEN>>),
            found(
                "secret_forgotten",
                executor::a_secret_reaches_the_tool_and_nobody_else::<Kit<INPUTS_FORGOTTEN>>,
            ),
            found(
                "stop_taken_for_success",
                executor::a_cancel_ends_it_and_nothing_is_left::<Kit<STOP_TAKEN_FOR_SUCCESS>>,
            ),
        ]);
        trials
    })
}
