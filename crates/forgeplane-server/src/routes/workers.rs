//! Workers.

use axum::Json;
use axum::extract::State;

use crate::App;
use crate::api::{Page, Worker, WorkerDetail};
use crate::auth::Who;
use crate::error::ApiError;
use crate::extract::NameOrId;
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
