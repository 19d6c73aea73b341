//! Kills what a UID still runs, and looks until nothing of it is left.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use forgeplane_core::evidence::Cleanup;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::{helper, leftovers};

/// After this the UID counts as dirty.
const PATIENCE: Duration = Duration::from_secs(10);
/// A killed process needs a moment to die; looking again at once only costs processor time it needs.
const PAUSE: Duration = Duration::from_millis(20);

/// The ids of one sweep.
#[derive(Clone, Copy)]
pub(super) struct Ids {
    pub uid: u32,
    pub gid: u32,
    pub reaper: u32,
}

/// Kills and scans until two scans in a row find nothing, at most [`PATIENCE`] long.
pub(super) fn sweep(program: &Path, ids: Ids) -> Cleanup {
    let deadline = Instant::now() + PATIENCE;
    let mut clean_scans = 0;
    loop {
        if clean_scans == 0
            && let Err(error) = kill_all(program, ids, deadline)
        {
            tracing::warn!(uid = ids.uid, %error, "the sweep helper failed");
            // Clean is a statement about what was killed, not only about what is not seen.
            if Instant::now() >= deadline {
                return Cleanup::Dirty;
            }
            thread::sleep(PAUSE);
            continue;
        }
        match any_thread_of(Path::new("/proc"), ids.uid) {
            Ok(false) => clean_scans += 1,
            Ok(true) => clean_scans = 0,
            Err(error) => {
                tracing::warn!(uid = ids.uid, %error, "cannot see which processes run");
                clean_scans = 0;
            }
        }
        if clean_scans == 2 {
            return Cleanup::Clean;
        }
        if Instant::now() >= deadline {
            return Cleanup::Dirty;
        }
        thread::sleep(PAUSE);
    }
}

/// Kills what runs, and removes what else was left outside of workspaces.
pub(super) fn clear(program: &Path, ids: Ids) -> Cleanup {
    let killed = sweep(program, ids);
    if killed != Cleanup::Clean {
        return killed;
    }
    // No command runs any more, so that nobody else waits for any of them.
    let reaped = reap(Path::new("/proc"), ids.uid);
    let forgotten = pass(program, helper::FORGET, &[ids.uid, ids.gid], Instant::now() + PATIENCE);
    match reaped.and(forgotten).and_then(|()| leftovers::remove(ids.uid)) {
        Ok(()) => Cleanup::Clean,
        Err(error) => {
            tracing::warn!(uid = ids.uid, %error, "what a tool left behind cannot be removed");
            Cleanup::Dirty
        }
    }
}

fn kill_all(program: &Path, ids: Ids, deadline: Instant) -> io::Result<()> {
    pass(program, helper::SWEEP, &[ids.uid, ids.gid, ids.reaper], deadline)
}

/// One pass of the helper.
fn pass(program: &Path, what: &str, ids: &[u32], deadline: Instant) -> io::Result<()> {
    let mut child = Command::new(program)
        .arg0(helper::ARGV0)
        .arg(what)
        .args(ids.iter().map(u32::to_string))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            None => {
                child.kill()?;
                break child.wait()?;
            }
        }
    };
    succeeded(status)
}

fn succeeded(status: ExitStatus) -> io::Result<()> {
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("it ended with {status}"))) }
}

/// Whether a thread that is not a zombie has `uid` as its real, effective, saved or file-system UID.
fn any_thread_of(proc: &Path, uid: u32) -> io::Result<bool> {
    let myself = std::process::id().to_string();
    let mut seen_myself = false;
    for process in fs::read_dir(proc)? {
        let process = process?;
        if !is_number(&process.file_name()) {
            continue;
        }
        seen_myself |= process.file_name() == OsStr::new(&myself);
        // A process that ends while we look is not there any more; every other failure means that we cannot tell.
        let Some(threads) = unless_gone(fs::read_dir(process.path().join("task")))? else { continue };
        for thread in threads {
            let Some(thread) = unless_gone(thread)? else { continue };
            let Some(status) = unless_gone(fs::read(thread.path().join("status")))? else { continue };
            if belongs_to(&status, uid)? {
                return Ok(true);
            }
        }
    }
    if seen_myself { Ok(false) } else { Err(io::Error::other("/proc does not show this process")) }
}

/// Waits for the dead of a UID that are children of this process: a tool can make its child one, and whatever loses its
/// parent becomes one where the worker is the first process of its container.
fn reap(proc: &Path, uid: u32) -> io::Result<()> {
    let myself = std::process::id().to_string();
    for process in fs::read_dir(proc)? {
        let process = process?;
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Some(status) = unless_gone(fs::read(process.path().join("status")))? else { continue };
        let ours = field(&status, "PPid:").is_some_and(|parent| parent == myself);
        let dead = field(&status, "State:").is_some_and(|state| state.starts_with('Z'));
        let of_the_tool = field(&status, "Uid:").is_some_and(|ids| holds(&ids, uid));
        if ours && dead && of_the_tool {
            // ECHILD: somebody else has waited for it meanwhile.
            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
    }
    Ok(())
}

fn is_number(name: &OsStr) -> bool {
    name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
}

fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads `State:` and `Uid:` of a status file. The name of a program may hold any byte, but no line break.
fn belongs_to(status: &[u8], uid: u32) -> io::Result<bool> {
    let (Some(state), Some(uids)) = (field(status, "State:"), field(status, "Uid:")) else {
        return Err(io::Error::other("a status file without State or Uid"));
    };
    let dead = state.starts_with(['Z', 'X', 'x']);
    Ok(!dead && holds(&uids, uid))
}

/// Whether one of the four ids of a line is this one.
fn holds(ids: &str, uid: u32) -> bool {
    ids.split_ascii_whitespace().any(|id| id.parse() == Ok(uid))
}

fn field(status: &[u8], name: &str) -> Option<String> {
    status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(name.as_bytes()))
        .map(|rest| String::from_utf8_lossy(rest).trim().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn status(state: &str, uids: &str) -> Vec<u8> {
        format!("Name:\tUid: 7\nUmask:\t0077\nState:\t{state}\nTgid:\t1\nUid:\t{uids}\nGid:\t7\t7\t7\t7\n")
            .into_bytes()
    }

    #[test]
    fn every_uid_slot_counts_and_the_dead_do_not() {
        for uids in ["7\t1\t1\t1", "1\t7\t1\t1", "1\t1\t7\t1", "1\t1\t1\t7"] {
            assert!(belongs_to(&status("S (sleeping)", uids), 7).unwrap());
            assert!(belongs_to(&status("D (disk sleep)", uids), 7).unwrap());
            assert!(!belongs_to(&status("Z (zombie)", uids), 7).unwrap());
            assert!(!belongs_to(&status("X (dead)", uids), 7).unwrap());
        }
        assert!(!belongs_to(&status("R (running)", "70\t17\t1\t77"), 7).unwrap());
        assert!(belongs_to(b"Name:\tx\n", 7).is_err());
    }

    #[test]
    fn a_proc_that_hides_this_process_proves_nothing() {
        let empty = tempfile::tempdir().unwrap();
        assert!(any_thread_of(empty.path(), 7).is_err());
        assert!(any_thread_of(&empty.path().join("absent"), 7).is_err());
    }
}
