//! Logs.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use forgeplane_core::id::RunId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::App;
use crate::api::{LogFrame, LogSlice};
use crate::auth::Who;
use crate::envelope::RequestId;
use crate::error::ApiError;
use crate::extract::{IdPath, QueryOf, last_event_id};
use crate::follow::{self, Follower};

/// About how much log a slice has, bytes.
const SLICE: usize = 1 << 20;

/// Which part of a log, and whether to stay.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogQuery {
    /// The attempt's number; the newest unless given.
    attempt: Option<u32>,
    /// From this byte on; from the beginning unless given.
    from: Option<u64>,
    /// Answer as `/log/stream` does.
    follow: Option<bool>,
}

/// Reads a part of a run's log, about a mebibyte at most.
#[utoipa::path(
    get,
    path = "/runs/{id}/log",
    tag = "runs",
    params(("id" = String, Path, description = "The run's id."), LogQuery),
    responses((status = 200, description = "A part of the log.", body = LogSlice)),
)]
pub(crate) async fn read_log(
    State(app): State<App>,
    who: Who,
    request_id: Extension<RequestId>,
    headers: HeaderMap,
    IdPath(id): IdPath<RunId>,
    QueryOf(query): QueryOf<LogQuery>,
) -> Result<Response, ApiError> {
    if query.follow == Some(true) {
        let place = Place { run: id, attempt: query.attempt, from: query.from };
        return Ok(stream(app, who, request_id, &headers, place).await?.into_response());
    }
    let from = query.from.unwrap_or(0);
    let slice = app.coordinator.log(&who.caller, id, query.attempt, from, SLICE).await?;
    Ok(Json(LogSlice::new(slice, from)).into_response())
}

/// From where to follow a log.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogStreamQuery {
    /// The attempt's number; the newest unless given.
    attempt: Option<u32>,
    /// From this byte on; from the beginning unless given.
    from: Option<u64>,
}

/// Follows a run's log as server-sent events: one named `log` for each frame, whose `id:` is the offset
/// just after it, and one named `end` when the attempt is over and everything was sent. Waits while the run
/// has no attempt yet. A stream that cannot go on ends with an event named `problem`.
#[utoipa::path(
    get,
    path = "/runs/{id}/log/stream",
    tag = "runs",
    params(
        ("id" = String, Path, description = "The run's id."),
        LogStreamQuery,
        ("last-event-id" = Option<u64>, Header, description = "Resume at this offset; goes before `from`. Give `attempt` too."),
    ),
    responses((status = 200, description = "A stream of `LogFrame`s and a `LogEnd`.", body = LogFrame, content_type = "text/event-stream")),
)]
pub(crate) async fn follow_log(
    State(app): State<App>,
    who: Who,
    request_id: Extension<RequestId>,
    headers: HeaderMap,
    IdPath(id): IdPath<RunId>,
    QueryOf(query): QueryOf<LogStreamQuery>,
) -> Result<impl IntoResponse, ApiError> {
    stream(app, who, request_id, &headers, Place { run: id, attempt: query.attempt, from: query.from }).await
}

struct Place {
    run: RunId,
    attempt: Option<u32>,
    from: Option<u64>,
}

async fn stream(
    app: App,
    who: Who,
    Extension(RequestId(request_id)): Extension<RequestId>,
    headers: &HeaderMap,
    place: Place,
) -> Result<impl IntoResponse + use<>, ApiError> {
    let Place { run, attempt, from } = place;
    let from = last_event_id(headers)?.or(from).unwrap_or(0);
    // A refusal is answered as such, before the stream begins.
    app.coordinator.log(&who.caller, run, attempt, from, 1).await?;
    Ok(follow::logs(Follower::new(app, who, request_id), run, attempt, from))
}
