//! What a worker needs of the machine it is on.
//!
//! [`Machine`] is the real one. The very same worker runs on any other [`Host`], so that a simulation decides when time
//! passes, which write is lost and where the power goes out. Nothing of the worker reaches the machine's clock, random
//! numbers, processes or its own durable files but through here; workspaces are disposable and are plain files.

mod machine;
mod memory;

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use forgeplane_core::evidence::Cleanup;
use forgeplane_core::ports::{Clock, Entropy};
use futures_util::future::BoxFuture;
use tokio::io::AsyncRead;

use crate::sandbox::{CommandSpec, Exit, Isolation, SandboxError};

pub use machine::{LocalDisk, Machine};

/// A machine.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// Where the worker's own files are: keys, journal, states that could not be delivered.
    fn disk(&self) -> Arc<dyn Disk>;

    /// Its clock.
    fn clock(&self) -> Arc<dyn Clock>;

    /// How long it has been up, with the time for which it was suspended. Goes on evenly, whatever its clock says.
    fn uptime(&self) -> Duration;

    /// How many bytes are free on the disk of a directory.
    ///
    /// # Errors
    /// When that cannot be told.
    fn free_space(&self, directory: &Path) -> io::Result<u64>;

    /// How many processes around the worker the operating system has ended so far because memory ran out; 0 where that
    /// cannot be told.
    fn out_of_memory(&self) -> u64;

    /// Its random numbers.
    fn entropy(&self) -> Arc<dyn Entropy>;

    /// Where tools run; see [`Sandbox::new`](crate::sandbox::Sandbox::new) for the arguments.
    ///
    /// # Errors
    /// When tools cannot be kept apart as asked.
    fn processes(
        &self,
        isolation: Isolation,
        helper: Option<PathBuf>,
    ) -> Result<Arc<dyn Processes>, SandboxError>;

    /// Does work apart from everything else, so that a busy worker cannot hold it up.
    ///
    /// # Errors
    /// When that cannot be started.
    fn aside(&self, name: &str, work: BoxFuture<'static, ()>) -> io::Result<Guard>;

    /// Serves HTTP to the tools of this host, and to nobody else.
    ///
    /// # Errors
    /// When there is no port to be had.
    async fn serve(&self, router: Router) -> io::Result<Service>;
}

/// How often a suspension is looked for: timers stand still with the machine.
const LOOK: Duration = Duration::from_secs(5);

/// Waits until so much time has passed on the machine, also while it was suspended.
pub(crate) async fn pass(host: &dyn Host, time: Duration) {
    let begun = host.uptime();
    loop {
        let left = time.saturating_sub(host.uptime().saturating_sub(begun));
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK)).await;
    }
}

/// Something that ends when this is dropped.
pub type Guard = Box<dyn Any + Send + Sync>;

/// An HTTP service, which ends when it is dropped. A request that is being answered is not cut off by that.
pub struct Service {
    /// `http://`, host and port.
    pub url: String,
    /// Ends it.
    pub guard: Guard,
}

/// Files that only the worker reads and writes. Each method is one step that a crash may come before or after; how a
/// file is replaced so that a crash leaves the old or the new content is the worker's.
pub trait Disk: Send + Sync + 'static {
    /// Makes a directory (and its parents) that only the worker can enter; one that is there already is closed to
    /// everybody else.
    ///
    /// # Errors
    /// When it cannot be made, or belongs to somebody else.
    fn private_dir(&self, directory: &Path) -> io::Result<()>;

    /// Takes a directory for this worker; `None` if somebody else has it.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn lock(&self, directory: &Path) -> io::Result<Option<Guard>>;

    /// What tells a directory from every copy of it, on this machine and on others. It is the same for as long as the
    /// directory itself is used on this machine.
    ///
    /// # Errors
    /// When it cannot be looked at.
    fn place(&self, directory: &Path) -> io::Result<String>;

    /// Whether a file can be read or written by anybody but its owner.
    ///
    /// # Errors
    /// When it cannot be looked at.
    fn is_exposed(&self, file: &Path) -> io::Result<bool>;

    /// A file's content.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is none.
    fn read(&self, file: &Path) -> io::Result<Vec<u8>>;

    /// The files of a directory, in any order.
    ///
    /// # Errors
    /// When it cannot be read.
    fn files(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;

    /// Makes a file with this content, or gives it this content, and syncs it. A crash meanwhile leaves any part of it.
    ///
    /// # Errors
    /// When it cannot be written.
    fn write(&self, file: &Path, content: &[u8]) -> io::Result<()>;

    /// Takes so many bytes of the disk for a file, whatever is in it.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] if there are not as many.
    fn reserve(&self, file: &Path, bytes: u64) -> io::Result<()>;

    /// Gives a file another name, in place of whatever has it. Only [`Disk::sync_dir`] makes it last.
    ///
    /// # Errors
    /// When it cannot be renamed.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. Only [`Disk::sync_dir`] makes it last.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is none.
    fn remove(&self, file: &Path) -> io::Result<()>;

    /// Makes the names of a directory's files last.
    ///
    /// # Errors
    /// When that cannot be.
    fn sync_dir(&self, directory: &Path) -> io::Result<()>;
}

/// Starts tools and cleans up after them; [`Sandbox`](crate::sandbox::Sandbox) does, on a real machine.
#[async_trait]
pub trait Processes: Send + Sync + 'static {
    /// Starts a command and returns when the tool itself runs.
    ///
    /// # Errors
    /// Everything that keeps the tool from running.
    async fn spawn(&self, spec: CommandSpec) -> Result<Box<dyn Process>, SandboxError>;

    /// Kills everything that tools have left, and tells whether that was certain.
    async fn sweep(&self) -> Cleanup;

    /// [Sweeps](Self::sweep), and removes everything else that tools have left outside of their workspaces.
    async fn clear(&self) -> Cleanup;
}

/// What a command prints.
pub type Output = Box<dyn AsyncRead + Send + Sync + Unpin>;

/// A command that was started. Dropping it kills it.
#[async_trait]
pub trait Process: Send + Sync {
    /// Its stdout, once.
    fn stdout(&mut self) -> Option<Output>;

    /// Its stderr, once.
    fn stderr(&mut self) -> Option<Output>;

    /// Sends SIGINT, the first time it is called and never again.
    fn interrupt(&self);

    /// Sends SIGKILL.
    fn kill(&self);

    /// Waits for its end. May be dropped and called again, also after the end.
    ///
    /// # Errors
    /// When the end cannot be observed.
    async fn wait(&mut self) -> Result<Exit, SandboxError>;
}
