//! Workers: identity, keys, capacity, contact.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Fence, Name, Nonce, Tool};
use crate::digest::Digest;
use crate::id::{EnrollmentId, WorkerId};

/// A worker identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its id.
    pub id: WorkerId,
    /// The name it registered with; unique.
    pub name: Name,
    /// Its pool.
    pub pool: Name,
    /// Tools it can run, with the version it found.
    pub capabilities: BTreeMap<Tool, String>,
    /// The most jobs it says it can run at once.
    pub max_jobs: u32,
    /// It runs tools without isolation (explicit local development mode).
    pub unsafe_no_isolation: bool,
    /// Takes no new work.
    pub draining: bool,
    /// An administrator asked it to replace its key.
    #[serde(default)]
    pub rotate_key: bool,
    /// Its credential is dead.
    pub disconnected: bool,
    /// Why it was taken out of service.
    pub quarantined: Option<String>,
    /// Grows with every registration; older sessions authorize nothing.
    pub incarnation: u64,
    /// SHA-256 of its session credential.
    pub session: Digest,
    /// SHA-256 of the client certificate that its session is bound to.
    #[serde(default)]
    pub session_certificate: Option<Digest>,
    /// When the session ends.
    pub session_expires_at: Timestamp,
    /// The key new attempts are pinned to.
    pub key: Digest,
    /// The fence of an attempt that it holds and the store does not know: commits were lost.
    #[serde(default)]
    pub lost: Option<Fence>,
    /// First registration.
    pub registered_at: Timestamp,
}

/// Where a worker is (`spec.md` §6); computed, never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerStatus {
    /// Connected and available.
    Idle,
    /// At capacity.
    Busy,
    /// Finishes its work, takes nothing new.
    Draining,
    /// Not schedulable: missed heartbeats, disconnected or quarantined.
    Offline,
}

impl WorkerStatus {
    /// The status as it travels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Draining => "draining",
            Self::Offline => "offline",
        }
    }
}

/// An attempt a worker says it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The attempt's fence.
    pub fence: Fence,
    /// The claim's nonce.
    pub nonce: Nonce,
    /// When the coordinator last heard it.
    pub at: Timestamp,
}

/// When a worker was last heard of. Separate from [`Worker`] because it changes with every heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerContact {
    /// The worker.
    pub worker: WorkerId,
    /// The incarnation that spoke.
    pub incarnation: u64,
    /// Last authenticated message.
    pub last_seen: Timestamp,
    /// Claimed attempts it named.
    pub held: Vec<Held>,
    /// It is about to end: it finishes its work and takes nothing new.
    #[serde(default)]
    pub draining: bool,
    /// What it is short of, such as room on its disk; it takes nothing new until it has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_of: Option<String>,
    /// The newest fence it ever named that was found in the store.
    #[serde(default)]
    pub newest: Fence,
}

impl WorkerContact {
    /// Whether the worker itself has said that it takes nothing new at the moment.
    #[must_use]
    pub const fn takes_nothing_new(&self) -> bool {
        self.draining || self.short_of.is_some()
    }
}

/// Whether a key may sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyStatus {
    /// New attempts are pinned to it.
    Active,
    /// Replaced; still valid for attempts pinned to it.
    Retired,
    /// Its outcomes are never applied, only kept as evidence.
    Compromised,
}

/// An outcome-signing public key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerKey {
    /// SHA-256 of the public key.
    pub id: Digest,
    /// Whose.
    pub worker: WorkerId,
    /// Ed25519 public key, 32 bytes in hex.
    pub public_key: String,
    /// Whether it may sign.
    pub status: KeyStatus,
    /// Since when.
    pub added_at: Timestamp,
    /// Until when new attempts were pinned to it.
    pub retired_at: Option<Timestamp>,
}

/// A single-use permission to register a worker; only its hash is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrollment {
    /// Its id.
    pub id: EnrollmentId,
    /// SHA-256 of the token.
    pub hash: Digest,
    /// The pool it admits to.
    pub pool: Name,
    /// When it ends.
    pub expires_at: Timestamp,
    /// When it was used.
    pub used_at: Option<Timestamp>,
    /// The key that used it: the same key may retry.
    pub used_by: Option<Digest>,
    /// The worker it created.
    pub worker: Option<WorkerId>,
}
