//! The listener for operators' tools: `/healthz`, `/readyz`, `/metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Metrics that cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[error("metrics cannot be recorded: {0}")]
pub struct MetricsError(#[from] BuildError);

/// The recorder of this process.
#[derive(Clone)]
pub struct Metrics {
    handle: PrometheusHandle,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Upper bounds of durations, seconds.
const SECONDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Upper bounds of numbers of things.
const COUNTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

impl Metrics {
    /// Begins to record every metric of this process.
    ///
    /// # Errors
    /// When something else records already.
    pub fn install() -> Result<Self, MetricsError> {
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS)?
            .set_buckets_for_metric(Matcher::Suffix("_size".into()), COUNTS)?
            .install_recorder()?;
        Ok(Self { handle })
    }
}

/// Whether the process can do its work now.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Says whether it can.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::SeqCst);
    }
}

#[derive(Clone)]
struct Told {
    metrics: Metrics,
    readiness: Readiness,
}

/// Serves the probes until `shutdown` is cancelled. They need no credential and tell nothing of any project, but belong
/// on a loopback or cluster-internal address.
///
/// # Errors
/// When the listener fails.
pub async fn serve_probes(
    listener: TcpListener,
    metrics: Metrics,
    readiness: Readiness,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render))
        .with_state(Told { metrics, readiness });
    axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await
}

async fn ready(State(told): State<Told>) -> impl IntoResponse {
    if told.readiness.0.load(Ordering::SeqCst) {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

async fn render(State(told): State<Told>) -> impl IntoResponse {
    told.metrics.handle.run_upkeep();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], told.metrics.handle.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn probes_tell_liveness_readiness_and_metrics() {
        let metrics = Metrics::install().unwrap();
        let readiness = Readiness::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(serve_probes(listener, metrics, readiness.clone(), shutdown.clone()));
        metrics::counter!("forgeplane_test_total", "kind" => "x").increment(3);
        metrics::histogram!("forgeplane_test_seconds").record(0.004);

        let read = async |path: &str| {
            let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        };
        assert_eq!(read("/healthz").await.0, 200);
        assert_eq!(read("/readyz").await.0, 503);
        readiness.set(true);
        assert_eq!(read("/readyz").await.0, 200);
        let (status, text) = read("/metrics").await;
        assert_eq!(status, 200);
        assert!(text.contains("forgeplane_test_total{kind=\"x\"} 3"), "{text}");
        assert!(text.contains("forgeplane_test_seconds_bucket{le=\"0.005\"} 1"), "{text}");
        shutdown.cancel();
        serving.await.unwrap().unwrap();
    }
}
