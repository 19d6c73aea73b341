//! The Forgeplane worker: runs tools for coordinators that it reaches by gRPC, and through NATS if told so.
//!
//! SIGTERM or SIGINT drains: nothing new is taken, what runs goes on for `drain_timeout_s` and is then interrupted so
//! that it can save its state. A second signal interrupts at once.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its terminal")]

mod config;
mod nats;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use forgeplane_core::ports::JobQueue;
use forgeplane_process::{ConfigArgs, Failure, Metrics, Readiness, follow_files, serve_probes};
use forgeplane_proto::client::GrpcControlPlane;
use forgeplane_worker::{Shutdown, Worker, WorkerError};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use config::Config;
use nats::NatsJobs;

/// A Forgeplane worker: runs Terraform, OpenTofu and Ansible for coordinators
#[derive(Debug, Parser)]
#[command(name = "forgeplane-worker", version)]
struct Cli {
    #[command(flatten)]
    sources: ConfigArgs,
}

fn main() -> ExitCode {
    // The same executable is the sandbox helper; that must be decided before anything else.
    forgeplane_worker::sandbox::run_if_helper();
    forgeplane_process::start(run)
}

async fn run(cli: Cli) -> Result<(), Failure> {
    let sources = Config::sources(&cli.sources)?;
    if cli.sources.print_config {
        print!("{}", sources.print()?);
        return Ok(());
    }
    work(sources.extract()?).await
}

async fn work(config: Config) -> Result<(), Failure> {
    forgeplane_process::init_logs(config.log.format, &config.log.filter);
    let control =
        GrpcControlPlane::new(&config.connect()?).map_err(|e| Failure::new(e.code(), e.to_string()))?;
    let renewing = tokio::spawn(renew(config.clone(), control.clone()));
    let worker = config.worker()?;
    let [terraform, tofu] = config.terraform()?;
    let metrics = Metrics::install().map_err(|e| Failure::new("metrics_unavailable", e.to_string()))?;
    let readiness = Readiness::default();
    let probes_stop = CancellationToken::new();
    let mut probes = JoinSet::new();
    if let Some(address) = config.probes.listen {
        let listener = TcpListener::bind(address).await.map_err(|e| {
            Failure::new("address_unavailable", format!("`probes.listen`: cannot listen on {address}: {e}"))
        })?;
        probes.spawn(serve_probes(listener, metrics, readiness.clone(), probes_stop.clone()));
    }
    let shutdown = Shutdown::new();
    end_on_signals(shutdown.clone(), readiness.clone(), Duration::from_secs(config.drain_timeout_s))?;
    let queue: Arc<dyn JobQueue> = match config.nats {
        Some(options) => Arc::new(NatsJobs::new(options)),
        None => Arc::new(control.queue()),
    };
    let result = async {
        let worker = Worker::new(worker, control, queue).executor(terraform).executor(tofu);
        let started = match worker.start(shutdown.clone()).await {
            // Told to end before it could begin.
            Err(WorkerError::Control(_)) if shutdown.drain.is_cancelled() => return Ok(()),
            started => started?,
        };
        readiness.set(true);
        println!("ready");
        started.run().await
    };
    let result = result.await.map_err(|e: WorkerError| Failure::new(e.code(), e.to_string()));
    readiness.set(false);
    renewing.abort();
    probes_stop.cancel();
    while probes.join_next().await.is_some() {}
    result
}

/// Reads certificates anew when their files have changed; those that cannot be used are told of, and the former ones are
/// used on.
async fn renew(config: Config, control: GrpcControlPlane) {
    let it = &config.coordinator;
    let files = [&it.ca, &it.certificate, &it.key].into_iter().flatten().cloned().collect();
    let changed = || {
        let renewed = config.connect().map_err(|e| e.to_string());
        match renewed.and_then(|options| control.replace(&options).map_err(|e| e.to_string())) {
            Ok(()) => tracing::info!("coordinators are reached with the new certificates"),
            Err(error) => tracing::warn!(%error, "certificates have changed and cannot be used yet"),
        }
    };
    follow_files(files, changed).await;
}

fn end_on_signals(shutdown: Shutdown, readiness: Readiness, patience: Duration) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::new("signals_unavailable", e.to_string());
    let mut signals = Signals {
        interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        terminate: signal(SignalKind::terminate()).map_err(failed)?,
    };
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!(patience_s = patience.as_secs(), "draining: what runs may end, nothing new is taken");
        readiness.set(false);
        shutdown.drain.cancel();
        tokio::select! {
            () = signals.next() => tracing::info!("asked again: what runs is interrupted now"),
            () = tokio::time::sleep(patience) => tracing::info!("what still runs is interrupted now"),
        }
        shutdown.stop();
    });
    Ok(())
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
