//! What every Forgeplane process has: configuration from file, environment and flags, structured logs, Prometheus
//! metrics, liveness and readiness, and a way to say why it ends.
//!
//! ```
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! use forgeplane_process::{Metrics, Readiness, serve_probes};
//! use tokio_util::sync::CancellationToken;
//!
//! let metrics = Metrics::install().unwrap();
//! let readiness = Readiness::default();
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
//! let shutdown = CancellationToken::new();
//! let serving = tokio::spawn(serve_probes(listener, metrics, readiness.clone(), shutdown.clone()));
//! readiness.set(true);
//! shutdown.cancel();
//! serving.await.unwrap().unwrap();
//! # });
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a process that cannot go on tells its terminal why")]

mod config;
mod failure;
mod files;
mod logs;
mod probes;
mod start;

pub use config::{ConfigArgs, LogConfig, ProbesConfig, Sources, read_file, read_secret_file};
pub use failure::Failure;
pub use files::follow_files;
pub use logs::{LogFormat, init_logs};
pub use probes::{Metrics, MetricsError, Readiness, serve_probes};
pub use start::start;
