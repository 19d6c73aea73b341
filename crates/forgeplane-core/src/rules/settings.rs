//! The figures the rules decide with.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::Tool;

/// System settings; the defaults are those of `protocol.md` 1.6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How often workers send heartbeats.
    pub heartbeat: Duration,
    /// How long an offer stands without a claim.
    pub offer_ttl: Duration,
    /// After how long without a heartbeat a worker is not schedulable.
    pub worker_offline_after: Duration,
    /// After how long without news of its nonce a claimed attempt is unresolved.
    pub unresolved_after: Duration,
    /// After how long an unclaimed offer is published again.
    pub republish_after: Duration,
    /// How long after deadline and grace the coordinator asks the worker to stop.
    pub deadline_margin: Duration,
    /// How long a worker session lasts.
    pub session_ttl: Duration,
    /// How long the key that used an enrollment token may retry with it.
    pub enrollment_retry: Duration,
    /// The most jobs any worker runs at once, whatever it reports.
    pub worker_max_concurrent_jobs: u32,
    /// How many attempts of a run may end without the tool having started, before the run fails.
    pub max_not_started: u32,
    /// Tools that have an executor.
    pub executors: BTreeSet<Tool>,
    /// Workers may run tools without isolation. Unsafe; only for local development.
    pub unsafe_allow_no_isolation: bool,
    /// Largest source bundle, bytes.
    pub max_source_bytes: usize,
    /// Largest run or instance input document, bytes.
    pub max_input_bytes: usize,
    /// Largest state document, bytes.
    pub max_state_bytes: usize,
    /// Largest artifact, bytes.
    pub max_artifact_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(5),
            offer_ttl: Duration::from_secs(60),
            worker_offline_after: Duration::from_secs(30),
            unresolved_after: Duration::from_secs(120),
            republish_after: Duration::from_secs(10),
            deadline_margin: Duration::from_secs(60),
            session_ttl: Duration::from_secs(15 * 60),
            enrollment_retry: Duration::from_secs(10 * 60),
            worker_max_concurrent_jobs: 8,
            max_not_started: 3,
            executors: BTreeSet::from([Tool::Terraform, Tool::Tofu, Tool::Ansible]),
            unsafe_allow_no_isolation: false,
            max_source_bytes: 64 << 20,
            max_input_bytes: 1 << 20,
            max_state_bytes: 256 << 20,
            max_artifact_bytes: 256 << 20,
        }
    }
}
