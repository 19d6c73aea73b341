//! Instances.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use forgeplane_core::id::InstanceId;

use crate::App;
use crate::api::{Instance, NewInstance, Output, Page, PageQuery};
use crate::auth::Who;
use crate::error::ApiError;
use crate::extract::{JsonBody, NameOrId, QueryOf};
use crate::pages::{whole, window};

/// Creates an instance.
#[utoipa::path(
    post,
    path = "/instances",
    tag = "instances",
    request_body = NewInstance,
    responses((status = 201, description = "The instance was created.", body = Instance)),
)]
pub(crate) async fn create_instance(
    State(app): State<App>,
    who: Who,
    JsonBody(new): JsonBody<NewInstance>,
) -> Result<(StatusCode, Json<Instance>), ApiError> {
    let view = app.coordinator.create_instance(&who.caller, new.into()).await?;
    Ok((StatusCode::CREATED, Json(view.into())))
}

/// Lists the project's instances, oldest first.
#[utoipa::path(
    get,
    path = "/instances",
    tag = "instances",
    params(PageQuery),
    responses((status = 200, description = "A page of instances.", body = Page<Instance>)),
)]
pub(crate) async fn list_instances(
    State(app): State<App>,
    who: Who,
    QueryOf(query): QueryOf<PageQuery>,
) -> Result<Json<Page<Instance>>, ApiError> {
    let window = window::<InstanceId>(query.after, query.limit)?;
    let found = app.coordinator.instances(&who.caller, &window.page()).await?;
    Ok(window.cut(found, |i| i.instance.id.to_string()))
}

/// Shows an instance and the head of its managed state.
#[utoipa::path(
    get,
    path = "/instances/{name_or_id}",
    tag = "instances",
    params(("name_or_id" = String, Path, description = "The instance's name or id.")),
    responses((status = 200, description = "The instance.", body = Instance)),
)]
pub(crate) async fn get_instance(
    State(app): State<App>,
    who: Who,
    NameOrId(instance): NameOrId,
) -> Result<Json<Instance>, ApiError> {
    Ok(Json(app.coordinator.instance(&who.caller, &instance).await?.into()))
}

/// Shows the outputs of an instance's current state; sensitive values are left out.
#[utoipa::path(
    get,
    path = "/instances/{name_or_id}/outputs",
    tag = "instances",
    params(("name_or_id" = String, Path, description = "The instance's name or id.")),
    responses((status = 200, description = "All outputs.", body = Page<Output>)),
)]
pub(crate) async fn get_outputs(
    State(app): State<App>,
    who: Who,
    NameOrId(instance): NameOrId,
) -> Result<Json<Page<Output>>, ApiError> {
    Ok(whole(app.coordinator.outputs(&who.caller, &instance).await?))
}
