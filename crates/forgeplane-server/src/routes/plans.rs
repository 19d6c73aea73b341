//! Plans and evidence of a run.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use forgeplane_core::evidence::Evidence;
use forgeplane_core::id::RunId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::App;
use crate::auth::Who;
use crate::error::ApiError;
use crate::extract::{IdPath, QueryOf};

const PLAN_DIGEST: HeaderName = HeaderName::from_static("x-forgeplane-plan-digest");

/// Shows the plan of a run for people. The tool masks sensitive values in it.
#[utoipa::path(
    get,
    path = "/runs/{id}/plan",
    tag = "plans",
    params(("id" = String, Path, description = "The plan run's id.")),
    responses((
        status = 200,
        description = "The plan as text.",
        body = String,
        content_type = "text/plain",
        headers(("x-forgeplane-plan-digest" = String, description = "Digest of the plan file.")),
    )),
)]
pub(crate) async fn get_plan_text(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<RunId>,
) -> Result<impl IntoResponse, ApiError> {
    let (plan, text) = app.coordinator.plan_text(&who.caller, id).await?;
    let headers =
        [(CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()), (PLAN_DIGEST, plan.plan.to_string())];
    Ok((headers, text))
}

/// Downloads the plan of a run as JSON, with sensitive values in clear.
#[utoipa::path(
    get,
    path = "/runs/{id}/plan.json",
    tag = "plans",
    params(("id" = String, Path, description = "The plan run's id.")),
    responses((
        status = 200,
        description = "The tool's plan document.",
        body = Object,
        headers(("x-forgeplane-plan-digest" = String, description = "Digest of the plan file.")),
    )),
)]
pub(crate) async fn get_plan_json(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<RunId>,
) -> Result<impl IntoResponse, ApiError> {
    let (plan, json) = app.coordinator.plan_json(&who.caller, id).await?;
    let headers = [(CONTENT_TYPE, "application/json".to_owned()), (PLAN_DIGEST, plan.plan.to_string())];
    Ok((headers, json))
}

/// Which attempt.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AttemptQuery {
    /// The attempt's number; the newest unless given.
    attempt: Option<u32>,
}

/// Exports how an attempt ended, signed by its worker, for verification without this coordinator.
#[utoipa::path(
    get,
    path = "/runs/{id}/evidence",
    tag = "plans",
    params(("id" = String, Path, description = "The run's id."), AttemptQuery),
    responses((status = 200, description = "What `forgeplane verify` reads.", body = Object)),
)]
pub(crate) async fn get_evidence(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<RunId>,
    QueryOf(query): QueryOf<AttemptQuery>,
) -> Result<Json<Evidence>, ApiError> {
    Ok(Json(app.coordinator.evidence(&who.caller, id, query.attempt).await?))
}
