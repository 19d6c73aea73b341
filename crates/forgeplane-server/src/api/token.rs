//! API tokens.

use forgeplane_core::id::{PrincipalId, TokenId};
use forgeplane_core::model::{self, Name};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Role, SecretValue};

/// A token to make in the caller's project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Whose it is. Tokens of one name belong to one principal, who may not approve their own runs.
    #[schema(value_type = String)]
    pub name: Name,
    /// What it allows.
    pub role: Role,
    /// Seconds until it ends; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub expires_in_s: Option<u64>,
}

/// A new token. The token itself is shown here and never again.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// Its id.
    #[schema(value_type = String)]
    pub id: TokenId,
    /// Whose it is.
    #[schema(value_type = String)]
    pub principal: PrincipalId,
    /// The principal's name.
    #[schema(value_type = String)]
    pub name: Name,
    /// What it allows.
    pub role: Role,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it ends.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// The token, for `Authorization: Bearer …`.
    #[schema(value_type = String, format = Password)]
    pub token: SecretValue,
}

impl CreatedToken {
    /// A stored token and its secret.
    #[must_use]
    pub fn new(it: model::Token, token: SecretValue) -> Self {
        Self {
            id: it.id,
            principal: it.principal,
            name: it.name,
            role: it.role.into(),
            created_at: it.created_at,
            expires_at: it.expires_at,
            token,
        }
    }
}
