//! The library's way to follow events: every one, in order, at least once, from the sink's own cursor.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use forgeplane_core::coordinator::Coordinator;
use forgeplane_core::memory::{MemoryBlobs, MemoryQueue, MemoryStore};
use forgeplane_core::model::{Event, EventKind, Role};
use forgeplane_core::ports::{BoxError, EventSink, StaticKey};
use tokio::sync::Notify;

#[derive(Default)]
struct Inner {
    cursor: u64,
    refusals: usize,
    taken: Vec<Event>,
}

/// A sink that refuses a few times before it takes anything.
#[derive(Clone, Default)]
struct Stubborn {
    inner: Arc<Mutex<Inner>>,
    news: Arc<Notify>,
}

#[async_trait]
impl EventSink for Stubborn {
    async fn cursor(&self) -> Result<u64, BoxError> {
        Ok(self.inner.lock().unwrap().cursor)
    }

    async fn deliver(&self, events: &[Event]) -> Result<(), BoxError> {
        let mut inner = self.inner.lock().unwrap();
        if inner.refusals > 0 {
            inner.refusals -= 1;
            return Err("not now".into());
        }
        inner.taken.extend_from_slice(events);
        drop(inner);
        self.news.notify_one();
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_gets_every_event_after_its_cursor_in_order_even_if_it_refuses_for_a_while() {
    let sink = Stubborn::default();
    {
        let mut inner = sink.inner.lock().unwrap();
        // The first event was dealt with before.
        (inner.cursor, inner.refusals) = (1, 3);
    }
    let coordinator = Coordinator::builder()
        .store(MemoryStore::new())
        .queue(MemoryQueue::default())
        .blobs(MemoryBlobs::default())
        .keys(StaticKey::new("k1", [1; 32]))
        .signing_key([2; 32])
        .event_sink(sink.clone())
        .build()
        .await
        .unwrap();
    let project = coordinator.ensure_project(&"p".parse().unwrap()).await.unwrap();
    let mut names = ["a", "b", "c", "d"].into_iter();
    for name in names.by_ref().take(2) {
        coordinator.issue_token(project.id, &name.parse().unwrap(), Role::Viewer, None).await.unwrap();
    }
    let loops = coordinator.start();
    for name in names {
        coordinator.issue_token(project.id, &name.parse().unwrap(), Role::Viewer, None).await.unwrap();
    }
    while sink.inner.lock().unwrap().taken.len() < 3 {
        sink.news.notified().await;
    }
    loops.stop().await;
    let taken = sink.inner.lock().unwrap().taken.clone();
    assert_eq!(taken.iter().map(|e| e.seq).collect::<Vec<_>>(), [2, 3, 4]);
    assert!(taken.iter().all(|e| e.kind == EventKind::TokenCreated));
}
