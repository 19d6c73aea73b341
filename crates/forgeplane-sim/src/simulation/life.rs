//! A process: from its start until it is killed, which can be between any two things it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio_util::sync::CancellationToken;

/// One life of a process. Whatever a process does to the outside passes through here; after its end it does nothing.
#[derive(Clone)]
pub(super) struct Life(Arc<Inner>);

struct Inner {
    over: CancellationToken,
    /// How many steps are left, once the fuse is lit; negative: it is not.
    fuse: AtomicI64,
}

impl Life {
    pub(super) fn new() -> Self {
        Self(Arc::new(Inner { over: CancellationToken::new(), fuse: AtomicI64::new(-1) }))
    }

    /// Ends it: SIGKILL.
    pub(super) fn end(&self) {
        self.0.over.cancel();
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.over.is_cancelled()
    }

    pub(super) async fn over(&self) {
        self.0.over.cancelled().await;
    }

    /// It ends after so many more steps.
    pub(super) fn light_fuse(&self, steps: u64) {
        self.0.fuse.store(i64::try_from(steps).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// One step; false if the process is dead or dies of this one before it has any effect.
    pub(super) fn step(&self) -> bool {
        let fuse = &self.0.fuse;
        match fuse.load(Ordering::Relaxed) {
            left if left < 0 => {}
            0 => self.end(),
            left => fuse.store(left - 1, Ordering::Relaxed),
        }
        !self.is_over()
    }

    /// One step; a dead process does not come back from it.
    pub(super) async fn pass(&self) {
        if !self.step() {
            std::future::pending::<()>().await;
        }
    }

    /// A dead process does not come back from this.
    pub(super) async fn alive(&self) {
        if self.is_over() {
            std::future::pending::<()>().await;
        }
    }

    /// Work that the process does until its end.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<Option<T>> {
        let life = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = life.over() => None,
                done = work => Some(done),
            }
        })
    }
}
