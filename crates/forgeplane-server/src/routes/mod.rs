//! The routes: read the request, ask the coordinator, answer.
// The macro that describes a route writes the paths of parameter types out.
#![allow(unused_qualifications)]

mod approvals;
mod attempts;
mod events;
mod instances;
mod logs;
mod plans;
mod probes;
mod runs;
mod secrets;
mod state;
mod templates;
mod tokens;
mod workers;

use axum::extract::DefaultBodyLimit;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::{App, PREFIX, api};

/// Types the document names that no handler's signature mentions.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(api::Problem, api::LogFrame, api::LogEnd)))]
struct MoreTypes;

/// Routes that need a token. `source_limit` bounds a template upload, bytes.
pub(crate) fn guarded(source_limit: usize) -> OpenApiRouter<App> {
    let uploads = OpenApiRouter::new()
        .routes(routes!(templates::push_template, templates::list_templates))
        .layer(DefaultBodyLimit::max(source_limit));
    let api = OpenApiRouter::with_openapi(MoreTypes::openapi())
        .merge(uploads)
        .routes(routes!(templates::get_template))
        .routes(routes!(instances::create_instance, instances::list_instances))
        .routes(routes!(instances::get_instance))
        .routes(routes!(instances::get_outputs))
        .routes(routes!(state::pull_state))
        .routes(routes!(state::list_state_generations))
        .routes(routes!(state::list_orphan_states))
        .routes(routes!(runs::create_run, runs::list_runs))
        .routes(routes!(runs::get_run))
        .routes(routes!(runs::cancel_run))
        .routes(routes!(runs::requeue_run))
        .routes(routes!(runs::promote_run))
        .routes(routes!(runs::explain_run))
        .routes(routes!(events::list_run_events))
        .routes(routes!(logs::read_log))
        .routes(routes!(logs::follow_log))
        .routes(routes!(plans::get_plan_text))
        .routes(routes!(plans::get_plan_json))
        .routes(routes!(plans::get_evidence))
        .routes(routes!(attempts::list_attempts))
        .routes(routes!(attempts::get_attempt))
        .routes(routes!(attempts::resolve_attempt))
        .routes(routes!(attempts::confirm_resolution))
        .routes(routes!(attempts::submit_outcome))
        .routes(routes!(approvals::list_approvals))
        .routes(routes!(approvals::get_approval))
        .routes(routes!(approvals::approve))
        .routes(routes!(approvals::reject))
        .routes(routes!(workers::list_workers))
        .routes(routes!(workers::create_enrollment))
        .routes(routes!(workers::drain_worker))
        .routes(routes!(workers::reactivate_worker))
        .routes(routes!(workers::disconnect_worker))
        .routes(routes!(workers::rotate_worker_key))
        .routes(routes!(workers::distrust_worker))
        .routes(routes!(workers::accept_loss))
        .routes(routes!(events::list_events))
        .routes(routes!(events::follow_events))
        .routes(routes!(secrets::put_secret))
        .routes(routes!(secrets::list_secrets))
        .routes(routes!(tokens::create_token));
    OpenApiRouter::new().nest(PREFIX, api)
}

/// Routes for everybody.
pub(crate) fn open() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(probes::healthz))
        .routes(routes!(probes::readyz))
        .nest(PREFIX, OpenApiRouter::new().routes(routes!(probes::get_openapi)))
}
