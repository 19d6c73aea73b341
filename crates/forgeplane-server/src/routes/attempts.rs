//! Attempts, and what operators do about those whose worker is missing.

use axum::Json;
use axum::extract::State;
use forgeplane_core::evidence::Envelope;
use forgeplane_core::id::AttemptId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::App;
use crate::api::{Attempt, AttemptDetail, Page, Resolve, SubmittedOutcome};
use crate::auth::Who;
use crate::error::ApiError;
use crate::extract::{IdPath, JsonBody, QueryOf};
use crate::pages::whole;

/// Which attempts.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AttemptsQuery {
    /// Only those whose worker is missing.
    #[serde(default)]
    #[param(inline, default = false)]
    unresolved: bool,
}

/// Lists the project's attempts that are not closed, oldest first.
#[utoipa::path(
    get,
    path = "/attempts",
    tag = "attempts",
    params(AttemptsQuery),
    responses((status = 200, description = "All of them.", body = Page<Attempt>)),
)]
pub(crate) async fn list_attempts(
    State(app): State<App>,
    who: Who,
    QueryOf(query): QueryOf<AttemptsQuery>,
) -> Result<Json<Page<Attempt>>, ApiError> {
    Ok(whole(app.coordinator.open_attempts(&who.caller, query.unresolved).await?))
}

/// Shows an attempt with everything that is known about its execution.
#[utoipa::path(
    get,
    path = "/attempts/{id}",
    tag = "attempts",
    params(("id" = String, Path, description = "The attempt's id.")),
    responses((status = 200, description = "The attempt.", body = AttemptDetail)),
)]
pub(crate) async fn get_attempt(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<AttemptId>,
) -> Result<Json<AttemptDetail>, ApiError> {
    Ok(Json(app.coordinator.attempt(&who.caller, id).await?.into()))
}

/// Decides how an unresolved execution ended, or proposes that it succeeded.
#[utoipa::path(
    post,
    path = "/attempts/{id}/resolve",
    tag = "attempts",
    params(("id" = String, Path, description = "The attempt's id.")),
    request_body = Resolve,
    responses((status = 200, description = "The attempt, closed or with a proposal.", body = AttemptDetail)),
)]
pub(crate) async fn resolve_attempt(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<AttemptId>,
    JsonBody(resolve): JsonBody<Resolve>,
) -> Result<Json<AttemptDetail>, ApiError> {
    app.coordinator.resolve_attempt(&who.caller, id, &resolve.into()).await?;
    Ok(Json(app.coordinator.attempt(&who.caller, id).await?.into()))
}

/// Confirms, as a second person, that an unresolved execution succeeded.
#[utoipa::path(
    post,
    path = "/attempts/{id}/confirm",
    tag = "attempts",
    params(("id" = String, Path, description = "The attempt's id.")),
    responses((status = 200, description = "The attempt, closed.", body = AttemptDetail)),
)]
pub(crate) async fn confirm_resolution(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<AttemptId>,
) -> Result<Json<AttemptDetail>, ApiError> {
    app.coordinator.confirm_resolution(&who.caller, id).await?;
    Ok(Json(app.coordinator.attempt(&who.caller, id).await?.into()))
}

/// Delivers a signed outcome that was found on a worker's disk. The signature counts, not who brings it.
#[utoipa::path(
    post,
    path = "/attempts/{id}/outcome",
    tag = "attempts",
    params(("id" = String, Path, description = "The attempt's id.")),
    request_body(content = Object, description = "The envelope, exactly as it was signed."),
    responses((status = 200, description = "What became of it.", body = SubmittedOutcome)),
)]
pub(crate) async fn submit_outcome(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<AttemptId>,
    JsonBody(envelope): JsonBody<Envelope>,
) -> Result<Json<SubmittedOutcome>, ApiError> {
    Ok(Json(app.coordinator.submit_outcome(&who.caller, id, envelope).await?.into()))
}
