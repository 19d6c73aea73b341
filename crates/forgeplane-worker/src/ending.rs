//! How an attempt ended: the table of `protocol.md` 1.7.

use forgeplane_core::model::{Operation, OutcomeKind, PlanSummary, RunError, Snapshot, StopCause};

use crate::executor::{ExecutionError, Report};
use crate::sandbox::Exit;
use crate::state_server::StateResult;

/// How an attempt ended.
pub(crate) struct Ending {
    pub(crate) outcome: OutcomeKind,
    pub(crate) exit: Option<Exit>,
    pub(crate) summary: Option<PlanSummary>,
    pub(crate) error: Option<RunError>,
    pub(crate) effects_unknown: bool,
}

impl Ending {
    /// The operating system ended a process of the tool: a failure without any other reason has this one.
    pub(crate) fn for_want_of_memory(&mut self) {
        if let Some(error) = self.error.as_mut().filter(|error| error.code == "tool_failed") {
            error.code = "out_of_memory".into();
            error.message = format!(
                "memory ran out and the operating system ended a process of the tool: {}",
                error.message
            );
        }
    }
}

/// Decides how an attempt ended. `stop` is the cause the worker *acted on*: one that came after the tool had
/// ended changes nothing. Success counts even after a stop.
pub(crate) fn ending(
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
        (_, Some(StopCause::Deadline | StopCause::Silence)) => OutcomeKind::TimedOut,
        (_, None) => OutcomeKind::Failed,
    };
    // Whatever the tool made of it: what it did is not what the state says.
    if let Some(refusal) = &state.refused {
        outcome = OutcomeKind::Failed;
        error = Some(RunError { code: refusal.code.as_str().to_owned(), message: refusal.to_string() });
    } else if state.undelivered {
        outcome = OutcomeKind::Failed;
        error = Some(RunError {
            code: "state_upload_failed".into(),
            message: "the tool saved a state document that could not be delivered before the worker had to end; it is kept on the worker, see the log".into(),
        });
    }
    let error = match outcome {
        OutcomeKind::Canceled => {
            Some(RunError { code: "canceled".into(), message: "the tool was stopped on request".into() })
        }
        OutcomeKind::TimedOut if stop == Some(StopCause::Silence) => Some(RunError {
            code: "no_output".into(),
            message: format!(
                "the tool was stopped: it printed nothing for {} s",
                snapshot.no_output_timeout_s.unwrap_or_default()
            ),
        }),
        OutcomeKind::TimedOut => Some(RunError {
            code: "deadline_exceeded".into(),
            message: format!("the tool was stopped: it ran longer than {} s", snapshot.execution_timeout_s),
        }),
        _ => error,
    };
    // A killed Ansible leaves remote commands running; a killed apply may have done more than it saved.
    let remote =
        snapshot.operation == Operation::Execute && stop.is_some() && outcome != OutcomeKind::Succeeded;
    // Somebody else's signal ends a tool as untimely as the worker's own.
    let cut_off = forced || exit.is_some_and(|exit| exit.signal.is_some());
    Ending { outcome, exit, summary, error, effects_unknown: (cut_off && changes) || remote }
}

#[cfg(test)]
mod tests {
    use forgeplane_core::Code;
    use forgeplane_core::Refusal;
    use forgeplane_core::digest::Digest;
    use forgeplane_core::id::{InstanceId, ProjectId, RunId, TemplateId};
    use forgeplane_core::model::{ApprovalPolicy, Object, Tool};
    use jiff::Timestamp;

    use super::*;

    fn snapshot(operation: Operation) -> Snapshot {
        let now = Timestamp::UNIX_EPOCH;
        Snapshot {
            run: RunId::new(now, [1; 10]),
            project: ProjectId::new(now, [1; 10]),
            instance: InstanceId::new(now, [1; 10]),
            instance_name: "app".parse().unwrap(),
            template: TemplateId::new(now, [1; 10]),
            template_version: 1,
            tool: Tool::Terraform,
            operation,
            source: Digest::of(b"source"),
            entrypoint: None,
            inputs: Object::new(),
            secrets: Vec::new(),
            environment: std::collections::BTreeMap::new(),
            pool: "default".parse().unwrap(),
            execution_timeout_s: 60,
            cancel_grace_s: 60,
            no_output_timeout_s: None,
            queue_timeout_s: None,
            state_object: None,
            base_generation: 0,
            plan: None,
            approval: ApprovalPolicy::default(),
        }
    }

    const fn exit(code: i32) -> Exit {
        Exit { code: Some(code), signal: None }
    }

    fn ok() -> Result<Report, ExecutionError> {
        Ok(Report { exit: Some(exit(0)), error: None, summary: None })
    }

    fn failed() -> Result<Report, ExecutionError> {
        Ok(Report::command_failed("apply", exit(1)))
    }

    fn stopped() -> Result<Report, ExecutionError> {
        Err(ExecutionError::Stopped(Some(exit(1))))
    }

    #[test]
    fn d3_the_worker_decides_by_the_order_of_what_it_saw() {
        use OutcomeKind::{Canceled, Failed, Succeeded, TimedOut};
        use StopCause::{Cancel, Deadline};
        type Case =
            (fn() -> Result<Report, ExecutionError>, Option<StopCause>, OutcomeKind, Option<&'static str>);
        let table: [Case; 7] = [
            (ok, None, Succeeded, None),
            (ok, Some(Cancel), Succeeded, None),
            (ok, Some(Deadline), Succeeded, None),
            (failed, None, Failed, Some("tool_failed")),
            (stopped, Some(Cancel), Canceled, Some("canceled")),
            (stopped, Some(Deadline), TimedOut, Some("deadline_exceeded")),
            // Stopped before anything was started.
            (|| Err(ExecutionError::Stopped(None)), Some(Cancel), Canceled, Some("canceled")),
        ];
        for (result, stop, outcome, code) in table {
            let ending = ending(result(), &StateResult::default(), stop, &snapshot(Operation::Apply), false);
            assert_eq!(
                (ending.outcome, ending.error.map(|e| e.code).as_deref()),
                (outcome, code),
                "{:?} after {stop:?}",
                result()
            );
            assert!(!ending.effects_unknown);
        }
    }

    #[test]
    fn a_state_that_is_not_stored_fails_the_attempt_whatever_the_tool_says() {
        let refused = StateResult {
            refused: Some(Refusal::new(Code::StaleState, "somebody else wrote")),
            ..StateResult::default()
        };
        let undelivered = StateResult { undelivered: true, ..StateResult::default() };
        for (state, code) in [(refused, "stale_state"), (undelivered, "state_upload_failed")] {
            for result in [ok(), failed(), stopped()] {
                let ending =
                    ending(result, &state, Some(StopCause::Cancel), &snapshot(Operation::Apply), false);
                assert_eq!(ending.outcome, OutcomeKind::Failed);
                assert_eq!(ending.error.unwrap().code, code);
            }
        }
    }

    #[test]
    fn effects_are_unknown_after_a_kill_of_a_writer_and_after_any_stop_of_a_playbook() {
        let of = |operation, stop, forced| {
            ending(stopped(), &StateResult::default(), Some(stop), &snapshot(operation), forced)
                .effects_unknown
        };
        assert!(of(Operation::Apply, StopCause::Cancel, true));
        assert!(of(Operation::Teardown, StopCause::Deadline, true));
        assert!(!of(Operation::Apply, StopCause::Cancel, false));
        assert!(!of(Operation::PlanOnly, StopCause::Cancel, true));
        assert!(of(Operation::Execute, StopCause::Cancel, false));
    }
}
