//! Approvals.

use axum::Json;
use axum::extract::State;
use forgeplane_core::id::ApprovalId;
use forgeplane_core::model::Verdict;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::App;
use crate::api::{Approval, ApprovalStatus, Page, Reason};
use crate::auth::Who;
use crate::error::ApiError;
use crate::extract::{IdPath, OptionalBody, QueryOf};
use crate::pages::window;

/// Which approvals.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ApprovalsQuery {
    /// Only records with this status.
    #[param(inline)]
    status: Option<ApprovalStatus>,
    /// `next` of the page before.
    after: Option<String>,
    /// At most this many records: 1 to 200, 50 unless given.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// Lists the project's approval records, newest first.
#[utoipa::path(
    get,
    path = "/approvals",
    tag = "approvals",
    params(ApprovalsQuery),
    responses((status = 200, description = "A page of approval records.", body = Page<Approval>)),
)]
pub(crate) async fn list_approvals(
    State(app): State<App>,
    who: Who,
    QueryOf(query): QueryOf<ApprovalsQuery>,
) -> Result<Json<Page<Approval>>, ApiError> {
    let window = window::<ApprovalId>(query.after, query.limit)?;
    let status = query.status.map(Into::into);
    let found = app.coordinator.approvals(&who.caller, status, &window.page()).await?;
    Ok(window.cut(found, |a| a.id.to_string()))
}

/// Shows an approval record.
#[utoipa::path(
    get,
    path = "/approvals/{id}",
    tag = "approvals",
    params(("id" = String, Path, description = "The approval's id.")),
    responses((status = 200, description = "The record.", body = Approval)),
)]
pub(crate) async fn get_approval(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<ApprovalId>,
) -> Result<Json<Approval>, ApiError> {
    Ok(Json(app.coordinator.approval(&who.caller, id).await?.into()))
}

/// Approves; with enough approvals the run is queued.
#[utoipa::path(
    post,
    path = "/approvals/{id}/approve",
    tag = "approvals",
    params(("id" = String, Path, description = "The approval's id.")),
    request_body(content = Option<Reason>),
    responses((status = 200, description = "The record.", body = Approval)),
)]
pub(crate) async fn approve(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<ApprovalId>,
    OptionalBody(why): OptionalBody<Reason>,
) -> Result<Json<Approval>, ApiError> {
    Ok(Json(app.coordinator.review(&who.caller, id, Verdict::Approve, why.reason).await?.into()))
}

/// Rejects; one rejection cancels the run.
#[utoipa::path(
    post,
    path = "/approvals/{id}/reject",
    tag = "approvals",
    params(("id" = String, Path, description = "The approval's id.")),
    request_body(content = Option<Reason>),
    responses((status = 200, description = "The record.", body = Approval)),
)]
pub(crate) async fn reject(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<ApprovalId>,
    OptionalBody(why): OptionalBody<Reason>,
) -> Result<Json<Approval>, ApiError> {
    Ok(Json(app.coordinator.review(&who.caller, id, Verdict::Reject, why.reason).await?.into()))
}
