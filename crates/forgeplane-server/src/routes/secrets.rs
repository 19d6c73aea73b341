//! The secret catalog.

use axum::Json;
use axum::extract::State;
use forgeplane_core::id::SecretId;

use crate::App;
use crate::api::{Page, PageQuery, PutSecret, Secret};
use crate::auth::Who;
use crate::error::ApiError;
use crate::extract::{JsonBody, NamePath, QueryOf};
use crate::pages::window;

/// Stores a new version of a secret and sets which instances may use it. The value is never returned.
#[utoipa::path(
    put,
    path = "/secrets/{name}",
    tag = "secrets",
    params(("name" = String, Path, description = "The secret's name.")),
    request_body = PutSecret,
    responses((status = 200, description = "The secret, without its value.", body = Secret)),
)]
pub(crate) async fn put_secret(
    State(app): State<App>,
    who: Who,
    NamePath(name): NamePath,
    JsonBody(put): JsonBody<PutSecret>,
) -> Result<Json<Secret>, ApiError> {
    let PutSecret { value, approved_for } = put;
    Ok(Json(app.coordinator.put_secret(&who.caller, &name, value.secret(), approved_for).await?.into()))
}

/// Lists the project's secrets, oldest first: names and versions, never values.
#[utoipa::path(
    get,
    path = "/secrets",
    tag = "secrets",
    params(PageQuery),
    responses((status = 200, description = "A page of secrets.", body = Page<Secret>)),
)]
pub(crate) async fn list_secrets(
    State(app): State<App>,
    who: Who,
    QueryOf(query): QueryOf<PageQuery>,
) -> Result<Json<Page<Secret>>, ApiError> {
    let window = window::<SecretId>(query.after, query.limit)?;
    let found = app.coordinator.secrets(&who.caller, &window.page()).await?;
    Ok(window.cut(found, |s| s.id.to_string()))
}
