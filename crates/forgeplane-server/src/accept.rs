//! Taking connections, as both servers do.

use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

/// How long to wait before another connection is taken after one could not be.
const PAUSE: Duration = Duration::from_millis(50);

/// The next connection of a listener. One that cannot be taken, such as for too many open files, ends nothing: those that
/// are open go on.
pub(crate) async fn next_connection(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((tcp, _)) => return tcp,
            Err(error) => {
                tracing::warn!(%error, listener = ?listener.local_addr().ok(), "a connection could not be taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
