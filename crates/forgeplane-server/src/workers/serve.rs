//! Serving the worker API: encryption, health, reflection, liveness, shutdown.

use std::net::SocketAddr;
use std::time::Duration;

use forgeplane_proto::DESCRIPTORS;
use forgeplane_proto::v1::worker_api_server::WorkerApiServer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::WorkerService;
use super::tls::Tls;

/// The largest message; large bytes travel in chunks.
const MESSAGE_BYTES: usize = 16 << 20;
/// How many calls one connection may have open.
const CALLS: u32 = 256;
/// How long calls in flight may take after shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(10);

/// Why the worker API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Credentials would travel readably.
    #[error(
        "{address} is not a loopback address and the worker API is not encrypted: give it a certificate and a key, or accept plaintext with `unsafe_plaintext`"
    )]
    Plaintext {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// The listener failed.
    #[error("the worker API failed: {0}")]
    Transport(#[source] tonic::transport::Error),
    /// The listener has no address.
    #[error("the worker API cannot listen: {0}")]
    Listener(#[source] std::io::Error),
    /// The API's description cannot be served.
    #[error("the description of the worker API cannot be served: {0}")]
    Reflection(#[source] tonic_reflection::server::Error),
}

impl ServeError {
    /// Stable machine code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Plaintext { .. } => "plaintext_refused",
            Self::Transport(_) | Self::Listener(_) => "listener_failed",
            Self::Reflection(_) => "reflection_failed",
        }
    }
}

/// Serves the worker API on `listener` until the service's shutdown is asked for; then takes no new connections, ends
/// streams, and lets calls in flight finish for up to ten seconds.
///
/// # Errors
/// [`ServeError`]: plaintext where it is not allowed, a listener that fails.
pub async fn serve_workers(
    listener: TcpListener,
    service: WorkerService,
    tls: &Tls,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let address = listener.local_addr().map_err(ServeError::Listener)?;
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .max_concurrent_streams(CALLS)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20);
    if let Tls::Plaintext { unsafe_anywhere } = tls {
        if !address.ip().is_loopback() && !unsafe_anywhere {
            return Err(ServeError::Plaintext { address });
        }
        if *unsafe_anywhere {
            tracing::warn!(%address, "UNSAFE: the worker API is not encrypted");
        }
    }
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<WorkerApiServer<WorkerService>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(ServeError::Reflection)?;
    let api = WorkerApiServer::new(service.clone()).max_decoding_message_size(MESSAGE_BYTES);
    let router = server.add_service(health_service).add_service(reflection).add_service(api);
    let told = shutdown.clone().cancelled_owned();
    let serving = async {
        match tls {
            Tls::Plaintext { .. } => {
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                router.serve_with_incoming_shutdown(incoming, told).await
            }
            Tls::Server(certificates) => {
                router.serve_with_incoming_shutdown(certificates.accept(listener), told).await
            }
        }
    };
    let stopping = async {
        shutdown.cancelled().await;
        // What asks for health is told to go elsewhere; streams end, so that connections can.
        health.set_not_serving::<WorkerApiServer<WorkerService>>().await;
        service.shutdown.cancel();
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        result = serving => result.map_err(ServeError::Transport),
        () = stopping => {
            tracing::warn!("some calls of workers did not finish in time and were left behind");
            Ok(())
        }
    }
}
