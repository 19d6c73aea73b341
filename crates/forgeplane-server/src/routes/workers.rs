//! Workers.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::App;
use crate::api::{AcceptLoss, CreatedEnrollment, NewEnrollment, Page, Worker, WorkerDetail};
use crate::auth::Who;
use crate::error::ApiError;
use crate::extract::{JsonBody, NameOrId};
use crate::pages::whole;

/// Lists every worker, with its status and its open attempts of the caller's project.
#[utoipa::path(
    get,
    path = "/workers",
    tag = "workers",
    responses((status = 200, description = "All workers.", body = Page<WorkerDetail>)),
)]
pub(crate) async fn list_workers(
    State(app): State<App>,
    who: Who,
) -> Result<Json<Page<WorkerDetail>>, ApiError> {
    Ok(whole(app.coordinator.workers(&who.caller).await?))
}

/// How long an enrollment token is good for unless asked otherwise, seconds.
const ENROLLMENT_TTL: u64 = 600;

/// Makes an enrollment token, which enrolls one worker once. The token is in the answer and nowhere else.
#[utoipa::path(
    post,
    path = "/workers/enrollments",
    tag = "workers",
    request_body = NewEnrollment,
    responses((status = 201, description = "The enrollment token.", body = CreatedEnrollment)),
)]
pub(crate) async fn create_enrollment(
    State(app): State<App>,
    who: Who,
    JsonBody(new): JsonBody<NewEnrollment>,
) -> Result<(StatusCode, Json<CreatedEnrollment>), ApiError> {
    let ttl = Duration::from_secs(new.expires_in_s.unwrap_or(ENROLLMENT_TTL));
    let (token, expires_at) = app.coordinator.create_enrollment(&who.caller, &new.pool, ttl).await?;
    Ok((StatusCode::CREATED, Json(CreatedEnrollment { pool: new.pool, expires_at, token: token.into() })))
}

/// Lets a worker finish its work and take nothing new.
#[utoipa::path(
    post,
    path = "/workers/{name_or_id}/drain",
    tag = "workers",
    params(("name_or_id" = String, Path, description = "The worker's name or id.")),
    responses((status = 200, description = "The worker.", body = Worker)),
)]
pub(crate) async fn drain_worker(
    State(app): State<App>,
    who: Who,
    NameOrId(worker): NameOrId,
) -> Result<Json<Worker>, ApiError> {
    Ok(Json(app.coordinator.drain_worker(&who.caller, &worker).await?.into()))
}

/// Lets a worker take work again: ends draining and quarantine.
#[utoipa::path(
    post,
    path = "/workers/{name_or_id}/reactivate",
    tag = "workers",
    params(("name_or_id" = String, Path, description = "The worker's name or id.")),
    responses((status = 200, description = "The worker.", body = Worker)),
)]
pub(crate) async fn reactivate_worker(
    State(app): State<App>,
    who: Who,
    NameOrId(worker): NameOrId,
) -> Result<Json<Worker>, ApiError> {
    Ok(Json(app.coordinator.reactivate_worker(&who.caller, &worker).await?.into()))
}

/// Asks a worker to replace its signing key; it does so once nothing depends on the old one.
#[utoipa::path(
    post,
    path = "/workers/{name_or_id}/rotate-key",
    tag = "workers",
    params(("name_or_id" = String, Path, description = "The worker's name or id.")),
    responses((status = 200, description = "The worker.", body = Worker)),
)]
pub(crate) async fn rotate_worker_key(
    State(app): State<App>,
    who: Who,
    NameOrId(worker): NameOrId,
) -> Result<Json<Worker>, ApiError> {
    Ok(Json(app.coordinator.rotate_worker_key(&who.caller, &worker).await?.into()))
}

/// Disconnects a worker whose keys may be in the wrong hands: they count for nothing any more, also for attempts that
/// are pinned to them. What they sign is kept as evidence.
#[utoipa::path(
    post,
    path = "/workers/{name_or_id}/distrust",
    tag = "workers",
    params(("name_or_id" = String, Path, description = "The worker's name or id.")),
    responses((status = 200, description = "The worker.", body = Worker)),
)]
pub(crate) async fn distrust_worker(
    State(app): State<App>,
    who: Who,
    NameOrId(worker): NameOrId,
) -> Result<Json<Worker>, ApiError> {
    Ok(Json(app.coordinator.distrust_worker(&who.caller, &worker).await?.into()))
}

/// Kills a worker's credential at once. Its keys stay valid for outcomes of attempts pinned to them.
#[utoipa::path(
    post,
    path = "/workers/{name_or_id}/disconnect",
    tag = "workers",
    params(("name_or_id" = String, Path, description = "The worker's name or id.")),
    responses((status = 200, description = "The worker.", body = Worker)),
)]
pub(crate) async fn disconnect_worker(
    State(app): State<App>,
    who: Who,
    NameOrId(worker): NameOrId,
) -> Result<Json<Worker>, ApiError> {
    Ok(Json(app.coordinator.disconnect_worker(&who.caller, &worker).await?.into()))
}

/// Accepts that the store has lost the attempts which this worker names and the store does not know. Fences go on above
/// them, and scheduling goes on.
#[utoipa::path(
    post,
    path = "/workers/{name_or_id}/accept-loss",
    tag = "workers",
    params(("name_or_id" = String, Path, description = "The worker's name or id.")),
    request_body = AcceptLoss,
    responses((status = 200, description = "The worker.", body = Worker)),
)]
pub(crate) async fn accept_loss(
    State(app): State<App>,
    who: Who,
    NameOrId(worker): NameOrId,
    JsonBody(accept): JsonBody<AcceptLoss>,
) -> Result<Json<Worker>, ApiError> {
    Ok(Json(app.coordinator.accept_loss(&who.caller, &worker, &accept.reason).await?.into()))
}
