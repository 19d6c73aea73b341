//! Files that survive a power loss: whole or not at all, private to the worker.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

/// Makes a directory (and its parents) that only the worker can enter; one that is there already is closed
/// to everybody else.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let metadata = fs::metadata(path)?;
    if metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the directory belongs to another user, who could replace what the worker relies on",
        ));
    }
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Whether a file can be read or written by anybody but its owner.
pub(crate) fn is_exposed(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.mode() & 0o077 != 0)
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

/// Replaces a file's content durably: temporary file, sync, rename, sync of the directory.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_parent(path)
}

/// Gives a file another name durably, in place of whatever has it.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_parent(to)
}

/// Removes a file durably; a missing one is fine.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
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
        private_dir(&state).unwrap();
        assert_eq!(fs::metadata(&state).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        std::os::unix::fs::chown(&state, Some(12_345), None).unwrap();
        assert_eq!(private_dir(&state).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_directory_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let held = try_lock_dir(dir.path()).unwrap().unwrap();
        assert!(try_lock_dir(dir.path()).unwrap().is_none());
        drop(held);
        assert!(try_lock_dir(dir.path()).unwrap().is_some());
    }
}
