//! The one table of `spec.md` §3: which status follows which command.

use super::RunDraft;
use crate::model::{OutcomeKind, Run, RunError, RunStatus};
use crate::refusal::{Code, Refusal};

/// Something that can happen to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Enough reviewers approved.
    Approve,
    /// A reviewer rejected.
    Reject,
    /// The approval expired.
    ExpireApproval,
    /// An attempt is leased to a worker.
    Offer,
    /// The lease is withdrawn, or the tool provably never started and may be tried again.
    Release,
    /// A worker crosses the execution fence.
    Claim,
    /// It turned out that the run cannot start.
    FailToStart,
    /// Nobody claimed it in time.
    ExpireQueue,
    /// A stop is asked for.
    Cancel,
    /// A signed outcome (or an operator's decision) says how the attempt ended.
    Conclude(OutcomeKind),
    /// Try again under the same id.
    Requeue,
    /// Make an apply out of a plan.
    Promote,
}

impl Command {
    /// Every command.
    pub const ALL: [Self; 15] = [
        Self::Approve,
        Self::Reject,
        Self::ExpireApproval,
        Self::Offer,
        Self::Release,
        Self::Claim,
        Self::FailToStart,
        Self::ExpireQueue,
        Self::Cancel,
        Self::Conclude(OutcomeKind::Succeeded),
        Self::Conclude(OutcomeKind::Failed),
        Self::Conclude(OutcomeKind::Canceled),
        Self::Conclude(OutcomeKind::TimedOut),
        Self::Requeue,
        Self::Promote,
    ];

    /// The command in messages.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Reject => "reject",
            Self::ExpireApproval => "expire approval",
            Self::Offer => "offer",
            Self::Release => "release",
            Self::Claim => "claim",
            Self::FailToStart => "fail to start",
            Self::ExpireQueue => "expire in queue",
            Self::Cancel => "cancel",
            Self::Conclude(_) => "conclude",
            Self::Requeue => "requeue",
            Self::Promote => "promote",
        }
    }

    /// Whether people (rather than workers and Forgeplane itself) give the command.
    const fn is_for_people(self) -> bool {
        matches!(self, Self::Approve | Self::Reject | Self::Cancel | Self::Requeue | Self::Promote)
    }
}

/// The status after `command`, or `None` if the command is not allowed in `status`.
///
/// `spec.md` §3; `canceling` ends with what the attempt really did.
#[must_use]
pub const fn next(status: RunStatus, command: Command) -> Option<RunStatus> {
    use Command as C;
    use RunStatus as S;
    Some(match (status, command) {
        (S::PendingApproval, C::Approve) => S::Queued,
        (S::PendingApproval, C::Reject | C::ExpireApproval | C::Cancel) => S::Canceled,
        (S::Queued, C::Offer | C::Release) => S::Queued,
        (S::Queued, C::Claim) => S::Running,
        (S::Queued, C::Cancel | C::ExpireQueue) => S::Canceled,
        (S::Queued | S::Running, C::FailToStart) => S::Failed,
        (S::Running, C::Release) => S::Queued,
        (S::Running, C::Cancel) | (S::Canceling, C::Cancel) => S::Canceling,
        (S::Canceling, C::Release | C::FailToStart) => S::Canceled,
        (S::Running | S::Canceling, C::Conclude(outcome)) => match outcome {
            OutcomeKind::Succeeded => S::Succeeded,
            OutcomeKind::Failed => S::Failed,
            OutcomeKind::Canceled => S::Canceled,
            OutcomeKind::TimedOut => S::TimedOut,
            OutcomeKind::NotStarted => return None,
        },
        (S::Failed | S::Canceled | S::TimedOut, C::Requeue) => S::Queued,
        (S::Succeeded, C::Promote) => S::Succeeded,
        _ => return None,
    })
}

/// The status after `command`.
///
/// # Errors
/// [`Code::AlreadyTerminal`] or [`Code::InvalidTransition`], naming the status and what is allowed.
pub fn step(run: &Run, command: Command) -> Result<RunStatus, Refusal> {
    next(run.status, command).ok_or_else(|| refuse(run, command))
}

fn refuse(run: &Run, command: Command) -> Refusal {
    let status = run.status;
    let mut allowed: Vec<_> = Command::ALL
        .into_iter()
        .filter(|c| c.is_for_people() && next(status, *c).is_some())
        .map(Command::label)
        .collect();
    allowed.dedup();
    let code = if status.is_terminal() && command == Command::Cancel {
        Code::AlreadyTerminal
    } else if command == Command::Promote {
        Code::NotPromotable
    } else {
        Code::InvalidTransition
    };
    let refusal = Refusal::new(code, format!("run {} is `{status}`: it cannot {}", run.id, command.label()));
    if allowed.is_empty() {
        refusal.way_out(format!("nothing can be asked of a run that is `{status}`"))
    } else {
        refusal.way_out(format!("a run that is `{status}` allows: {}", allowed.join(", ")))
    }
}

impl RunDraft {
    /// Takes the step, stamping the times that go with the new status.
    pub(crate) fn step(&mut self, command: Command) -> Result<RunStatus, Refusal> {
        let status = step(&self.run, command)?;
        self.run.status = status;
        match status {
            RunStatus::Running => self.run.started_at = Some(self.now),
            s if s.is_terminal() && command != Command::Promote => self.run.finished_at = Some(self.now),
            _ => {}
        }
        Ok(status)
    }

    /// Puts the run (back) into the queue; its queue timeout starts anew.
    pub(crate) fn enqueue(&mut self, queue_timeout_s: Option<u64>) {
        self.run.queued_at = Some(self.now);
        self.run.queue_expires_at = queue_timeout_s.map(|s| after_seconds(self.now, s));
    }

    /// Records why the run did not succeed.
    pub(crate) fn error(&mut self, code: &str, message: impl Into<String>) {
        self.run.error = Some(RunError { code: code.to_owned(), message: message.into() });
    }
}

/// `now` plus some seconds; saturates at the end of time.
pub(crate) fn after_seconds(now: jiff::Timestamp, seconds: u64) -> jiff::Timestamp {
    after(now, std::time::Duration::from_secs(seconds))
}

/// `now` plus a duration; saturates at the end of time.
pub(crate) fn after(now: jiff::Timestamp, duration: std::time::Duration) -> jiff::Timestamp {
    now.checked_add(duration).unwrap_or(jiff::Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole table, written out: every pair that is not listed is refused.
    #[test]
    fn every_status_and_command_pair_does_what_the_specification_says() {
        use Command as C;
        use OutcomeKind as O;
        use RunStatus as S;
        let allowed = [
            (S::PendingApproval, C::Approve, S::Queued),
            (S::PendingApproval, C::Reject, S::Canceled),
            (S::PendingApproval, C::ExpireApproval, S::Canceled),
            (S::PendingApproval, C::Cancel, S::Canceled),
            (S::Queued, C::Offer, S::Queued),
            (S::Queued, C::Release, S::Queued),
            (S::Queued, C::Claim, S::Running),
            (S::Queued, C::FailToStart, S::Failed),
            (S::Queued, C::ExpireQueue, S::Canceled),
            (S::Queued, C::Cancel, S::Canceled),
            (S::Running, C::Release, S::Queued),
            (S::Running, C::FailToStart, S::Failed),
            (S::Running, C::Cancel, S::Canceling),
            (S::Running, C::Conclude(O::Succeeded), S::Succeeded),
            (S::Running, C::Conclude(O::Failed), S::Failed),
            (S::Running, C::Conclude(O::Canceled), S::Canceled),
            (S::Running, C::Conclude(O::TimedOut), S::TimedOut),
            (S::Canceling, C::Release, S::Canceled),
            (S::Canceling, C::FailToStart, S::Canceled),
            (S::Canceling, C::Cancel, S::Canceling),
            (S::Canceling, C::Conclude(O::Succeeded), S::Succeeded),
            (S::Canceling, C::Conclude(O::Failed), S::Failed),
            (S::Canceling, C::Conclude(O::Canceled), S::Canceled),
            (S::Canceling, C::Conclude(O::TimedOut), S::TimedOut),
            (S::Succeeded, C::Promote, S::Succeeded),
            (S::Failed, C::Requeue, S::Queued),
            (S::Canceled, C::Requeue, S::Queued),
            (S::TimedOut, C::Requeue, S::Queued),
        ];
        for status in S::ALL {
            for command in C::ALL {
                let expected =
                    allowed.iter().find(|(s, c, _)| *s == status && *c == command).map(|(_, _, n)| *n);
                assert_eq!(next(status, command), expected, "({status}, {command:?})");
            }
        }
    }

    #[test]
    fn t020_every_status_that_is_not_terminal_has_an_exit_for_people() {
        for status in RunStatus::ALL.into_iter().filter(|s| !s.is_terminal()) {
            assert!(next(status, Command::Cancel).is_some(), "{status} cannot be canceled");
        }
    }
}
