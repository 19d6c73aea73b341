//! Errors (RFC 9457 problem details).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request was not carried out; `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `https://forgeplane.dev/errors/` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable machine code; never renamed or reused.
    pub code: String,
    /// What happened, for the person at the terminal.
    pub detail: String,
    /// The request field at fault: a name, a dotted path or a JSON pointer below one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way_out: Option<String>,
    /// The request's id, to find it in the coordinator's log.
    pub request_id: String,
}
