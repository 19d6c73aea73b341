//! Running until told to stop.

use std::time::Duration;

use forgeplane_core::coordinator::Coordinator;
use forgeplane_process::{Failure, Metrics, Readiness, serve_probes};
use forgeplane_server::workers::{Tls, WorkerService, serve_workers};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::assemble;
use crate::config::Config;

/// How often readiness and the figures of the installation are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Serves until SIGTERM or SIGINT; then ends streams, lets requests in flight finish, and ends the loops.
pub async fn serve(config: Config) -> Result<(), Failure> {
    forgeplane_process::init_logs(config.log.format, &config.log.filter);
    if !config.api.listen.ip().is_loopback() && !config.api.unsafe_plaintext {
        return Err(Failure::new(
            "plaintext_refused",
            format!("{} is not a loopback address and the HTTP API is not encrypted", config.api.listen),
        )
        .way_out(
            "listen on loopback behind a proxy that encrypts, or accept it with `api.unsafe_plaintext`",
        ));
    }
    let tls = assemble::tls(&config.workers)?;
    let metrics = Metrics::install().map_err(|e| Failure::new("metrics_unavailable", e.to_string()))?;
    let stop = CancellationToken::new();
    end_on_signal(stop.clone())?;
    let api = listen("api.listen", config.api.listen).await?;
    let workers = listen("workers.listen", config.workers.listen).await?;
    let readiness = Readiness::default();
    let probes_stop = CancellationToken::new();
    let mut probes = JoinSet::new();
    if let Some(address) = config.probes.listen {
        let listener = listen("probes.listen", address).await?;
        probes.spawn(serve_probes(listener, metrics, readiness.clone(), probes_stop.clone()));
    }
    let coordinator = assemble::coordinator(&config).await?;
    println!("api: http://{}", api.local_addr().map_err(listener_failed)?);
    println!("workers: {}", url(&tls, &workers)?);
    let loops = coordinator.start();
    let looking = tokio::spawn(look(coordinator.clone(), readiness.clone(), stop.clone()));

    let renewing = match &tls {
        Tls::Server(certificates) => {
            Some(tokio::spawn(assemble::renew(certificates.clone(), config.workers.clone())))
        }
        Tls::Plaintext { .. } => None,
    };

    let mut faces = JoinSet::new();
    let http = forgeplane_server::serve(api, coordinator.clone(), stop.clone());
    faces.spawn(async move { http.await.map_err(listener_failed) });
    let service = WorkerService::new(&coordinator, stop.child_token());
    let grpc_stop = stop.clone();
    faces.spawn(async move {
        serve_workers(workers, service, &tls, grpc_stop)
            .await
            .map_err(|e| Failure::new(e.code(), e.to_string()))
    });
    let mut result = Ok(());
    while let Some(ended) = faces.join_next().await {
        // One that fails ends the process: half a coordinator is none.
        stop.cancel();
        result = result.and(ended.unwrap_or_else(|e| Err(Failure::new("face_failed", e.to_string()))));
    }
    readiness.set(false);
    loops.stop().await;
    looking.abort();
    if let Some(renewing) = renewing {
        renewing.abort();
    }
    probes_stop.cancel();
    while probes.join_next().await.is_some() {}
    result
}

fn listener_failed(error: std::io::Error) -> Failure {
    Failure::new("listener_failed", error.to_string())
}

async fn listen(name: &str, address: std::net::SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|e| {
        Failure::new("address_unavailable", format!("`{name}`: cannot listen on {address}: {e}"))
            .way_out("end the other process, or choose another address")
    })
}

fn url(tls: &Tls, listener: &TcpListener) -> Result<String, Failure> {
    let scheme = if matches!(tls, Tls::Server(_)) { "https" } else { "http" };
    Ok(format!("{scheme}://{}", listener.local_addr().map_err(listener_failed)?))
}

/// Looks again and again whether the store answers, and how much there is to do.
async fn look(coordinator: Coordinator, readiness: Readiness, stop: CancellationToken) {
    loop {
        let ready = coordinator.ready().await.is_ok();
        readiness.set(ready && !stop.is_cancelled());
        metrics::gauge!("forgeplane_ready").set(if ready { 1.0 } else { 0.0 });
        match coordinator.figures().await {
            Ok(figures) => {
                for (status, count) in figures.workers {
                    metrics::gauge!("forgeplane_workers", "status" => status).set(count as f64);
                }
                for (state, count) in figures.attempts {
                    metrics::gauge!("forgeplane_open_attempts", "state" => state).set(count as f64);
                }
                metrics::gauge!("forgeplane_queued_runs").set(figures.queued as f64);
            }
            Err(error) => tracing::debug!(%error, "the figures of the installation cannot be read"),
        }
        tokio::select! {
            () = stop.cancelled() => { readiness.set(false); return }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

fn end_on_signal(stop: CancellationToken) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::new("signals_unavailable", e.to_string());
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("stopping");
        stop.cancel();
    });
    Ok(())
}
