//! Lifecycle events: what happened, in order, for good.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Actor, Object};
use crate::id::{ProjectId, RunId};

macro_rules! event_kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// What happened. Texts are stable and documented for consumers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum EventKind {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl EventKind {
            /// Every kind, for documentation and tests.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The kind as it travels.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

event_kinds! {
    /// A run was admitted.
    RunCreated = "run.created";
    /// A run waits for approval.
    ApprovalPending = "approval.pending";
    /// A reviewer approved; the record may still need more.
    ApprovalReviewed = "approval.reviewed";
    /// Enough reviewers approved.
    ApprovalApproved = "approval.approved";
    /// A reviewer rejected.
    ApprovalRejected = "approval.rejected";
    /// Nobody decided in time.
    ApprovalExpired = "approval.expired";
    /// The run was canceled while its approval was pending.
    ApprovalWithdrawn = "approval.withdrawn";
    /// A run entered the queue.
    RunQueued = "run.queued";
    /// An attempt was leased to a worker.
    AttemptOffered = "attempt.offered";
    /// An offer was withdrawn before a claim.
    AttemptRevoked = "attempt.revoked";
    /// The execution fence was crossed.
    RunRunning = "run.running";
    /// A stop was asked for.
    RunCanceling = "run.canceling";
    /// The tool never started; the run goes back to the queue.
    AttemptNotStarted = "attempt.not_started";
    /// A claimed attempt's worker is missing.
    AttemptUnresolved = "attempt.unresolved";
    /// The missing worker was heard again.
    AttemptContactRestored = "attempt.contact_restored";
    /// The deadline passed while the worker was missing.
    AttemptDeadlineExceeded = "attempt.deadline_exceeded";
    /// An operator proposes to call an unresolved execution a success; a second person decides.
    AttemptResolutionProposed = "attempt.resolution_proposed";
    /// An operator resolved an unresolved execution.
    AttemptResolved = "attempt.resolved";
    /// Evidence arrived that changed nothing.
    EvidenceKept = "attempt.evidence_kept";
    /// A state generation was written.
    StateWritten = "state.written";
    /// A state document was refused and kept aside.
    StateRefused = "state.refused";
    /// A run completed.
    RunSucceeded = "run.succeeded";
    /// A run failed.
    RunFailed = "run.failed";
    /// A run was canceled.
    RunCanceled = "run.canceled";
    /// A run exceeded a deadline.
    RunTimedOut = "run.timed_out";
    /// A plan was promoted.
    RunPromoted = "run.promoted";
    /// A run was requeued.
    RunRequeued = "run.requeued";
    /// A template version was pushed.
    TemplatePushed = "template.pushed";
    /// An instance was created.
    InstanceCreated = "instance.created";
    /// An instance was torn down.
    InstanceTornDown = "instance.torn_down";
    /// A worker registered.
    WorkerRegistered = "worker.registered";
    /// A worker drains.
    WorkerDraining = "worker.draining";
    /// A worker takes work again.
    WorkerReactivated = "worker.reactivated";
    /// A worker was asked to replace its key.
    WorkerKeyRotationRequested = "worker.key_rotation_requested";
    /// A worker replaced its key.
    WorkerKeyRotated = "worker.key_rotated";
    /// A worker's keys are not trusted any more.
    WorkerKeysCompromised = "worker.keys_compromised";
    /// A worker was disconnected.
    WorkerDisconnected = "worker.disconnected";
    /// A worker was taken out of service.
    WorkerQuarantined = "worker.quarantined";
    /// A worker holds an attempt that the store does not know: it has lost commits.
    StoreCommitsLost = "store.commits_lost";
    /// An administrator accepts that commits were lost.
    StoreLossAccepted = "store.loss_accepted";
    /// A secret version was stored.
    SecretStored = "secret.stored";
    /// A token was created.
    TokenCreated = "token.created";
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Global order, assigned by the store at commit; 0 before that.
    pub seq: u64,
    /// Tenant; absent for events of the whole installation, such as a worker's.
    pub project: Option<ProjectId>,
    /// The run.
    pub run: Option<RunId>,
    /// Position in the run's own history: 1, 2, … without gaps; 0 without a run.
    pub run_seq: u64,
    /// What happened.
    pub kind: EventKind,
    /// Who caused it.
    pub actor: Actor,
    /// When.
    pub at: Timestamp,
    /// Details, never secret.
    pub data: Object,
}

impl Event {
    /// An event that belongs to no run: of a project, or (without one) of the whole installation.
    #[must_use]
    pub fn beside_runs(
        project: Option<ProjectId>,
        kind: EventKind,
        actor: Actor,
        at: Timestamp,
        data: Object,
    ) -> Self {
        Self { seq: 0, project, run: None, run_seq: 0, kind, actor, at, data }
    }
}
