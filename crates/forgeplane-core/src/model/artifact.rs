//! The plan artifact: what a successful plan published.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::id::{AttemptId, ProjectId, RunId};

/// Counts of planned or applied changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlanSummary {
    /// Resources to add.
    pub add: u64,
    /// Resources to change in place.
    pub change: u64,
    /// Resources to destroy.
    pub destroy: u64,
    /// Resources to import.
    #[serde(default)]
    pub import: u64,
}

impl std::fmt::Display for PlanSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to add, {} to change, {} to destroy", self.add, self.change, self.destroy)?;
        if self.import > 0 {
            write!(f, ", {} to import", self.import)?;
        }
        Ok(())
    }
}

/// A file that a worker publishes for an attempt. All are sealed at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// The plan file, applied byte for byte.
    Plan,
    /// `show -json` of the plan. Sensitive values are in clear here.
    PlanJson,
    /// `show` of the plan for people.
    PlanText,
    /// The dependency lock file, carried from plan to apply.
    LockFile,
    /// A state document the tool could not persist (`errored.tfstate`).
    ErroredState,
}

impl ArtifactKind {
    /// The kind as it travels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::PlanJson => "plan_json",
            Self::PlanText => "plan_text",
            Self::LockFile => "lock_file",
            Self::ErroredState => "errored_state",
        }
    }
}

/// A published file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// The attempt that published it.
    pub attempt: AttemptId,
    /// The run.
    pub run: RunId,
    /// Tenant.
    pub project: ProjectId,
    /// What it is.
    pub kind: ArtifactKind,
    /// Digest of its bytes.
    pub digest: Digest,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was published.
    pub at: Timestamp,
}

/// The exact plan of a succeeded plan run: what promotion binds and approval approves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanArtifact {
    /// The plan run.
    pub run: RunId,
    /// Tenant.
    pub project: ProjectId,
    /// The attempt that published it.
    pub attempt: AttemptId,
    /// The plan file.
    pub plan: Digest,
    /// `show -json`.
    pub json: Option<Digest>,
    /// `show`.
    pub text: Option<Digest>,
    /// The dependency lock file.
    pub lock_file: Option<Digest>,
    /// The state generation it was made from.
    pub base_generation: u64,
    /// What it would do.
    pub summary: PlanSummary,
    /// When it was published.
    pub at: Timestamp,
}
