//! The gRPC API for workers: [`ControlPlane`] and [`JobQueue`] of a coordinator on the network.
//!
//! As the HTTP API, this face decides nothing: it reads a message strictly, hands it to the coordinator and says what
//! came of it. Every call is authorized by itself; a stream that stays open is authorized again with everything it
//! carries, and every few seconds besides.

mod pull;
mod serve;
mod service;
mod tls;
mod upload;

use std::sync::Arc;

use async_trait::async_trait;
use forgeplane_core::coordinator::{Coordinator, InProcess};
use forgeplane_core::ports::{ControlError, ControlPlane, JobQueue, Session};
use forgeplane_core::rules::Settings;
use tokio_util::sync::CancellationToken;

pub use serve::{ServeError, serve_workers};
pub use tls::{Certificates, CertificatesError, ServerPem, Tls};

/// Says whether a session is alive.
#[async_trait]
pub trait Sessions: Send + Sync + 'static {
    /// Checks a session.
    ///
    /// # Errors
    /// A dead session; a coordinator that cannot answer.
    async fn authenticate(&self, session: &Session) -> Result<(), ControlError>;
}

#[async_trait]
impl Sessions for InProcess {
    async fn authenticate(&self, session: &Session) -> Result<(), ControlError> {
        Self::authenticate(self, session).await
    }
}

/// The worker API over a control plane and a job queue.
#[derive(Clone)]
pub struct WorkerService {
    control: Arc<dyn ControlPlane>,
    sessions: Arc<dyn Sessions>,
    queue: Arc<dyn JobQueue>,
    limits: Limits,
    /// Ends streams and long waits; everything else ends by itself.
    shutdown: CancellationToken,
}

/// The most bytes of an upload.
#[derive(Debug, Clone, Copy)]
struct Limits {
    state: usize,
    artifact: usize,
}

impl Limits {
    const fn of(settings: &Settings) -> Self {
        Self { state: settings.max_state_bytes, artifact: settings.max_artifact_bytes }
    }
}

impl std::fmt::Debug for WorkerService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerService").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl WorkerService {
    /// The worker API of a coordinator.
    #[must_use]
    pub fn new(coordinator: &Coordinator, shutdown: CancellationToken) -> Self {
        Self {
            control: Arc::new(coordinator.in_process()),
            sessions: Arc::new(coordinator.in_process()),
            queue: coordinator.queue(),
            limits: Limits::of(coordinator.settings()),
            shutdown,
        }
    }

    /// The worker API of anything that behaves like a coordinator: for tests of queues and workers.
    #[must_use]
    pub fn of(control: impl ControlPlane, sessions: impl Sessions, queue: Arc<dyn JobQueue>) -> Self {
        Self {
            control: Arc::new(control),
            sessions: Arc::new(sessions),
            queue,
            limits: Limits::of(&Settings::default()),
            shutdown: CancellationToken::new(),
        }
    }
}
