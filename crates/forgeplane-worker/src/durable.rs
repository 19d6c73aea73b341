//! Changes that survive a power loss, whole or not at all, and directories that have one holder.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use crate::host::Disk;

/// Replaces a file's content durably: another file, then its name, then the directory.
pub(crate) fn replace(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    disk.write(&temporary, content)?;
    rename(disk, &temporary, path)
}

/// Gives a file another name durably, in place of whatever has it.
pub(crate) fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    disk.rename(from, to)?;
    sync_parent(disk, to)
}

/// Removes a file durably; a missing one is fine.
pub(crate) fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Ok(()) => sync_parent(disk, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn sync_parent(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| disk.sync_dir(parent))
}

/// A directory that nobody else has, until the value is dropped.
pub(crate) type DirLock = Flock<File>;

/// Takes a directory for this process; `None` if somebody else has it.
pub(crate) fn try_lock_dir(path: &Path) -> io::Result<Option<DirLock>> {
    match Flock::lock(File::open(path)?, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// Takes a directory for this process, waiting for whoever has it. Only for moments.
pub(crate) fn lock_dir(path: &Path) -> io::Result<DirLock> {
    Flock::lock(File::open(path)?, FlockArg::LockExclusive).map_err(|(_, errno)| errno.into())
}
