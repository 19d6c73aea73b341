//! Lifecycle events.

use forgeplane_core::id::RunId;
use forgeplane_core::model::{self, Object};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Actor;

/// What happened, in order, for good. On `/events/stream` the SSE `id:` is `seq` and the SSE event name
/// is `event`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Global order; also the cursor to read on from.
    pub seq: u64,
    /// The run, if it is about one.
    #[schema(value_type = Option<String>)]
    pub run: Option<RunId>,
    /// Position in the run's own history: 1, 2, … without gaps; 0 without a run.
    pub run_seq: u64,
    /// What happened, such as `run.queued`; new kinds may appear.
    pub kind: String,
    /// Who caused it.
    pub actor: Actor,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Details, never secret.
    #[schema(value_type = Object)]
    pub data: Object,
}

impl From<model::Event> for Event {
    fn from(it: model::Event) -> Self {
        Self {
            seq: it.seq,
            run: it.run,
            run_seq: it.run_seq,
            kind: it.kind.as_str().to_owned(),
            actor: it.actor.into(),
            at: it.at,
            data: it.data,
        }
    }
}
