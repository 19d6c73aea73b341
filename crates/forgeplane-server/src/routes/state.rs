//! Managed state.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::App;
use crate::api::{OrphanState, Page, PageQuery, StateGeneration};
use crate::auth::Who;
use crate::error::ApiError;
use crate::extract::{NameOrId, QueryOf};
use crate::pages::{whole, window};

const GENERATION: HeaderName = HeaderName::from_static("x-forgeplane-generation");
const DIGEST: HeaderName = HeaderName::from_static("x-forgeplane-digest");

/// Which generation.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GenerationQuery {
    /// The generation; the current one unless given.
    generation: Option<u64>,
}

/// Downloads a state document, byte for byte. It contains secrets.
#[utoipa::path(
    get,
    path = "/instances/{name_or_id}/state",
    tag = "state",
    params(("name_or_id" = String, Path, description = "The instance's name or id."), GenerationQuery),
    responses((
        status = 200,
        description = "The document.",
        body = Object,
        headers(
            ("x-forgeplane-generation" = u64, description = "The document's generation."),
            ("x-forgeplane-digest" = String, description = "The document's digest."),
        ),
    )),
)]
pub(crate) async fn pull_state(
    State(app): State<App>,
    who: Who,
    NameOrId(instance): NameOrId,
    QueryOf(query): QueryOf<GenerationQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let (generation, document) = app.coordinator.pull_state(&who.caller, &instance, query.generation).await?;
    let headers = [
        (CONTENT_TYPE, "application/json".to_owned()),
        (GENERATION, generation.generation.to_string()),
        (DIGEST, generation.digest.to_string()),
    ];
    Ok((headers, document))
}

/// Lists the generations of an instance's state, newest first.
#[utoipa::path(
    get,
    path = "/instances/{name_or_id}/state/generations",
    tag = "state",
    params(("name_or_id" = String, Path, description = "The instance's name or id."), PageQuery),
    responses((status = 200, description = "A page of generations.", body = Page<StateGeneration>)),
)]
pub(crate) async fn list_state_generations(
    State(app): State<App>,
    who: Who,
    NameOrId(instance): NameOrId,
    QueryOf(query): QueryOf<PageQuery>,
) -> Result<Json<Page<StateGeneration>>, ApiError> {
    let window = window::<u64>(query.after, query.limit)?;
    let found = app.coordinator.state_generations(&who.caller, &instance, &window.page()).await?;
    Ok(window.cut(found, |g| g.generation.to_string()))
}

/// Lists state documents that were refused and kept aside.
#[utoipa::path(
    get,
    path = "/instances/{name_or_id}/state/orphans",
    tag = "state",
    params(("name_or_id" = String, Path, description = "The instance's name or id.")),
    responses((status = 200, description = "All refused documents.", body = Page<OrphanState>)),
)]
pub(crate) async fn list_orphan_states(
    State(app): State<App>,
    who: Who,
    NameOrId(instance): NameOrId,
) -> Result<Json<Page<OrphanState>>, ApiError> {
    Ok(whole(app.coordinator.orphan_states(&who.caller, &instance).await?))
}
