//! A served worker API.

use std::net::SocketAddr;

use forgeplane_proto::client::{ConnectOptions, GrpcControlPlane};
use forgeplane_server::workers::{ServeError, Tls, WorkerService, serve_workers};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::House;

pub(crate) const PLAINTEXT: Tls = Tls::Plaintext { unsafe_anywhere: false };

/// A worker API on a loopback port.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Served {
    pub(crate) async fn of(house: &House) -> Self {
        let shutdown = CancellationToken::new();
        let service = WorkerService::new(&house.coordinator, shutdown.child_token());
        Self::start("127.0.0.1:0", service, PLAINTEXT, shutdown).await
    }

    pub(crate) async fn start(
        at: &str,
        service: WorkerService,
        tls: Tls,
        shutdown: CancellationToken,
    ) -> Self {
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = shutdown.clone();
        let task = tokio::spawn(async move { serve_workers(listener, service, &tls, stop).await });
        Self { address, shutdown, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn client(&self) -> GrpcControlPlane {
        client(&[self])
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// A client of several servers.
pub(crate) fn client(served: &[&Served]) -> GrpcControlPlane {
    let urls = served.iter().map(|it| it.url()).collect();
    GrpcControlPlane::new(&ConnectOptions { urls, ..ConnectOptions::default() }).unwrap()
}
