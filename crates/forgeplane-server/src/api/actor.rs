//! Who did something.

use std::fmt;

use forgeplane_core::model;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What sort of actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActorKind {
    /// A person or service account.
    Principal,
    /// A worker.
    Worker,
    /// Forgeplane itself.
    System,
}

/// Who did something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Actor {
    /// What sort of actor.
    pub kind: ActorKind,
    /// Id of the principal or worker; absent for Forgeplane itself.
    pub id: Option<String>,
    /// How to show it: a principal's name, a worker's id, a part of Forgeplane such as `scheduler`.
    pub name: String,
}

impl From<model::Actor> for Actor {
    fn from(actor: model::Actor) -> Self {
        match actor {
            model::Actor::Principal { id, name } => {
                Self { kind: ActorKind::Principal, id: Some(id.to_string()), name }
            }
            model::Actor::Worker { id } => {
                Self { kind: ActorKind::Worker, id: Some(id.to_string()), name: id.to_string() }
            }
            model::Actor::System { part } => Self { kind: ActorKind::System, id: None, name: part },
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}
