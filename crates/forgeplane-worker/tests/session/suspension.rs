//! A machine that is suspended.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use forgeplane_core::model::*;
use forgeplane_core::ports::{Clock, Entropy};
use forgeplane_worker::host::{Disk, Guard, Host, Machine, Processes, Service};
use forgeplane_worker::sandbox::{Isolation, SandboxError};
use futures_util::future::BoxFuture;

use crate::bench::{Bench, Order};

/// This machine, as if it had been suspended for some seconds.
#[derive(Clone, Default)]
struct Suspended(Arc<AtomicU64>);

#[async_trait]
impl Host for Suspended {
    fn disk(&self) -> Arc<dyn Disk> {
        Machine.disk()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Machine.clock()
    }

    fn uptime(&self) -> Duration {
        Machine.uptime() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn free_space(&self, directory: &Path) -> io::Result<u64> {
        Machine.free_space(directory)
    }

    fn out_of_memory(&self) -> u64 {
        Machine.out_of_memory()
    }

    fn entropy(&self) -> Arc<dyn Entropy> {
        Machine.entropy()
    }

    fn processes(
        &self,
        isolation: Isolation,
        helper: Option<PathBuf>,
    ) -> Result<Arc<dyn Processes>, SandboxError> {
        Machine.processes(isolation, helper)
    }

    fn aside(&self, name: &str, work: BoxFuture<'static, ()>) -> io::Result<Guard> {
        Machine.aside(name, work)
    }

    async fn serve(&self, router: Router) -> io::Result<Service> {
        Machine.serve(router).await
    }
}

/// C4: the time of a suspension counts towards the deadline, and the tool is still interrupted in time to save its state.
#[tokio::test]
async fn c4_a_deadline_that_passed_while_the_machine_was_suspended_is_noticed() {
    let bench = Bench::with_script(
        "[ \"$1\" = plan ] || exit 0\ntrap 'echo interrupted >> $LEDGER; exit 1' INT\n\
         echo start >> $LEDGER\nwhile :; do sleep 0.02; done",
    );
    let machine = Suspended::default();
    let worker = bench.start_on(machine.clone()).await.unwrap();
    let job = bench.attempt(1, Order { timeout: Duration::from_secs(3_600), ..Order::default() });
    bench.until_ledger("start").await;
    machine.0.store(3_600, Ordering::SeqCst);
    let outcome = bench.outcome(&job).await;
    assert_eq!((outcome.outcome, outcome.stop), (OutcomeKind::TimedOut, Some(StopCause::Deadline)));
    assert!(outcome.duration_ms >= 3_600_000, "{} ms", outcome.duration_ms);
    assert_eq!(bench.ledger_text(), "start\ninterrupted\n");
    worker.drain().await;
}
