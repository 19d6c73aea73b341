//! The faces of a coordinator. The HTTP API: every command and query of a [`Coordinator`] as JSON, live logs and events
//! as server-sent events, and an OpenAPI document made from the same types and routes.
//!
//! | module | holds |
//! | --- | --- |
//! | [`api`] | what travels: requests, responses, pages, [`Problem`](api::Problem)s; also for clients in Rust |
//! | [`openapi`] | the OpenAPI document, checked in as `openapi.json` |
//! | [`workers`] | the gRPC API for workers |
//!
//! The face decides nothing. It reads a request strictly (a field nobody knows is refused), finds out who
//! calls, hands a command to the coordinator and says in HTTP what came of it. Every error is
//! `application/problem+json` with the coordinator's stable code.
//!
//! Mount [`router`] in a service of your own, or run [`serve`]:
//!
//! ```
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! use forgeplane_core::coordinator::Coordinator;
//! use forgeplane_core::memory::{MemoryBlobs, MemoryQueue, MemoryStore};
//! use forgeplane_core::ports::StaticKey;
//! use tokio_util::sync::CancellationToken;
//!
//! let coordinator = Coordinator::builder()
//!     .store(MemoryStore::default())
//!     .queue(MemoryQueue::default())
//!     .blobs(MemoryBlobs::default())
//!     .keys(StaticKey::new("k1", [7; 32]))
//!     .signing_key([9; 32])
//!     .build()
//!     .await
//!     .unwrap();
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
//! let shutdown = CancellationToken::new();
//! let server = tokio::spawn(forgeplane_server::serve(listener, coordinator, shutdown.clone()));
//! shutdown.cancel();
//! server.await.unwrap().unwrap();
//! # });
//! ```
#![forbid(unsafe_code)]

mod accept;
pub mod api;
mod auth;
mod envelope;
mod error;
mod extract;
mod follow;
pub mod openapi;
mod pages;
mod routes;
mod serve;
pub mod workers;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use forgeplane_core::coordinator::Coordinator;
use tokio_util::sync::CancellationToken;

pub use serve::serve;

use error::{ApiError, code};

/// Where the API's routes begin.
pub const PREFIX: &str = "/api/v1";

/// Room in a body for what is around the inputs or the source, bytes.
const BODY_SLACK: usize = 2 << 20;

/// What every handler has.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) coordinator: Coordinator,
    /// Ends streams; everything else ends by itself.
    pub(crate) shutdown: CancellationToken,
}

/// The whole API as a router: routes under [`PREFIX`], and `/healthz` and `/readyz` beside it.
///
/// Streams last as long as their client; use [`router_until`] to end them on shutdown.
pub fn router(coordinator: Coordinator) -> Router {
    router_until(coordinator, CancellationToken::new())
}

/// As [`router`]; streams end when `shutdown` is cancelled.
pub fn router_until(coordinator: Coordinator, shutdown: CancellationToken) -> Router {
    let settings = coordinator.settings();
    let json_limit = settings.max_input_bytes + BODY_SLACK;
    let source_limit = settings.max_source_bytes + BODY_SLACK;
    let app = App { coordinator, shutdown };
    let (guarded, _) = routes::guarded(source_limit).split_for_parts();
    let (open, _) = routes::open().split_for_parts();
    guarded
        .route_layer(from_fn_with_state(app.clone(), auth::authenticate))
        .merge(open)
        .fallback(unknown_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(json_limit))
        .layer(from_fn(envelope::envelope))
        .with_state(app)
}

async fn unknown_route() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, code::UNKNOWN_ROUTE, "there is no such route")
        .way_out("the routes are described in /api/v1/openapi.json")
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        code::METHOD_NOT_ALLOWED,
        "this route does not know this method",
    )
    .way_out("the methods of a route are in the `Allow` header and in /api/v1/openapi.json")
}
