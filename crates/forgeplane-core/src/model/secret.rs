//! Catalog secrets. Payloads are sealed blobs under random names, never under their digest (a digest of
//! a short secret can be guessed); nothing here holds a value.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Actor, Name};
use crate::id::{ProjectId, SecretId};

/// A named, versioned catalog secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// Its id.
    pub id: SecretId,
    /// Tenant.
    pub project: ProjectId,
    /// Unique in the project.
    pub name: Name,
    /// The newest version.
    pub latest: u32,
    /// Where the newest version's sealed payload lives; a fresh name for each, so that none is ever overwritten.
    pub payload: String,
    /// Instances that may use it, by name; empty: none.
    pub approved_for: Vec<Name>,
    /// When the newest version was stored.
    pub updated_at: Timestamp,
    /// Who stored it.
    pub updated_by: Actor,
}

/// A resolved binding, frozen at admission: where the value goes and which version it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretBinding {
    /// The input path, a JSON pointer.
    pub path: String,
    /// The secret's name.
    pub name: Name,
    /// The secret.
    pub secret: SecretId,
    /// The version.
    pub version: u32,
    /// Where its sealed payload lives.
    pub payload: String,
}
