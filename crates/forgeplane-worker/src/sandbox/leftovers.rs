//! What a tool leaves that is no process, outside of its workspace, where the next tool of the same user could read it.

use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::sys::{self, Ipc};
use crate::workspace::remove_tree;

/// Where everybody may write, and the spools that a setgid program could write to.
const SHARED: [&str; 7] = [
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/dev/mqueue",
    "/run/lock",
    "/var/spool/cron/crontabs",
    "/var/spool/cron/atjobs",
];

/// How deep directories of others are looked into; only those that everybody may write to are.
const DEPTH: usize = 8;

/// Removes what a user without processes has left on this host: files in places that everybody may write to, shared
/// memory, semaphores and message queues.
///
/// # Errors
/// When something of it cannot be removed.
pub(super) fn remove(uid: u32) -> io::Result<()> {
    for directory in SHARED {
        remove_files(Path::new(directory), uid, DEPTH)?;
    }
    for kind in [Ipc::SharedMemory, Ipc::Semaphores, Ipc::Messages] {
        let table = match fs::read_to_string(kind.table()) {
            Ok(table) => table,
            // A kernel without it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for id in owned(&table, kind.column(), uid)? {
            sys::remove_ipc(kind, id)?;
        }
    }
    Ok(())
}

fn remove_files(directory: &Path, uid: u32, depth: usize) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        match remove_entry(&entry?, uid, depth) {
            // Somebody else's, gone by itself.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

fn remove_entry(entry: &DirEntry, uid: u32, depth: usize) -> io::Result<()> {
    // Of the entry itself, never of what a link points to.
    let metadata = entry.metadata()?;
    let path = entry.path();
    if metadata.uid() == uid {
        return if metadata.is_dir() { remove_tree(&path) } else { fs::remove_file(&path) };
    }
    if metadata.is_dir() && metadata.mode() & 0o002 != 0 && depth > 0 {
        remove_files(&path, uid, depth - 1)?;
    }
    Ok(())
}

/// The ids of a table of `/proc/sysvipc` that a user made or owns.
fn owned(table: &str, id: &str, uid: u32) -> io::Result<Vec<i32>> {
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    let place = |name: &str| {
        names
            .iter()
            .position(|it| *it == name)
            .ok_or_else(|| io::Error::other(format!("/proc/sysvipc has no column {name}")))
    };
    let (id, owners) = (place(id)?, [place("uid")?, place("cuid")?]);
    let ids = lines.filter_map(|line| {
        let row: Vec<&str> = line.split_ascii_whitespace().collect();
        let owned = owners.iter().any(|at| row.get(*at).and_then(|it| it.parse().ok()) == Some(uid));
        owned.then(|| row.get(id)?.parse().ok()).flatten()
    });
    Ok(ids.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_made_or_owns_is_found_in_the_kernels_tables() {
        let table = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid\n\
                     \x20        1         70   600          0          0     0     0     7     9     9     9\n\
                     \x20        2         71   600          0          0     0     0     9     7     9     7\n\
                     \x20        3         72   600          0          0     0     0     9     9     7     9\n";
        assert_eq!(owned(table, "msqid", 7).unwrap(), [70, 72]);
        assert!(owned(table, "shmid", 7).is_err());
    }

    #[test]
    fn files_of_others_stay_and_only_their_open_directories_are_looked_into() {
        use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (uid, other) = (234_567, 234_568);
        let make = |name: &str, owner: u32| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "x").unwrap();
            chown(&path, Some(owner), None).unwrap();
            path
        };
        let (mine, theirs) = (make("mine", uid), make("theirs", other));
        let (in_open, in_closed) = (make("open/mine", uid), make("closed/mine", uid));
        let tree = make("tree/deep/theirs", other);
        for at in ["tree", "tree/deep"] {
            chown(dir.path().join(at), Some(uid), None).unwrap();
        }
        fs::set_permissions(dir.path().join("open"), fs::Permissions::from_mode(0o1777)).unwrap();
        symlink(&theirs, dir.path().join("link")).unwrap();
        nix::unistd::fchownat(
            nix::fcntl::AT_FDCWD,
            &dir.path().join("link"),
            Some(uid.into()),
            None,
            nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW,
        )
        .unwrap();
        remove_files(dir.path(), uid, DEPTH).unwrap();
        for gone in [&mine, &in_open, &tree, &dir.path().join("tree")] {
            assert!(!gone.exists(), "{}", gone.display());
        }
        assert!(fs::symlink_metadata(dir.path().join("link")).is_err());
        assert!(theirs.exists() && in_closed.exists());
    }
}
