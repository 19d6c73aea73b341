//! Serving on a listener until told to stop.

use std::time::Duration;

use axum::Router;
use forgeplane_core::coordinator::Coordinator;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::accept::next_connection;

/// How long requests in flight may take after shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(10);
/// How long the head of a request may take to arrive. An idle connection is closed after as long.
const HEAD: Duration = Duration::from_secs(30);

/// Serves the API on `listener` until `shutdown` is cancelled; then takes no new connections, ends streams,
/// and lets requests in flight finish for up to ten seconds.
///
/// # Errors
/// When the listener has no address.
pub async fn serve(
    listener: TcpListener,
    coordinator: Coordinator,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    listener.local_addr()?;
    let router = crate::router_until(coordinator, shutdown.clone());
    let connections = GracefulShutdown::new();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            tcp = next_connection(&listener) => attend(tcp, router.clone(), &connections),
        }
    }
    drop(listener);
    if tokio::time::timeout(DRAIN, connections.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time and were left behind");
    }
    Ok(())
}

/// Answers the requests of one connection.
fn attend(tcp: TcpStream, router: Router, connections: &GracefulShutdown) {
    // Events and log lines are small and are waited for.
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%error, "a connection may be slow");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(tcp), TowerToHyperService::new(router));
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the HTTP API ended early");
        }
    });
}
