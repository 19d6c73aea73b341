//! Runs and what may be asked of them.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use forgeplane_core::id::RunId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::App;
use crate::api::{Explanation, NewRun, Page, Reason, Run, RunDetail, RunStatus};
use crate::auth::Who;
use crate::error::ApiError;
use crate::extract::{IdPath, JsonBody, OptionalBody, QueryOf};
use crate::pages::window;

/// Admits a run. With an `Idempotency-Key`, the same request sent again answers with the same run.
#[utoipa::path(
    post,
    path = "/runs",
    tag = "runs",
    params(("idempotency-key" = Option<String>, Header, description = "1 to 128 visible ASCII characters without `/`.")),
    request_body = NewRun,
    responses((status = 201, description = "The run was admitted.", body = Run)),
)]
pub(crate) async fn create_run(
    State(app): State<App>,
    who: Who,
    headers: HeaderMap,
    JsonBody(new): JsonBody<NewRun>,
) -> Result<(StatusCode, Json<Run>), ApiError> {
    let key = idempotency_key(&headers)?;
    let run = app.coordinator.create_run(&who.caller, new.into_command(key)?).await?;
    Ok((StatusCode::CREATED, Json(run.into())))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all("idempotency-key").iter();
    let unreadable =
        || ApiError::field("idempotency-key", "one idempotency key of visible ASCII characters is expected");
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(key), None) => key.to_str().map(|key| Some(key.to_owned())).map_err(|_| unreadable()),
        (Some(_), Some(_)) => Err(unreadable()),
    }
}

/// Which runs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunsQuery {
    /// Only runs with this status.
    #[param(inline)]
    status: Option<RunStatus>,
    /// Only runs of this instance, by name or id.
    instance: Option<String>,
    /// `next` of the page before.
    after: Option<String>,
    /// At most this many runs: 1 to 200, 50 unless given.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// Lists the project's runs, newest first.
#[utoipa::path(
    get,
    path = "/runs",
    tag = "runs",
    params(RunsQuery),
    responses((status = 200, description = "A page of runs.", body = Page<Run>)),
)]
pub(crate) async fn list_runs(
    State(app): State<App>,
    who: Who,
    QueryOf(query): QueryOf<RunsQuery>,
) -> Result<Json<Page<Run>>, ApiError> {
    let window = window::<RunId>(query.after, query.limit)?;
    let instance = match &query.instance {
        None => None,
        Some(name) => Some(app.coordinator.instance(&who.caller, name).await?.instance.id),
    };
    let status = query.status.map(Into::into);
    let found = app.coordinator.runs(&who.caller, status, instance, &window.page()).await?;
    Ok(window.cut(found, |r| r.id.to_string()))
}

/// Shows a run with its frozen context, attempts, approval and plan.
#[utoipa::path(
    get,
    path = "/runs/{id}",
    tag = "runs",
    params(("id" = String, Path, description = "The run's id.")),
    responses((status = 200, description = "The run.", body = RunDetail)),
)]
pub(crate) async fn get_run(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<RunId>,
) -> Result<Json<RunDetail>, ApiError> {
    Ok(Json(app.coordinator.run(&who.caller, id).await?.into()))
}

/// Cancels a run: at once while no worker has claimed it, by asking the worker to stop after that.
#[utoipa::path(
    post,
    path = "/runs/{id}/cancel",
    tag = "runs",
    params(("id" = String, Path, description = "The run's id.")),
    request_body(content = Option<Reason>),
    responses((status = 200, description = "The run, `canceled` or `canceling`.", body = Run)),
)]
pub(crate) async fn cancel_run(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<RunId>,
    OptionalBody(why): OptionalBody<Reason>,
) -> Result<Json<Run>, ApiError> {
    Ok(Json(app.coordinator.cancel(&who.caller, id, why.reason).await?.into()))
}

/// Puts a run that did not succeed back into the queue, under the same id and with the same context.
#[utoipa::path(
    post,
    path = "/runs/{id}/requeue",
    tag = "runs",
    params(("id" = String, Path, description = "The run's id.")),
    responses((status = 200, description = "The run, `queued`.", body = Run)),
)]
pub(crate) async fn requeue_run(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<RunId>,
) -> Result<Json<Run>, ApiError> {
    Ok(Json(app.coordinator.requeue(&who.caller, id).await?.into()))
}

/// Makes a new `apply` run out of a succeeded plan.
#[utoipa::path(
    post,
    path = "/runs/{id}/promote",
    tag = "runs",
    params(("id" = String, Path, description = "The plan run's id.")),
    responses((status = 201, description = "The new run.", body = Run)),
)]
pub(crate) async fn promote_run(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<RunId>,
) -> Result<(StatusCode, Json<Run>), ApiError> {
    Ok((StatusCode::CREATED, Json(app.coordinator.promote(&who.caller, id).await?.into())))
}

/// Says why a run is where it is and what may be asked of it.
#[utoipa::path(
    get,
    path = "/runs/{id}/explain",
    tag = "runs",
    params(("id" = String, Path, description = "The run's id.")),
    responses((status = 200, description = "Why.", body = Explanation)),
)]
pub(crate) async fn explain_run(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<RunId>,
) -> Result<Json<Explanation>, ApiError> {
    Ok(Json(app.coordinator.explain(&who.caller, id).await?.into()))
}
