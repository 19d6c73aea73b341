//! One host never lends one UID to two workers.
//!
//! A worker kills every process of its IaC UID before and after each run. Were two workers of one host
//! given the same UID, each would kill the other's tool and call it clean-up. Each UID in use is
//! therefore an open, locked file; the lock goes with the process that holds it, however that ends.

use std::collections::HashSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Where workers of one host meet. Containers that share the host's UIDs must share this folder.
pub const DEFAULT_DIR: &str = "/run/lock/forgeplane";

/// A UID that belongs to this process until the value is dropped.
#[derive(Debug)]
pub struct UidLock {
    uid: u32,
    /// Unlocks when dropped. The file stays: removing it would let two workers lock two files of one name.
    _file: Flock<File>,
}

/// Why a UID is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum UidLockError {
    /// Another worker of this host uses it.
    #[error("another worker on this host uses UID {uid}; give each worker a UID of its own")]
    Taken {
        /// The UID.
        uid: u32,
    },
    /// All of a range are in use or belong to accounts of the host.
    #[error("no UID from {} up to {} is free", .range.start, .range.end)]
    NoneFree {
        /// The range that was tried.
        range: Range<u32>,
    },
    /// Other users may write to the folder, so that its locks prove nothing.
    #[error("the lock folder {path} must belong to this user and be writable by nobody else")]
    Unsafe {
        /// The folder.
        path: PathBuf,
    },
    /// The folder or a lock file cannot be used.
    #[error("the lock {path} cannot be used: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl UidLockError {
    /// The stable machine code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Taken { .. } => "uid_taken",
            Self::NoneFree { .. } => "no_uid_free",
            Self::Unsafe { .. } => "lock_folder_unsafe",
            Self::Io { .. } => "lock_unusable",
        }
    }

    /// Whether the same call may succeed later: a worker that ends gives its UID back.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Taken { .. } | Self::NoneFree { .. })
    }
}

impl UidLock {
    /// Takes `uid`; makes the folder `dir` if it is missing.
    ///
    /// # Errors
    /// [`UidLockError::Taken`] if another holder lives, in this process or another;
    /// [`UidLockError::Unsafe`] and [`UidLockError::Io`] if the folder is no use.
    pub fn acquire(dir: &Path, uid: u32) -> Result<Self, UidLockError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| UidLockError::Io { path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(at(dir))?;
        let folder = dir.metadata().map_err(at(dir))?;
        if folder.uid() != nix::unistd::geteuid().as_raw() || folder.mode() & 0o022 != 0 {
            return Err(UidLockError::Unsafe { path: dir.to_owned() });
        }
        let path = dir.join(format!("uid-{uid}.lock"));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(&path)
            .map_err(at(&path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Self { uid, _file: file }),
            Err((_, Errno::EWOULDBLOCK)) => Err(UidLockError::Taken { uid }),
            Err((_, errno)) => Err(at(&path)(errno.into())),
        }
    }

    /// Takes the first free UID of `range`, going up by `step` so that the ids between are the holder's
    /// too (a reaper UID, for instance). Ids that `/etc/passwd` names are passed over.
    ///
    /// # Errors
    /// [`UidLockError::NoneFree`] if there is none, otherwise as [`UidLock::acquire`].
    pub fn acquire_free(dir: &Path, range: Range<u32>, step: usize) -> Result<Self, UidLockError> {
        let step = step.max(1);
        let named = named_users()?;
        for uid in range.clone().step_by(step) {
            let holds = uid..uid.saturating_add(u32::try_from(step).unwrap_or(u32::MAX));
            if holds.end > range.end || named.iter().any(|named| holds.contains(named)) {
                continue;
            }
            match Self::acquire(dir, uid) {
                Err(UidLockError::Taken { .. }) => {}
                other => return other,
            }
        }
        Err(UidLockError::NoneFree { range })
    }

    /// The UID.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }
}

/// The ids of `/etc/passwd`; none if a minimal image has no such file.
fn named_users() -> Result<HashSet<u32>, UidLockError> {
    const PASSWD: &str = "/etc/passwd";
    let text = match std::fs::read(PASSWD) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(UidLockError::Io { path: PASSWD.into(), source }),
    };
    let ids = String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| line.split(':').nth(2)?.parse().ok())
        .collect();
    Ok(ids)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_uid_has_one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("made").join("when missing");
        let first = UidLock::acquire(&dir, 4242).unwrap();
        let error = UidLock::acquire(&dir, 4242).unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), ("uid_taken", true));
        UidLock::acquire(&dir, 4243).unwrap();
        drop(first);
        assert_eq!(UidLock::acquire(&dir, 4242).unwrap().uid(), 4242);
    }

    #[test]
    fn free_uids_are_found_until_none_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let take = || UidLock::acquire_free(dir.path(), 300_000..300_005, 2);
        let (first, second) = (take().unwrap(), take().unwrap());
        assert_eq!((first.uid(), second.uid()), (300_000, 300_002));
        assert_eq!(take().unwrap_err().code(), "no_uid_free", "300004 has no second id within the range");
        drop(first);
        assert_eq!(take().unwrap().uid(), 300_000);
    }

    #[test]
    fn ids_of_accounts_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        assert!(named_users().unwrap().contains(&0), "root has an account");
        assert_eq!(UidLock::acquire_free(dir.path(), 0..1, 1).unwrap_err().code(), "no_uid_free");
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(UidLock::acquire(dir.path(), 1).unwrap_err().code(), "lock_folder_unsafe");
    }
}
