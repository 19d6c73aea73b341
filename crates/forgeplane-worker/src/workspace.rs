//! A fresh workspace per attempt, and reading back from it what a hostile tool left there.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, chown, lchown};
use std::path::{Component, Path, PathBuf};

use forgeplane_core::id::AttemptId;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

use crate::sandbox::Isolation;

/// The directories of an attempt. The root and `input` belong to the worker, so the tool can neither rename
/// them nor change what it was given; the others belong to the tool.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
    /// Unpacked source.
    pub source: PathBuf,
    /// `HOME`.
    pub home: PathBuf,
    /// `TMPDIR`.
    pub tmp: PathBuf,
    /// What the worker gives: variables, plan. Read-only for the tool.
    pub input: PathBuf,
    /// What the tool gives back: plan files.
    pub output: PathBuf,
    /// The worker's own: log spool.
    pub(crate) private: PathBuf,
    isolation: Isolation,
}

impl Workspace {
    /// Makes the workspace of an attempt; a leftover of an earlier incarnation is removed first.
    ///
    /// # Errors
    /// When directories cannot be made or given to the tool's user id.
    pub fn create(workspace_root: &Path, attempt: AttemptId, isolation: Isolation) -> io::Result<Self> {
        let directory = |path: &Path, mode| DirBuilder::new().recursive(true).mode(mode).create(path);
        directory(workspace_root, 0o711)?;
        let root = workspace_root.join(attempt.to_string());
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        let workspace = Self {
            source: root.join("source"),
            home: root.join("home"),
            tmp: root.join("tmp"),
            input: root.join("input"),
            output: root.join("output"),
            private: root.join("private"),
            root,
            isolation,
        };
        directory(&workspace.root, 0o711)?;
        for own in [&workspace.source, &workspace.home, &workspace.tmp, &workspace.output] {
            directory(own, 0o700)?;
            workspace.give(own)?;
        }
        directory(&workspace.input, 0o711)?;
        directory(&workspace.private, 0o700)?;
        Ok(workspace)
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        match self.isolation {
            Isolation::Uid { uid, gid, .. } => lchown(path, Some(uid), Some(gid)),
            Isolation::UnsafeNone => Ok(()),
        }
    }

    /// Gives everything below the source to the tool. Only before any tool ran: nothing can race yet.
    ///
    /// # Errors
    /// When an owner cannot be changed.
    pub fn give_source(&self) -> io::Result<()> {
        self.give_below(&self.source)
    }

    fn give_below(&self, directory: &Path) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            self.give(&entry.path())?;
            if entry.file_type()?.is_dir() {
                self.give_below(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Puts a file into `input`: the tool can read it and cannot change it; nobody else can read it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put_input(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        let path = self.input.join(name);
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o440).open(&path)?;
        file.write_all(content)?;
        if let Isolation::Uid { gid, .. } = self.isolation {
            chown(&path, None, Some(gid))?;
        }
        Ok(path)
    }

    /// Puts a file into the source directory, replacing what the source has there. Before any tool ran.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put_source(&self, relative: &Path, content: &[u8]) -> io::Result<()> {
        let path = self.source.join(relative);
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path)?;
        file.write_all(content)?;
        self.give(&path)
    }

    /// Reads a regular file that the tool left below one of its directories; `None` if there is none. No link
    /// is followed at any level, so the tool cannot make the worker read a file of somebody else.
    ///
    /// # Errors
    /// When something else is there, or more than `max_bytes`.
    pub fn read_back(
        &self,
        directory: &Path,
        relative: &Path,
        max_bytes: u64,
    ) -> io::Result<Option<Vec<u8>>> {
        match open_beneath(directory, relative) {
            Ok(file) => {
                let metadata = file.metadata()?;
                if !metadata.is_file() {
                    return Err(io::Error::other(format!("{} is not a regular file", relative.display())));
                }
                if metadata.len() > max_bytes {
                    return Err(io::Error::other(format!(
                        "{} is larger than {max_bytes} bytes",
                        relative.display()
                    )));
                }
                let mut content = Vec::new();
                file.take(max_bytes).read_to_end(&mut content)?;
                Ok(Some(content))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes the workspace. Only after a sweep: nothing may race with the removal.
    ///
    /// # Errors
    /// When something could not be removed.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.root)
    }
}

/// Opens `relative` beneath `root`, component by component, following no link.
fn open_beneath(root: &Path, relative: &Path) -> io::Result<File> {
    let names: Vec<_> = relative
        .components()
        .map(|component| match component {
            Component::Normal(name) => Ok(name),
            other => Err(io::Error::other(format!("{other:?} in a relative path"))),
        })
        .collect::<io::Result<_>>()?;
    let Some((last, directories)) = names.split_last() else {
        return Err(io::Error::other("an empty path"));
    };
    let step = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
    let mut at: OwnedFd = open(root, step, Mode::empty())?;
    for name in directories {
        at = openat(&at, *name, step, Mode::empty())?;
    }
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_RDONLY;
    Ok(File::from(openat(&at, *last, flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn workspace(root: &Path) -> Workspace {
        Workspace::create(root, AttemptId::new(Timestamp::UNIX_EPOCH, [1; 10]), Isolation::UnsafeNone)
            .unwrap()
    }

    #[test]
    fn e15_links_and_fifos_are_not_followed_when_reading_back() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = workspace(dir.path());
        fs::write(dir.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), workspace.output.join("plan")).unwrap();
        std::os::unix::fs::symlink(dir.path(), workspace.output.join("dir")).unwrap();
        nix::unistd::mkfifo(&workspace.output.join("fifo"), Mode::S_IRWXU).unwrap();
        for bad in ["plan", "dir/secret", "fifo", "../../secret"] {
            assert!(workspace.read_back(&workspace.output, Path::new(bad), 100).is_err(), "{bad} was read");
        }
        assert_eq!(workspace.read_back(&workspace.output, Path::new("missing"), 100).unwrap(), None);
        fs::write(workspace.output.join("ok"), "fine").unwrap();
        assert_eq!(workspace.read_back(&workspace.output, Path::new("ok"), 100).unwrap().unwrap(), b"fine");
        assert!(workspace.read_back(&workspace.output, Path::new("ok"), 3).is_err());
    }

    #[test]
    fn a_workspace_is_fresh_and_removed_whole() {
        let dir = tempfile::tempdir().unwrap();
        let first = workspace(dir.path());
        fs::write(first.source.join("left"), "over").unwrap();
        let second = workspace(dir.path());
        assert!(!second.source.join("left").exists());
        second.put_input("vars", b"{}").unwrap();
        second.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
