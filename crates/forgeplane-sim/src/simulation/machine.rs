//! The machine of one worker: its disk, its clock, its tools.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use forgeplane_core::Timestamp;
use forgeplane_core::evidence::Cleanup;
use forgeplane_core::ports::{Clock, Entropy};
use forgeplane_worker::host::{Disk, Guard, Host, Process, Processes, Service};
use forgeplane_worker::sandbox::{CommandSpec, Isolation, SandboxError};
use futures_util::future::BoxFuture;
use jiff::SignedDuration;
use tokio_util::task::AbortOnDropHandle;

use super::disk::SimDisk;
use super::life::Life;
use super::lock;
use super::tool::Tool;
use super::world::World;

/// One life of a worker's machine.
#[derive(Clone)]
pub(super) struct SimMachine {
    pub(super) world: Arc<World>,
    pub(super) life: Life,
    pub(super) disk: SimDisk,
    pub(super) services: Services,
    /// How far this machine's own clock is off (faults C1).
    pub(super) off: SignedDuration,
}

/// HTTP services of a machine, by address.
#[derive(Clone, Default)]
pub(super) struct Services(Arc<Mutex<BTreeMap<String, Router>>>);

impl Services {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Router>> {
        lock(&self.0)
    }

    /// The service at an address, if something listens there.
    pub(super) fn at(&self, url: &str) -> Option<Router> {
        self.all().get(url).cloned()
    }
}

/// Stops listening when dropped.
struct Listening(Services, String);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.all().remove(&self.1);
    }
}

/// A machine's own clock, which may be years off.
struct Off(Arc<World>, SignedDuration);

impl Clock for Off {
    fn now(&self) -> Timestamp {
        self.0.now().saturating_add(self.1).unwrap_or(Timestamp::MAX)
    }
}

#[async_trait]
impl Host for SimMachine {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.clone())
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(Off(Arc::clone(&self.world), self.off))
    }

    fn uptime(&self) -> Duration {
        self.world.age()
    }

    fn free_space(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn out_of_memory(&self) -> u64 {
        0
    }

    fn entropy(&self) -> Arc<dyn Entropy> {
        Arc::clone(&self.world) as Arc<dyn Entropy>
    }

    fn processes(&self, _: Isolation, _: Option<PathBuf>) -> Result<Arc<dyn Processes>, SandboxError> {
        Ok(Arc::new(self.clone()))
    }

    fn aside(&self, _: &str, work: BoxFuture<'static, ()>) -> io::Result<Guard> {
        Ok(Box::new(AbortOnDropHandle::new(self.life.spawn(work))))
    }

    async fn serve(&self, router: Router) -> io::Result<Service> {
        self.life.pass().await;
        let mut services = self.services.all();
        let url = format!("http://sim-{}", self.world.fate.below(u64::MAX));
        services.insert(url.clone(), router);
        Ok(Service { guard: Box::new(Listening(self.services.clone(), url.clone())), url })
    }
}

#[async_trait]
impl Processes for SimMachine {
    async fn spawn(&self, spec: CommandSpec) -> Result<Box<dyn Process>, SandboxError> {
        self.life.pass().await;
        let running = Tool::start(self.clone(), spec);
        // Killed when the tool runs already, before the worker knows.
        self.life.pass().await;
        Ok(Box::new(running))
    }

    async fn sweep(&self) -> Cleanup {
        self.life.pass().await;
        Cleanup::Clean
    }

    async fn clear(&self) -> Cleanup {
        self.sweep().await
    }
}
