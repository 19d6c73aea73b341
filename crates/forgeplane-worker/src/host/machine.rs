//! The machine this process runs on.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use axum::Router;
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::Cleanup;
use forgeplane_core::ports::{Clock, Entropy, SystemClock, SystemEntropy};
use futures_util::future::BoxFuture;
use nix::fcntl::posix_fallocate;
use nix::sys::statvfs::statvfs;
use nix::time::{ClockId, clock_gettime};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::memory;
use super::{Disk, Guard, Host, Output, Process, Processes, Service};
use crate::durable;
use crate::sandbox::{CommandSpec, Exit, Isolation, Running, Sandbox, SandboxError};

/// The machine this process runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Machine;

#[async_trait]
impl Host for Machine {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(LocalDisk)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    #[allow(clippy::expect_used)]
    fn uptime(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every supported kernel has this clock").into()
    }

    fn free_space(&self, directory: &Path) -> io::Result<u64> {
        let disk = statvfs(directory)?;
        Ok(disk.blocks_available() * disk.fragment_size())
    }

    fn out_of_memory(&self) -> u64 {
        memory::kills()
    }

    fn entropy(&self) -> Arc<dyn Entropy> {
        Arc::new(SystemEntropy)
    }

    fn processes(
        &self,
        isolation: Isolation,
        helper: Option<PathBuf>,
    ) -> Result<Arc<dyn Processes>, SandboxError> {
        Ok(Arc::new(Sandbox::new(isolation, helper)?))
    }

    /// On a thread with a runtime of its own. Dropping the guard waits for the end of the work.
    fn aside(&self, name: &str, work: BoxFuture<'static, ()>) -> io::Result<Guard> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(work))?;
        Ok(Box::new(Joined(Some(thread))))
    }

    /// On a free loopback port.
    async fn serve(&self, router: Router) -> io::Result<Service> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let stop = CancellationToken::new();
        let shutdown = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(shutdown).await {
                tracing::error!(%error, "a local service failed");
            }
        });
        Ok(Service { url, guard: Box::new((stop.drop_guard(), AbortOnDropHandle::new(task))) })
    }
}

/// A thread that is waited for.
struct Joined(Option<JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic in it has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

/// What tells one machine from another; containers often have none.
const MACHINE_ID: &str = "/etc/machine-id";

/// Plain files.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalDisk;

impl Disk for LocalDisk {
    fn private_dir(&self, directory: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let metadata = fs::metadata(directory)?;
        if metadata.uid() != nix::unistd::geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the directory belongs to another user, who could replace what the worker relies on",
            ));
        }
        if metadata.mode() & 0o077 != 0 {
            fs::set_permissions(directory, Permissions::from_mode(0o700))?;
        }
        Ok(())
    }

    fn lock(&self, directory: &Path) -> io::Result<Option<Guard>> {
        Ok(durable::try_lock_dir(directory)?.map(|lock| Box::new(lock) as Guard))
    }

    /// The machine's id, if it has one, and which directory this is in its file system: its number, and when it was made,
    /// since numbers are used again. A device's number is no help, it may change with every boot.
    fn place(&self, directory: &Path) -> io::Result<String> {
        let metadata = fs::metadata(directory)?;
        let made = metadata.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        let machine = fs::read_to_string(MACHINE_ID).unwrap_or_default();
        let place = format!("{}:{}:{}", machine.trim(), metadata.ino(), made.unwrap_or_default().as_nanos());
        // A machine's id is not for everybody to know.
        Ok(Digest::of(place.as_bytes()).to_string())
    }

    fn is_exposed(&self, file: &Path) -> io::Result<bool> {
        Ok(fs::metadata(file)?.mode() & 0o077 != 0)
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        fs::read(file)
    }

    fn files(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
    }

    fn write(&self, file: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(file)?;
        file.write_all(content)?;
        file.sync_all()
    }

    fn reserve(&self, file: &Path, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(file)?;
        let bytes = i64::try_from(bytes).map_err(io::Error::other)?;
        Ok(posix_fallocate(&file, 0, bytes)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        fs::remove_file(file)
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}

#[async_trait]
impl Processes for Sandbox {
    async fn spawn(&self, spec: CommandSpec) -> Result<Box<dyn Process>, SandboxError> {
        Ok(Box::new(self.spawn(spec).await?))
    }

    async fn sweep(&self) -> Cleanup {
        self.sweep().await
    }

    async fn clear(&self) -> Cleanup {
        self.clear().await
    }
}

#[async_trait]
impl Process for Running {
    fn stdout(&mut self) -> Option<Output> {
        self.take_stdout().map(|pipe| Box::new(pipe) as Output)
    }

    fn stderr(&mut self) -> Option<Output> {
        self.take_stderr().map(|pipe| Box::new(pipe) as Output)
    }

    fn interrupt(&self) {
        self.interrupt();
    }

    fn kill(&self) {
        self.kill();
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        self.wait().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_open_to_others_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&state, Permissions::from_mode(0o755)).unwrap();
        LocalDisk.private_dir(&state).unwrap();
        assert_eq!(fs::metadata(&state).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        std::os::unix::fs::chown(&state, Some(12_345), None).unwrap();
        assert_eq!(LocalDisk.private_dir(&state).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_directory_is_told_from_its_copy_and_from_the_next_one_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let (state, copy, moved) =
            (dir.path().join("state"), dir.path().join("copy"), dir.path().join("moved"));
        fs::create_dir(&state).unwrap();
        let place = LocalDisk.place(&state).unwrap();
        let copied = std::process::Command::new("cp").arg("-a").args([&state, &copy]).status().unwrap();
        assert!(copied.success());
        assert_ne!(LocalDisk.place(&copy).unwrap(), place);
        // What is in it does not matter, nor what it is called.
        fs::write(state.join("file"), "content").unwrap();
        fs::rename(&state, &moved).unwrap();
        assert_eq!(LocalDisk.place(&moved).unwrap(), place);
        // A file system gives the number of what was removed to what is made next.
        fs::remove_dir_all(&moved).unwrap();
        fs::create_dir(&state).unwrap();
        assert_ne!(LocalDisk.place(&state).unwrap(), place);
    }

    #[test]
    fn a_directory_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let held = LocalDisk.lock(dir.path()).unwrap().unwrap();
        assert!(LocalDisk.lock(dir.path()).unwrap().is_none());
        drop(held);
        assert!(LocalDisk.lock(dir.path()).unwrap().is_some());
    }
}
