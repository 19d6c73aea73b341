//! Workers.

use std::collections::BTreeMap;

use forgeplane_core::coordinator;
use forgeplane_core::digest::Digest;
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::{self, Name};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Attempt, SecretValue, WorkerStatus};

/// A worker as it registered and as operators set it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Its id.
    #[schema(value_type = String)]
    pub id: WorkerId,
    /// The name it registered with; unique.
    #[schema(value_type = String)]
    pub name: Name,
    /// Its pool.
    #[schema(value_type = String)]
    pub pool: Name,
    /// Tool labels it can run, with the version it found.
    pub capabilities: BTreeMap<String, String>,
    /// The most jobs it says it can run at once.
    pub max_jobs: u32,
    /// It runs tools without isolation (explicit local development mode).
    pub unsafe_no_isolation: bool,
    /// Takes no new work.
    pub draining: bool,
    /// It was asked to replace its key and has not done so yet.
    pub rotate_key: bool,
    /// Its credential is dead.
    pub disconnected: bool,
    /// Why it was taken out of service.
    pub quarantined: Option<String>,
    /// The fence of an attempt that it holds and the store does not know: the store has lost commits, and nothing is
    /// scheduled until that is accepted.
    pub lost_fence: Option<u64>,
    /// Grows with every registration.
    pub incarnation: u64,
    /// Id of the key that signs its outcomes.
    #[schema(value_type = String)]
    pub key: Digest,
    /// First registration.
    #[schema(value_type = String, format = DateTime)]
    pub registered_at: Timestamp,
}

/// Why a loss is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptLoss {
    /// Why.
    pub reason: String,
}

/// An enrollment token to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewEnrollment {
    /// The pool that the worker joins.
    #[schema(value_type = String)]
    pub pool: Name,
    /// Seconds until it ends, at most 3600; absent: 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 3600)]
    pub expires_in_s: Option<u64>,
}

/// A new enrollment token: it enrolls one worker, once. It is shown here and never again.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedEnrollment {
    /// The pool that the worker joins.
    #[schema(value_type = String)]
    pub pool: Name,
    /// When it ends.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
    /// The token, for the worker's configuration.
    #[schema(value_type = String, format = Password)]
    pub token: SecretValue,
}

impl From<model::Worker> for Worker {
    fn from(it: model::Worker) -> Self {
        Self {
            id: it.id,
            name: it.name,
            pool: it.pool,
            capabilities: it.capabilities.into_iter().map(|(t, v)| (t.label().to_owned(), v)).collect(),
            max_jobs: it.max_jobs,
            unsafe_no_isolation: it.unsafe_no_isolation,
            draining: it.draining,
            rotate_key: it.rotate_key,
            disconnected: it.disconnected,
            quarantined: it.quarantined,
            lost_fence: it.lost.map(|fence| fence.0),
            incarnation: it.incarnation,
            key: it.key,
            registered_at: it.registered_at,
        }
    }
}

/// A worker with what is computed about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerDetail {
    /// The worker.
    pub worker: Worker,
    /// Where it is.
    pub status: WorkerStatus,
    /// When it was last heard of.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_seen: Option<Timestamp>,
    /// What it is short of, such as room on its disk; it takes nothing new until it has it.
    pub short_of: Option<String>,
    /// How many jobs it may run at once.
    pub capacity: u32,
    /// Its open attempts of the caller's project.
    pub attempts: Vec<Attempt>,
}

impl From<coordinator::WorkerView> for WorkerDetail {
    fn from(view: coordinator::WorkerView) -> Self {
        Self {
            worker: view.worker.into(),
            status: view.status.into(),
            last_seen: view.last_seen,
            short_of: view.short_of,
            capacity: view.capacity,
            attempts: view.attempts.into_iter().map(Attempt::from).collect(),
        }
    }
}
