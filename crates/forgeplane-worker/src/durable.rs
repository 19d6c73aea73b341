//! Changes that survive a power loss, whole or not at all, and directories that have one holder.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use crate::host::Disk;

/// Makes a directory that only the worker can enter, and makes last what is in it. An earlier process may have been killed
/// between a change and its sync: what it left is seen, and would be gone after a power loss although it was acted on.
pub(crate) fn private_dir(disk: &dyn Disk, directory: &Path) -> io::Result<()> {
    disk.private_dir(directory)?;
    sync_parent(disk, directory)?;
    disk.sync_dir(directory)
}

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

/// Makes last that a file is there.
pub(crate) fn sync_parent(disk: &dyn Disk, path: &Path) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Mutex;

    use super::*;
    use crate::host::{Guard, LocalDisk};

    /// A disk that notes which directories are made to last.
    #[derive(Default)]
    struct Noting(Mutex<Vec<PathBuf>>);

    impl Disk for Noting {
        fn private_dir(&self, directory: &Path) -> io::Result<()> {
            LocalDisk.private_dir(directory)
        }
        fn lock(&self, directory: &Path) -> io::Result<Option<Guard>> {
            LocalDisk.lock(directory)
        }
        fn place(&self, directory: &Path) -> io::Result<String> {
            LocalDisk.place(directory)
        }
        fn is_exposed(&self, file: &Path) -> io::Result<bool> {
            LocalDisk.is_exposed(file)
        }
        fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
            LocalDisk.read(file)
        }
        fn files(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
            LocalDisk.files(directory)
        }
        fn reserve(&self, file: &Path, bytes: u64) -> io::Result<()> {
            LocalDisk.reserve(file, bytes)
        }
        fn write(&self, file: &Path, content: &[u8]) -> io::Result<()> {
            LocalDisk.write(file, content)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            LocalDisk.rename(from, to)
        }
        fn remove(&self, file: &Path) -> io::Result<()> {
            LocalDisk.remove(file)
        }
        fn sync_dir(&self, directory: &Path) -> io::Result<()> {
            self.0.lock().unwrap().push(directory.to_owned());
            LocalDisk.sync_dir(directory)
        }
    }

    #[test]
    fn a18_what_a_killed_process_left_is_made_to_last_before_it_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, state) = (Noting::default(), dir.path().join("state"));
        private_dir(&disk, &state).unwrap();
        assert_eq!(*disk.0.lock().unwrap(), [dir.path().to_owned(), state]);
    }

    #[test]
    fn a_change_is_made_to_last_before_it_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, file) = (Noting::default(), dir.path().join("file.json"));
        replace(&disk, &file, b"content").unwrap();
        remove(&disk, &file).unwrap();
        // Removing what is not there changes nothing.
        remove(&disk, &file).unwrap();
        assert_eq!(*disk.0.lock().unwrap(), [dir.path(), dir.path()]);
    }
}
