//! Tenancy, principals, tokens, roles.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Actor, Name};
use crate::digest::Digest;
use crate::id::{PrincipalId, ProjectId, RunId, TokenId};

/// A tenancy boundary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// Its id.
    pub id: ProjectId,
    /// Unique.
    pub name: Name,
    /// When it was created.
    pub created_at: Timestamp,
}

/// What a principal may do in a project. Later roles include earlier ones, except that an operator
/// does not approve and an approver does not operate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Also creates templates, instances and runs.
    Operator,
    /// Reads and decides approvals.
    Approver,
    /// Everything in the project, and workers.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Operator, Self::Approver, Self::Admin];

    /// The role as it travels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Approver => "approver",
            Self::Admin => "admin",
        }
    }
}

/// An API token. Only its hash is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its id.
    pub id: TokenId,
    /// SHA-256 of the token.
    pub hash: Digest,
    /// The project it opens.
    pub project: ProjectId,
    /// Whose it is: two tokens of one principal are one person.
    pub principal: PrincipalId,
    /// The principal's name.
    pub name: Name,
    /// What it allows.
    pub role: Role,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// An authenticated caller of the coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Who.
    pub principal: PrincipalId,
    /// Their name.
    pub name: String,
    /// In which project.
    pub project: ProjectId,
    /// As what.
    pub role: Role,
}

impl Caller {
    /// The caller as the actor of an event.
    #[must_use]
    pub fn actor(&self) -> Actor {
        Actor::Principal { id: self.principal, name: self.name.clone() }
    }
}

/// The answer remembered for an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idempotency {
    /// Tenant.
    pub project: ProjectId,
    /// The client's key.
    pub key: String,
    /// Digest of the request it was used with.
    pub request: Digest,
    /// The run it created.
    pub run: RunId,
    /// When.
    pub at: Timestamp,
}
