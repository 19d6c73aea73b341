//! Log streams: one per attempt, so that a busy log needs no new call for each append.

use std::collections::HashMap;
use std::sync::Arc;

use forgeplane_core::id::AttemptId;
use forgeplane_core::ports::{ControlError, LogAppend, Session};
use tokio::sync::{Mutex, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::request;
use crate::v1::worker_api_client::WorkerApiClient;
use crate::{from_status, v1};

/// An open stream, between two appends.
struct Open {
    /// Which address and session it belongs to; others need a stream of their own.
    index: usize,
    incarnation: u64,
    appends: mpsc::Sender<v1::LogAppend>,
    acks: Streaming<v1::LogAck>,
}

#[derive(Default)]
pub(super) struct LogStreams {
    of: Mutex<HashMap<AttemptId, Arc<Mutex<Option<Open>>>>>,
}

impl LogStreams {
    /// Appends on the attempt's stream; answers with the end of the stored log.
    pub(super) async fn append(
        &self,
        index: usize,
        client: WorkerApiClient<Channel>,
        session: &Session,
        append: LogAppend,
    ) -> Result<u64, ControlError> {
        let place = Arc::clone(self.of.lock().await.entry(append.claim.attempt).or_default());
        let mut place = place.lock().await;
        // Taken out while in use: a caller that goes away in between leaves no stream whose answers are not its own.
        let usable =
            place.take().filter(|open| open.index == index && open.incarnation == session.incarnation);
        let mut open = match usable {
            Some(open) => open,
            None => connect(index, client, session).await?,
        };
        let lost = || ControlError::Unavailable("the log stream ended".into());
        if open.appends.send(append.into()).await.is_err() {
            // The coordinator has ended it and says why.
            return Err(open.acks.message().await.map_or_else(from_status, |_| lost()));
        }
        let ack = open.acks.message().await.map_err(from_status)?.ok_or_else(lost)?;
        *place = Some(open);
        Ok(ack.end)
    }

    /// The attempt has ended; its log does not grow any more.
    pub(super) async fn forget(&self, attempt: AttemptId) {
        self.of.lock().await.remove(&attempt);
    }
}

async fn connect(
    index: usize,
    mut client: WorkerApiClient<Channel>,
    session: &Session,
) -> Result<Open, ControlError> {
    let (appends, messages) = mpsc::channel(1);
    let call = client.append_log(request(session, ReceiverStream::new(messages))?);
    let acks = call.await.map_err(|status: Status| from_status(status))?.into_inner();
    Ok(Open { index, incarnation: session.incarnation, appends, acks })
}
