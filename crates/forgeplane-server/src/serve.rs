//! Serving on a listener until told to stop.

use std::future::IntoFuture as _;
use std::time::Duration;

use forgeplane_core::coordinator::Coordinator;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long requests in flight may take after shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(10);

/// Serves the API on `listener` until `shutdown` is cancelled; then takes no new connections, ends streams,
/// and lets requests in flight finish for up to ten seconds.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    coordinator: Coordinator,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let router = crate::router_until(coordinator, shutdown.clone());
    let server = axum::serve(listener, router).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let too_long = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        result = server.into_future() => result,
        () = too_long => {
            tracing::warn!("some requests did not finish in time and were left behind");
            Ok(())
        }
    }
}
