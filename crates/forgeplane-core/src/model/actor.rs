//! Who did something.

use serde::{Deserialize, Serialize};

use crate::id::{PrincipalId, WorkerId};

/// Who caused a change; stored with every event, decision and request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Actor {
    /// A person or service account.
    Principal {
        /// Its id.
        id: PrincipalId,
        /// Its name when it acted.
        name: String,
    },
    /// A worker.
    Worker {
        /// Its id.
        id: WorkerId,
    },
    /// Forgeplane itself.
    System {
        /// The part that acted, such as `scheduler` or `sweeper`.
        part: String,
    },
}

impl Actor {
    /// Forgeplane's own `part`.
    #[must_use]
    pub fn system(part: &str) -> Self {
        Self::System { part: part.to_owned() }
    }

    /// The principal's id, if a principal acted.
    #[must_use]
    pub fn principal(&self) -> Option<PrincipalId> {
        match self {
            Self::Principal { id, .. } => Some(*id),
            _ => None,
        }
    }
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Principal { name, .. } => f.write_str(name),
            Self::Worker { id } => write!(f, "worker {id}"),
            Self::System { part } => f.write_str(part),
        }
    }
}
