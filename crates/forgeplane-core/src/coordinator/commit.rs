//! The group-commit actor: callers await their own changeset, the actor commits what waits in one
//! transaction. There is no timer: the batch is what arrived while the last commit ran.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::signals::{Observed, Signals};
use super::{CoordinatorError, Result};
use crate::model::Changeset;
use crate::ports::{Committed, Conflict, Store, StoreError};

/// The most changesets in one transaction.
const BATCH: usize = 512;

type Reply = oneshot::Sender<std::result::Result<std::result::Result<Committed, Conflict>, StoreError>>;

struct Request {
    changes: Changeset,
    reply: Reply,
}

/// The callers' end of the actor. The actor ends when the last clone is dropped.
#[derive(Clone)]
pub(super) struct Committer {
    requests: mpsc::Sender<Request>,
}

impl Committer {
    /// Starts the actor on the current runtime.
    pub(super) fn start(store: Arc<dyn Store>, signals: Signals) -> Self {
        let (requests, inbox) = mpsc::channel(4 * BATCH);
        tokio::spawn(run(store, signals, inbox));
        Self { requests }
    }

    /// Commits one changeset.
    pub(super) async fn commit(
        &self,
        changes: Changeset,
    ) -> Result<std::result::Result<Committed, Conflict>> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request { changes, reply }).await.map_err(|_| CoordinatorError::Stopped)?;
        Ok(answer.await.map_err(|_| CoordinatorError::Stopped)??)
    }
}

async fn run(store: Arc<dyn Store>, signals: Signals, mut inbox: mpsc::Receiver<Request>) {
    let mut waiting = Vec::with_capacity(BATCH);
    while inbox.recv_many(&mut waiting, BATCH).await > 0 {
        let mut batch = Vec::with_capacity(waiting.len());
        let mut replies = Vec::with_capacity(waiting.len());
        for Request { changes, reply } in waiting.drain(..) {
            replies.push((Observed::of(&changes), reply));
            batch.push(changes);
        }
        metrics::histogram!("forgeplane_commit_batch_size").record(batch.len() as f64);
        let began = std::time::Instant::now();
        let committed = store.commit(batch).await;
        metrics::histogram!("forgeplane_commit_seconds").record(began.elapsed());
        match committed {
            Ok(results) => {
                let conflicts = results.iter().filter(|result| result.is_err()).count();
                metrics::counter!("forgeplane_changesets_total", "result" => "conflict")
                    .increment(conflicts as u64);
                metrics::counter!("forgeplane_changesets_total", "result" => "committed")
                    .increment((results.len() - conflicts) as u64);
                for ((observed, reply), result) in replies.into_iter().zip(results) {
                    if result.is_ok() {
                        signals.observe(&observed);
                    }
                    // A caller that went away does not need its answer.
                    let _ = reply.send(Ok(result));
                }
            }
            Err(error) => {
                metrics::counter!("forgeplane_store_errors_total", "code" => error.code()).increment(1);
                let shared = Arc::new(error);
                for (_, reply) in replies {
                    let _ = reply.send(Err(share(&shared)));
                }
            }
        }
    }
}

/// The same store error for each caller of a batch.
fn share(error: &Arc<StoreError>) -> StoreError {
    let source = Box::new(Arc::clone(error));
    match **error {
        StoreError::Unavailable(_) => StoreError::Unavailable(source),
        StoreError::Unknown(_) => StoreError::Unknown(source),
        StoreError::Unusable(_) => StoreError::Unusable(source),
    }
}
