//! What a worker needs to know before it starts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use forgeplane_core::model::{Name, Tool};
use secrecy::SecretString;

use crate::sandbox::Isolation;
use crate::uid_lock;

/// Which tools a worker offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tools {
    /// Whatever is found in `PATH`; nothing found is nothing offered.
    Detect,
    /// Exactly these; one that is missing or does not answer is a start-up error.
    Explicit(BTreeMap<Tool, PathBuf>),
}

/// A worker's configuration. [`WorkerConfig::new`] has documented defaults for everything that can have one.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Its name; unique among all workers.
    pub name: Name,
    /// The pool it joins.
    pub pool: Name,
    /// Keys and journal. Must survive restarts, or a restart leaves unresolved executions behind.
    pub state_dir: PathBuf,
    /// Workspaces; disposable. Every parent must be passable for the IaC user id.
    pub workspace_root: PathBuf,
    /// How tools are kept apart from the worker and from each other.
    pub isolation: Isolation,
    /// The sandbox helper; `None`: this executable, if it calls [`crate::sandbox::run_if_helper`].
    pub helper: Option<PathBuf>,
    /// Where locks on IaC user ids live; the same for all workers of a host.
    pub uid_lock_dir: PathBuf,
    /// Which tools it offers.
    pub tools: Tools,
    /// Needed for the first registration.
    pub enrollment_token: Option<SecretString>,
    /// The most log bytes of one attempt; the rest is replaced by a visible marker. Default 1 GiB.
    pub log_cap_bytes: u64,
    /// With less room than this on the disk of its workspaces or of its own files the worker takes nothing new, bytes.
    /// Default 256 MiB.
    pub min_free_bytes: u64,
    /// How long an ended attempt waits for its log to be delivered. Default 60 s.
    pub log_wait: Duration,
    /// How long `show -json` of a plan may take; it never blocks the outcome. Default 120 s.
    pub show_timeout: Duration,
}

impl WorkerConfig {
    /// A configuration with the defaults.
    #[must_use]
    pub fn new(
        name: Name,
        pool: Name,
        state_dir: PathBuf,
        workspace_root: PathBuf,
        isolation: Isolation,
    ) -> Self {
        Self {
            name,
            pool,
            state_dir,
            workspace_root,
            isolation,
            helper: None,
            uid_lock_dir: PathBuf::from(uid_lock::DEFAULT_DIR),
            tools: Tools::Detect,
            enrollment_token: None,
            log_cap_bytes: 1 << 30,
            min_free_bytes: 256 << 20,
            log_wait: Duration::from_secs(60),
            show_timeout: Duration::from_secs(120),
        }
    }
}
