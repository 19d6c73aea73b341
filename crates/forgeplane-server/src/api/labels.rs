//! Labels: the closed sets of words the API uses.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use forgeplane_core::model;
use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// A word that is not in its set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownLabel {
    known: Vec<&'static str>,
}

impl fmt::Display for UnknownLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected one of {}", self.known.join(", "))
    }
}

impl std::error::Error for UnknownLabel {}

macro_rules! labels {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ })*) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// Every label.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The label as it travels.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        // By hand: the derive does not see a label that comes out of a macro.
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .description(Some(concat!($($doc),+).trim()))
                    .enum_values(Some(Self::ALL.iter().map(|label| label.as_str())))
                    .into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($name))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownLabel;

            fn from_str(text: &str) -> Result<Self, UnknownLabel> {
                Self::ALL
                    .iter()
                    .copied()
                    .find(|label| label.as_str() == text)
                    .ok_or_else(|| UnknownLabel { known: Self::ALL.iter().map(|l| l.as_str()).collect() })
            }
        }
    )*};
}

macro_rules! same_as_model {
    ($($name:ident { $($variant:ident),+ $(,)? })*) => {$(
        impl From<model::$name> for $name {
            fn from(it: model::$name) -> Self {
                match it { $(model::$name::$variant => Self::$variant,)+ }
            }
        }

        impl From<$name> for model::$name {
            fn from(it: $name) -> Self {
                match it { $($name::$variant => Self::$variant,)+ }
            }
        }
    )*};
}

labels! {
    /// An infrastructure tool. `opentofu` is read as `tofu`.
    Tool {
        /// Terraform.
        Terraform = "terraform",
        /// OpenTofu.
        #[serde(alias = "opentofu")]
        Tofu = "tofu",
        /// Ansible.
        Ansible = "ansible",
        /// Helm; no executor ships.
        Helm = "helm",
        /// Pulumi; no executor ships.
        Pulumi = "pulumi",
        /// Bash; no executor ships.
        Bash = "bash",
    }

    /// What a run does.
    Operation {
        /// Makes a plan that can be promoted.
        Plan = "plan",
        /// Applies exactly one plan; exists only as a promotion.
        Apply = "apply",
        /// Plans or performs the removal of everything; see `mode`.
        Destroy = "destroy",
        /// Shows changes; cannot be promoted.
        PlanOnly = "plan-only",
        /// Shows changes without a lock.
        Preview = "preview",
        /// Removes everything and retires the instance.
        Teardown = "teardown",
        /// Runs a playbook.
        Execute = "execute",
    }

    /// Whether `destroy` plans or performs.
    DestroyMode {
        /// Makes a promotable plan of the removal.
        Plan = "plan",
        /// Removes.
        Perform = "perform",
    }

    /// Where a run is.
    RunStatus {
        /// Waits for an approval decision.
        PendingApproval = "pending_approval",
        /// Waits for a worker.
        Queued = "queued",
        /// A worker has claimed it.
        Running = "running",
        /// A stop was asked for.
        Canceling = "canceling",
        /// Completed.
        Succeeded = "succeeded",
        /// Failed.
        Failed = "failed",
        /// Canceled.
        Canceled = "canceled",
        /// Exceeded a deadline.
        TimedOut = "timed_out",
    }

    /// Where an attempt is.
    AttemptState {
        /// Leased to a worker that has not claimed it.
        Offered = "offered",
        /// The worker crossed the execution fence.
        Claimed = "claimed",
        /// Claimed, and the worker is missing.
        Unresolved = "unresolved",
        /// Over.
        Closed = "closed",
    }

    /// What a signed outcome says.
    OutcomeKind {
        /// Completed.
        Succeeded = "succeeded",
        /// Failed.
        Failed = "failed",
        /// Stopped on request.
        Canceled = "canceled",
        /// Stopped by the deadline.
        TimedOut = "timed_out",
        /// The tool never started.
        NotStarted = "not_started",
    }

    /// Why a run is being stopped.
    StopCause {
        /// Somebody asked.
        Cancel = "cancel",
        /// The execution deadline passed.
        Deadline = "deadline",
        /// The tool printed nothing for longer than its template allows.
        Silence = "silence",
    }

    /// Where an approval record is.
    ApprovalStatus {
        /// Undecided.
        Pending = "pending",
        /// Enough reviewers approved.
        Approved = "approved",
        /// A reviewer rejected.
        Rejected = "rejected",
        /// Nobody decided in time.
        Expired = "expired",
        /// The run was canceled first.
        Withdrawn = "withdrawn",
    }

    /// What a reviewer said.
    Verdict {
        /// Go.
        Approve = "approve",
        /// Stop.
        Reject = "reject",
    }

    /// Where a worker is.
    WorkerStatus {
        /// Connected and available.
        Idle = "idle",
        /// At capacity.
        Busy = "busy",
        /// Finishes its work, takes nothing new.
        Draining = "draining",
        /// Not schedulable.
        Offline = "offline",
    }

    /// Where log bytes came from.
    LogStream {
        /// The tool's standard output.
        Stdout = "stdout",
        /// The tool's standard error.
        Stderr = "stderr",
        /// The worker itself.
        Worker = "worker",
    }

    /// What a token allows.
    Role {
        /// Reads.
        Viewer = "viewer",
        /// Also creates templates, instances and runs.
        Operator = "operator",
        /// Reads and decides approvals.
        Approver = "approver",
        /// Everything.
        Admin = "admin",
    }
}

same_as_model! {
    Tool { Terraform, Tofu, Ansible, Helm, Pulumi, Bash }
    DestroyMode { Plan, Perform }
    RunStatus { PendingApproval, Queued, Running, Canceling, Succeeded, Failed, Canceled, TimedOut }
    AttemptState { Offered, Claimed, Unresolved, Closed }
    OutcomeKind { Succeeded, Failed, Canceled, TimedOut, NotStarted }
    StopCause { Cancel, Deadline, Silence }
    ApprovalStatus { Pending, Approved, Rejected, Expired, Withdrawn }
    Verdict { Approve, Reject }
    WorkerStatus { Idle, Busy, Draining, Offline }
    LogStream { Stdout, Stderr, Worker }
    Role { Viewer, Operator, Approver, Admin }
}

impl From<&model::Operation> for Operation {
    fn from(operation: &model::Operation) -> Self {
        match operation {
            model::Operation::Plan { .. } => Self::Plan,
            model::Operation::Apply => Self::Apply,
            model::Operation::Destroy { .. } => Self::Destroy,
            model::Operation::PlanOnly => Self::PlanOnly,
            model::Operation::Preview => Self::Preview,
            model::Operation::Teardown => Self::Teardown,
            model::Operation::Execute => Self::Execute,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The API's words are the model's words: a rename on one side alone fails here.
    #[test]
    fn labels_are_those_of_the_model() {
        for tool in model::Tool::ALL {
            assert_eq!(Tool::from(tool).as_str(), tool.label());
            assert_eq!(model::Tool::from(Tool::from(tool)), tool);
        }
        for status in model::RunStatus::ALL {
            assert_eq!(RunStatus::from(status).as_str(), status.as_str());
        }
        for role in model::Role::ALL {
            assert_eq!(Role::from(role).as_str(), role.as_str());
        }
        for status in ApprovalStatus::ALL {
            assert_eq!(model::ApprovalStatus::from(*status).as_str(), status.as_str());
        }
        for state in AttemptState::ALL {
            assert_eq!(model::AttemptState::from(*state).as_str(), state.as_str());
        }
        for outcome in OutcomeKind::ALL {
            assert_eq!(model::OutcomeKind::from(*outcome).as_str(), outcome.as_str());
        }
        for status in WorkerStatus::ALL {
            assert_eq!(model::WorkerStatus::from(*status).as_str(), status.as_str());
        }
        for stream in LogStream::ALL {
            assert_eq!(model::LogStream::from(*stream).as_str(), stream.as_str());
        }
    }

    #[test]
    fn the_schema_lists_the_labels_as_they_travel() {
        let schema = serde_json::to_value(RunStatus::schema()).unwrap();
        let labels: Vec<_> = RunStatus::ALL.iter().map(|s| s.as_str()).collect();
        assert_eq!(schema["enum"], serde_json::json!(labels));
        assert_eq!(schema["description"], "Where a run is.");
    }

    #[test]
    fn a_label_reads_back_what_it_displays_and_an_unknown_one_names_the_known() {
        for status in RunStatus::ALL {
            assert_eq!(status.to_string().parse(), Ok(*status));
            assert_eq!(serde_json::to_string(status).unwrap(), format!("\"{status}\""));
        }
        assert_eq!("Plan".parse::<DestroyMode>().unwrap_err().to_string(), "expected one of plan, perform");
        assert_eq!(serde_json::from_str::<Tool>("\"opentofu\"").unwrap(), Tool::Tofu);
    }
}
