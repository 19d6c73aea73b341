//! A connection to the broker that can be slow, or lose what is sent over it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Passes connections on to a server on the loopback interface, as long as it lives.
pub struct Proxy {
    pub url: String,
    /// How many pieces of what the client sends are still to be lost if they ask for a job.
    lose: Arc<AtomicUsize>,
    /// How many were lost.
    lost: Arc<AtomicUsize>,
    _connections: JoinSet<()>,
}

impl Proxy {
    pub async fn to(port: u16) -> Self {
        Self::with_latency(port, Duration::ZERO).await
    }

    /// Every piece takes this long in each direction.
    pub async fn with_latency(port: u16, latency: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let (lose, lost) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let mut connections = JoinSet::new();
        let counters = (Arc::clone(&lose), Arc::clone(&lost));
        connections.spawn(async move {
            let mut halves = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                halves.spawn(pass(from_client, to_server, latency, Some(counters.clone())));
                halves.spawn(pass(from_server, to_client, latency, None));
            }
        });
        Self { url, lose, lost, _connections: connections }
    }

    /// Loses the next request for a job: it never reaches the broker, and nobody is told.
    pub fn lose_next_request(&self) {
        self.lose.fetch_add(1, Ordering::SeqCst);
    }

    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::SeqCst)
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    latency: Duration,
    loss: Option<(Arc<AtomicUsize>, Arc<AtomicUsize>)>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let piece = &buffer[..read];
        if let Some((lose, lost)) = &loss
            && piece.windows(8).any(|it| it == b"MSG.NEXT")
            && lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |it| it.checked_sub(1)).is_ok()
        {
            lost.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        tokio::time::sleep(latency).await;
        if to.write_all(piece).await.is_err() {
            return;
        }
    }
}
