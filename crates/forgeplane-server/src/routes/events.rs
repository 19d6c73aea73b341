//! Events.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use forgeplane_core::id::RunId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::App;
use crate::api::{Event, Page, PageQuery};
use crate::auth::Who;
use crate::envelope::RequestId;
use crate::error::ApiError;
use crate::extract::{IdPath, QueryOf, last_event_id};
use crate::follow::{self, Follower};
use crate::pages::window;

/// Lists the project's events, oldest first. The cursor is an event's `seq`.
#[utoipa::path(
    get,
    path = "/events",
    tag = "events",
    params(PageQuery),
    responses((status = 200, description = "A page of events.", body = Page<Event>)),
)]
pub(crate) async fn list_events(
    State(app): State<App>,
    who: Who,
    QueryOf(query): QueryOf<PageQuery>,
) -> Result<Json<Page<Event>>, ApiError> {
    page(&app, &who, None, query).await
}

/// Lists the events of a run, oldest first. The cursor is an event's `seq`.
#[utoipa::path(
    get,
    path = "/runs/{id}/events",
    tag = "runs",
    params(("id" = String, Path, description = "The run's id."), PageQuery),
    responses((status = 200, description = "A page of the run's events.", body = Page<Event>)),
)]
pub(crate) async fn list_run_events(
    State(app): State<App>,
    who: Who,
    IdPath(id): IdPath<RunId>,
    QueryOf(query): QueryOf<PageQuery>,
) -> Result<Json<Page<Event>>, ApiError> {
    page(&app, &who, Some(id), query).await
}

async fn page(
    app: &App,
    who: &Who,
    run: Option<RunId>,
    query: PageQuery,
) -> Result<Json<Page<Event>>, ApiError> {
    let window = window::<u64>(query.after, query.limit)?;
    let after = window.after.unwrap_or(0);
    let found = app.coordinator.events(&who.caller, run, after, window.fetch()).await?;
    Ok(window.cut(found, |e| e.seq.to_string()))
}

/// From where to follow.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AfterQuery {
    /// Only events after this `seq`; all unless given.
    after: Option<u64>,
}

/// Follows the project's events as server-sent events named `event`, whose `id:` is the event's `seq`.
/// A stream that cannot go on ends with an event named `problem`.
#[utoipa::path(
    get,
    path = "/events/stream",
    tag = "events",
    params(AfterQuery, ("last-event-id" = Option<u64>, Header, description = "Resume after this `seq`; goes before `after`.")),
    responses((status = 200, description = "A stream of `Event`s.", body = Event, content_type = "text/event-stream")),
)]
pub(crate) async fn follow_events(
    State(app): State<App>,
    who: Who,
    Extension(RequestId(request_id)): Extension<RequestId>,
    headers: HeaderMap,
    QueryOf(query): QueryOf<AfterQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let after = last_event_id(&headers)?.or(query.after).unwrap_or(0);
    // A refusal is answered as such, before the stream begins.
    app.coordinator.events(&who.caller, None, after, 1).await?;
    Ok(follow::events(Follower::new(app, who, request_id), after))
}
