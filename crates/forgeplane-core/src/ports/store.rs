//! The store port: one trait, two kinds of methods (commit, named reads).

use async_trait::async_trait;

use super::BoxError;
use crate::digest::Digest;
use crate::id::{AttemptId, InstanceId, ProjectId, RunId, StateObjectId, TemplateId, WorkerId};
use crate::model::*;

/// A guard of the database that a changeset ran into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Constraint {
    /// Project names are unique.
    ProjectName,
    /// Token hashes are unique.
    TokenHash,
    /// Template names are unique in a project.
    TemplateName,
    /// Instance names are unique in a project.
    InstanceName,
    /// Secret names are unique in a project.
    SecretName,
    /// Worker names are unique.
    WorkerName,
    /// Enrollment token hashes are unique.
    EnrollmentHash,
    /// Fences are unique.
    Fence,
    /// A run's attempts are numbered without repetition.
    AttemptNumber,
    /// At most one open attempt per run.
    OpenAttemptPerRun,
    /// At most one open attempt per worker slot.
    OpenAttemptPerSlot,
    /// At most one open attempt that changes an instance.
    ExclusiveInstance,
    /// At most one live promoted run per plan.
    LivePromotion,
    /// One state object per instance.
    StateObjectPerInstance,
}

impl Constraint {
    /// Every constraint.
    pub const ALL: [Self; 14] = [
        Self::ProjectName,
        Self::TokenHash,
        Self::TemplateName,
        Self::InstanceName,
        Self::SecretName,
        Self::WorkerName,
        Self::EnrollmentHash,
        Self::Fence,
        Self::AttemptNumber,
        Self::OpenAttemptPerRun,
        Self::OpenAttemptPerSlot,
        Self::ExclusiveInstance,
        Self::LivePromotion,
        Self::StateObjectPerInstance,
    ];

    /// The name a database gives the constraint.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProjectName => "project_name",
            Self::TokenHash => "token_hash",
            Self::TemplateName => "template_name",
            Self::InstanceName => "instance_name",
            Self::SecretName => "secret_name",
            Self::WorkerName => "worker_name",
            Self::EnrollmentHash => "enrollment_hash",
            Self::Fence => "attempt_fence",
            Self::AttemptNumber => "attempt_number",
            Self::OpenAttemptPerRun => "attempt_open_per_run",
            Self::OpenAttemptPerSlot => "attempt_open_per_slot",
            Self::ExclusiveInstance => "attempt_exclusive_instance",
            Self::LivePromotion => "run_live_promotion",
            Self::StateObjectPerInstance => "state_object_instance",
        }
    }
}

/// Why one changeset of a batch was not committed. Its neighbours are not affected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// A record is not at the expected version (or is missing, or exists already).
    #[error("{key:?} is not at the expected version")]
    Version {
        /// The record.
        key: Key,
    },
    /// A guard of the database.
    #[error("constraint {}", .0.name())]
    Constraint(Constraint),
}

/// What a commit assigned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Committed {
    /// Global sequence numbers of the changeset's events, in order.
    pub events: Vec<u64>,
}

/// A store that could not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was changed; the same call may succeed later.
    #[error("the store is not available: {0}")]
    Unavailable(#[source] BoxError),
    /// A commit was sent and its result is not known: read again before deciding.
    #[error("the result of a commit is not known: {0}")]
    Unknown(#[source] BoxError),
    /// The store's content is not what this version understands.
    #[error("the store cannot be used: {0}")]
    Unusable(#[source] BoxError),
}

impl StoreError {
    /// Stable machine code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "store_unavailable",
            Self::Unknown(_) => "store_commit_unknown",
            Self::Unusable(_) => "store_unusable",
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unknown(_))
    }
}

/// A record to find by something unique other than its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// A project by name.
    ProjectNamed(Name),
    /// A token by hash.
    TokenHash(Digest),
    /// A template by name.
    TemplateNamed(ProjectId, Name),
    /// An instance by name.
    InstanceNamed(ProjectId, Name),
    /// A secret by name.
    SecretNamed(ProjectId, Name),
    /// A worker by name.
    WorkerNamed(Name),
    /// A worker by the hash of its session credential.
    WorkerSession(Digest),
    /// An enrollment token by hash.
    EnrollmentHash(Digest),
    /// An attempt by fence.
    AttemptFence(Fence),
}

/// A list to read, in the order stated with each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// A project's [`Run`]s, newest (highest id) first.
    Runs {
        /// The project.
        project: ProjectId,
        /// Only this status.
        status: Option<RunStatus>,
        /// Only this instance.
        instance: Option<InstanceId>,
    },
    /// Queued [`Run`]s of all projects: highest priority first, then oldest `queued_at`, then lowest id.
    /// Not pageable: [`Page::after`] is ignored.
    QueuedRuns,
    /// [`Run`]s of all projects that wait for approval, by id.
    RunsPendingApproval,
    /// A run's [`Attempt`]s, by id.
    Attempts(RunId),
    /// Every [`Attempt`] that is not closed, by id.
    OpenAttempts,
    /// A worker's [`Attempt`]s that are not closed, by id.
    OpenAttemptsOf(WorkerId),
    /// Every project's [`Project`], by id.
    Projects,
    /// A project's [`Token`]s, by id.
    Tokens(ProjectId),
    /// A project's [`Template`]s, by id.
    Templates(ProjectId),
    /// A template's [`TemplateVersion`]s, newest first. `after` is a version number in decimal.
    TemplateVersions(TemplateId),
    /// A project's [`Instance`]s, by id.
    Instances(ProjectId),
    /// A project's [`Approval`]s, newest first.
    Approvals {
        /// The project.
        project: ProjectId,
        /// Only this status.
        status: Option<ApprovalStatus>,
    },
    /// Every [`Worker`], by id.
    Workers,
    /// Every [`WorkerContact`], by worker id.
    WorkerContacts,
    /// A worker's [`WorkerKey`]s, by id.
    WorkerKeys(WorkerId),
    /// A state object's [`StateGeneration`]s, newest first. `after` is a generation in decimal.
    Generations(StateObjectId),
    /// A state object's [`OrphanState`]s, by key.
    OrphanStates(StateObjectId),
    /// A run's [`Artifact`]s, by key.
    Artifacts(RunId),
    /// A project's [`Secret`]s, by id.
    Secrets(ProjectId),
    /// A run's [`LateEvidence`], by id.
    LateEvidence(RunId),
}

/// Which part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The cursor of the last record already seen: its id (or number, where stated).
    pub after: Option<String>,
    /// At most this many records.
    pub limit: usize,
}

impl Page {
    /// The first `limit` records.
    #[must_use]
    pub const fn first(limit: usize) -> Self {
        Self { after: None, limit }
    }

    /// Everything. For lists that are known to be small.
    #[must_use]
    pub const fn all() -> Self {
        Self { after: None, limit: usize::MAX }
    }
}

/// Which events to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only this project's.
    pub project: Option<ProjectId>,
    /// Only this run's.
    pub run: Option<RunId>,
}

/// Where Forgeplane's records live.
///
/// # What an implementation guarantees
///
/// - **Atomic**: a changeset's checks, puts, events, outbox rows and removals happen together or not at all.
/// - **Isolated**: the outcome of a batch is as if its changesets ran one after the other, in order, and
///   concurrent batches one after the other. A changeset whose check, expectation or constraint fails
///   changes nothing and does not disturb its neighbours.
/// - **Durable**: when [`commit`](Store::commit) returns, committed changesets survive a power loss.
/// - **Readable**: a read that starts after a commit returned sees it.
/// - **Guarded**: every [`Constraint`] is enforced by the store itself, whatever the caller checked.
/// - **Append-only**: records of an immutable [`Kind`] and events are never replaced or removed; a put with
///   another expectation than [`Expect::Absent`] for such a kind is a [`Conflict::Version`].
/// - **Ordered**: event sequence numbers grow in commit order, and a reader that has seen `n` never later
///   finds a new event below `n`.
///
/// # What callers may expect
///
/// Versions start at 1 and grow by 1. A constraint violation is reported as [`Conflict::Constraint`]; if a
/// changeset breaks an expectation and a constraint, either may be reported. Errors of a commit are
/// [`StoreError::Unknown`] unless it is certain that nothing was committed.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Commits each changeset of `batch`, in order, in one durable transaction.
    ///
    /// # Errors
    /// When the store cannot answer for the batch as a whole.
    async fn commit(&self, batch: Vec<Changeset>) -> Result<Vec<Result<Committed, Conflict>>, StoreError>;

    /// Reads one record.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn get(&self, key: &Key) -> Result<Option<Versioned<Record>>, StoreError>;

    /// Finds one record by something unique.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn find(&self, lookup: &Lookup) -> Result<Option<Versioned<Record>>, StoreError>;

    /// Reads a page of a list.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn list(&self, select: &Select, page: &Page) -> Result<Vec<Versioned<Record>>, StoreError>;

    /// Reads at most `limit` events after sequence number `after`, oldest first.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<Vec<Event>, StoreError>;

    /// Reads at most `limit` outbox messages, oldest first.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxMessage>, StoreError>;

    /// Reads at most `limit` outbox messages for a worker, oldest first.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn outbox_of(&self, worker: WorkerId, limit: usize) -> Result<Vec<OutboxMessage>, StoreError>;

    /// The sequence number of the newest event; 0 if there is none.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn event_head(&self) -> Result<u64, StoreError>;

    /// Whether other processes may commit to the same content. Then a coordinator looks for their events, which
    /// wake its loops and followers as its own do.
    fn is_shared(&self) -> bool {
        false
    }

    /// Reads log chunks of an attempt that contain or follow byte `from`, in order, until `max_bytes` are
    /// exceeded (at least one chunk if there is one).
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn log(&self, attempt: AttemptId, from: u64, max_bytes: usize)
    -> Result<Vec<LogChunk>, StoreError>;

    /// The number of log bytes stored for an attempt.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn log_end(&self, attempt: AttemptId) -> Result<u64, StoreError>;

    /// A fence greater than every fence allocated before by anybody on this store, restarts included,
    /// unless an earlier one was never committed.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn allocate_fence(&self) -> Result<Fence, StoreError>;
}

/// Typed sugar over [`Store`].
#[async_trait]
pub trait StoreExt: Store {
    /// Reads one entity.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn get_as<T: Entity>(&self, id: impl ToString + Send) -> Result<Option<Versioned<T>>, StoreError> {
        let key = Key::of::<T>(id);
        self.get(&key).await?.map(typed).transpose()
    }

    /// Finds one entity.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn find_as<T: Entity>(&self, lookup: &Lookup) -> Result<Option<Versioned<T>>, StoreError> {
        self.find(lookup).await?.map(typed).transpose()
    }

    /// Reads a page of entities.
    ///
    /// # Errors
    /// When the store cannot answer.
    async fn list_as<T: Entity>(
        &self,
        select: &Select,
        page: &Page,
    ) -> Result<Vec<Versioned<T>>, StoreError> {
        self.list(select, page).await?.into_iter().map(typed).collect()
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

fn typed<T: Entity>(record: Versioned<Record>) -> Result<Versioned<T>, StoreError> {
    let version = record.version;
    T::try_from(record.value).map(|value| Versioned { value, version }).map_err(|other| {
        StoreError::Unusable(format!("a {:?} was stored as {:?}", T::KIND, other.key()).into())
    })
}
