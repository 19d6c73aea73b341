//! Liveness, readiness and the OpenAPI document: what needs no token.

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::error::ApiError;

/// That it lives, or is ready.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`.
    status: &'static str,
}

/// Says that the process lives.
#[utoipa::path(get, path = "/healthz", tag = "probes", security(()), responses((status = 200, description = "It lives.", body = Health)))]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Says whether requests can be served: whether the store answers.
#[utoipa::path(get, path = "/readyz", tag = "probes", security(()), responses((status = 200, description = "The store answers.", body = Health)))]
pub(crate) async fn readyz(State(app): State<App>) -> Result<Json<Health>, ApiError> {
    app.coordinator.ready().await?;
    Ok(Json(Health { status: "ok" }))
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "probes", security(()), responses((status = 200, description = "The OpenAPI document.", body = Object)))]
pub(crate) async fn get_openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], crate::openapi::json())
}
