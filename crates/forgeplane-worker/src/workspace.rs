//! A fresh workspace per attempt, and reading back from it what a hostile tool left there.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, chown, lchown};
use std::path::{Component, Path, PathBuf};

use forgeplane_core::id::AttemptId;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::durable::{self, DirLock};
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
    /// Tells other workers with the same workspace root that this one is in use.
    _lock: DirLock,
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
        // Between making and locking it, nobody may take it for a leftover.
        let making = durable::lock_dir(workspace_root)?;
        if root.exists() {
            remove_tree(&root)?;
        }
        directory(&root, 0o711)?;
        let lock = durable::try_lock_dir(&root)?
            .ok_or_else(|| io::Error::other("the workspace is in use by another worker"))?;
        drop(making);
        let workspace = Self {
            source: root.join("source"),
            home: root.join("home"),
            tmp: root.join("tmp"),
            input: root.join("input"),
            output: root.join("output"),
            private: root.join("private"),
            root,
            isolation,
            _lock: lock,
        };
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
        remove_tree(&self.root)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}

/// Removes the workspaces that crashed workers left below a root. One that is in use is locked, and stays.
pub(crate) fn remove_leftovers(workspace_root: &Path) -> io::Result<()> {
    let _alone = durable::lock_dir(workspace_root)?;
    for entry in fs::read_dir(workspace_root)? {
        let entry = entry?;
        let is_workspace = entry.file_name().to_str().is_some_and(|name| name.parse::<AttemptId>().is_ok());
        if !is_workspace || !entry.file_type()?.is_dir() {
            continue;
        }
        if let Some(_lock) = durable::try_lock_dir(&entry.path())? {
            tracing::info!(workspace = %entry.path().display(), "removing the workspace of an earlier worker");
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a directory and everything in it, following no link.
///
/// A tool can nest directories deeper than paths are long and than descriptors can be open, so the tree is not
/// walked down: every directory is moved up next to the root's entries before it is emptied. Two descriptors
/// do for any depth.
pub(crate) fn remove_tree(root: &Path) -> io::Result<()> {
    let look = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut top = Dir::open(root, look, Mode::empty())?;
    let mut moved = 0_u64;
    loop {
        let names = names_in(&mut top)?;
        if names.is_empty() {
            break;
        }
        for name in names {
            match unlinkat(&top, name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
                Ok(()) => continue,
                Err(Errno::EISDIR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let mut directory = Dir::openat(&top, name.as_c_str(), look, Mode::empty())?;
            for inner in names_in(&mut directory)? {
                match unlinkat(&directory, inner.as_c_str(), UnlinkatFlags::NoRemoveDir) {
                    Ok(()) => {}
                    Err(Errno::EISDIR) => loop {
                        moved += 1;
                        let free = format!(".removing-{moved}");
                        match renameat(&directory, inner.as_c_str(), &top, free.as_str()) {
                            Ok(()) => break,
                            // A name the tool has used; the next one.
                            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
                            Err(errno) => return Err(errno.into()),
                        }
                    },
                    Err(errno) => return Err(errno.into()),
                }
            }
            unlinkat(&top, name.as_c_str(), UnlinkatFlags::RemoveDir)?;
        }
    }
    drop(top);
    fs::remove_dir(root)
}

fn names_in(directory: &mut Dir) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in directory.iter() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
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
    #[test]
    fn e16_trees_deeper_than_any_path_and_names_of_any_bytes_are_removed() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt as _;
        let dir = tempfile::tempdir().unwrap();
        let workspace = workspace(dir.path());
        let step = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut at: OwnedFd = open(&workspace.home, step, Mode::empty()).unwrap();
        for _ in 0..6_000 {
            nix::sys::stat::mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            drop(File::from(openat(&at, "file", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRUSR).unwrap()));
            at = openat(&at, "d", step, Mode::empty()).unwrap();
        }
        drop(at);
        fs::write(workspace.tmp.join(OsStr::from_bytes(b"new\nline \xff")), "x").unwrap();
        fs::create_dir(workspace.tmp.join(".removing-1")).unwrap();
        fs::write(workspace.tmp.join(".removing-1/full"), "x").unwrap();
        fs::create_dir_all(workspace.root.join(".removing-2/full")).unwrap();
        workspace.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn e15_removal_stays_inside() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        let workspace = workspace(&dir.path().join("work"));
        std::os::unix::fs::symlink(&outside, workspace.source.join("link")).unwrap();
        std::os::unix::fs::symlink(&outside, workspace.root.join("link")).unwrap();
        nix::unistd::mkfifo(&workspace.tmp.join("fifo"), Mode::S_IRWXU).unwrap();
        drop(std::os::unix::net::UnixListener::bind(workspace.tmp.join("socket")).unwrap());
        fs::hard_link(outside.join("kept"), workspace.tmp.join("hard")).unwrap();
        workspace.remove().unwrap();
        assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "x");
        assert_eq!(fs::read_dir(dir.path().join("work")).unwrap().count(), 0);
    }

    #[test]
    fn leftovers_are_removed_unless_another_worker_is_at_work_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let id = |n| AttemptId::new(Timestamp::UNIX_EPOCH, [n; 10]);
        let used = Workspace::create(dir.path(), id(1), Isolation::UnsafeNone).unwrap();
        let crashed = Workspace::create(dir.path(), id(2), Isolation::UnsafeNone).unwrap();
        let left = crashed.root().to_owned();
        drop(crashed);
        fs::create_dir(dir.path().join("something-else")).unwrap();
        remove_leftovers(dir.path()).unwrap();
        assert!(used.root().exists() && !left.exists() && dir.path().join("something-else").exists());
    }
}
