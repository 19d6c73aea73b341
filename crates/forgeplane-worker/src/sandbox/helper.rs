//! The helper process: single-threaded, freshly exec'd, and gone with `execve` or `exit`.
//!
//! It exists because `setresuid` in a threaded process changes every thread, and because code between
//! `fork` and `exec` of a threaded process may hardly do anything at all.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::exit;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::prctl;
use nix::sys::resource::Resource;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Pid, Uid};

use super::request::{FAILED, READY, Request};
use super::sys;

/// The marker in `argv[0]`.
pub(super) const ARGV0: &str = "forgeplane-sandbox";
/// `argv[1]` of the helper that becomes a tool.
pub(super) const EXEC: &str = "exec";
/// `argv[1]` of the helper that empties a UID's keyrings.
pub(super) const FORGET: &str = "forget";
/// `argv[1]` of the helper that kills every process of a UID.
pub(super) const SWEEP: &str = "sweep";

const OPEN_FILES_SOFT: u64 = 4096;
const OPEN_FILES_HARD: u64 = 65_536;
/// Threads and processes of one IaC UID: well above any tool, well below what hurts a host.
const PROCESSES: u64 = 4096;

/// A step that failed, and how.
type Failed = (&'static str, Errno);

/// Acts as the helper if this process was started as one; returns otherwise.
pub(super) fn act_if_helper() {
    let mut args = std::env::args_os();
    if args.next().as_deref() != Some(OsStr::new(ARGV0)) {
        return;
    }
    match args.next().as_deref().and_then(OsStr::to_str) {
        Some(EXEC) => exec(),
        Some(FORGET) => forget(&args.collect::<Vec<_>>()),
        Some(SWEEP) => sweep(&args.collect::<Vec<_>>()),
        _ => {}
    }
}

fn exec() -> ! {
    // Descriptor 0 is the worker's socket. Its copy (above 2, closed at exec) frees 0 for the tool's stdin.
    let Ok(moved) = std::io::stdin().as_fd().try_clone_to_owned() else { exit(2) };
    let worker = UnixStream::from(moved);
    let (step, errno) = match Request::read_from(&worker) {
        Ok(request) => become_tool(&request, &worker),
        Err(_) => ("request", Errno::EPROTO),
    };
    let mut answer = vec![FAILED];
    answer.extend((errno as i32).to_le_bytes());
    answer.extend(step.as_bytes());
    let _ = (&worker).write_all(&answer);
    exit(2)
}

/// The steps, in an order that matters; see the front page of [`super`]. Returns only if one fails.
fn become_tool(request: &Request, mut worker: &UnixStream) -> Failed {
    if let Err(failed) = prepare(request) {
        return failed;
    }
    if let Err(error) = worker.write_all(&[READY]) {
        return ("report", Errno::from_raw(error.raw_os_error().unwrap_or(0)));
    }
    ("execve", sys::execve(&request.program, &request.args, &request.env))
}

fn prepare(request: &Request) -> Result<(), Failed> {
    let at = |step: &'static str| move |errno: Errno| (step, errno);

    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    if !matches!(threads, Ok(1)) {
        return Err(("single_thread", Errno::EBUSY));
    }
    nix::unistd::setsid().map_err(at("setsid"))?;
    let null = open("/dev/null", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).map_err(at("stdin"))?;
    nix::unistd::dup2_stdin(null).map_err(at("stdin"))?;
    sys::close_all_on_exec().map_err(at("close_range"))?;
    sys::default_signals().map_err(at("signals"))?;

    sys::limit(Resource::RLIMIT_CORE, 0, 0).map_err(at("rlimit_core"))?;
    sys::limit(Resource::RLIMIT_NOFILE, OPEN_FILES_SOFT, OPEN_FILES_HARD).map_err(at("rlimit_nofile"))?;

    if let Some((uid, gid)) = request.ids {
        sys::limit(Resource::RLIMIT_NPROC, PROCESSES, PROCESSES).map_err(at("rlimit_nproc"))?;
        // When memory runs out, the tool goes before the worker. Some hosts forbid it; then nothing is lost.
        let _ = std::fs::write("/proc/self/oom_score_adj", "500");
        sys::drop_bounding_set().map_err(at("bounding_set"))?;
        sys::clear_ambient_set().map_err(at("ambient_set"))?;
        become_user(Uid::from_raw(uid), Gid::from_raw(gid))?;
        sys::leave_session_keyring();
    }

    prctl::set_no_new_privs().map_err(at("no_new_privs"))?;
    // After the UID change, which clears it. If the worker died before this call, the signal never
    // comes; then we already have another parent.
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(at("parent_death_signal"))?;
    if nix::unistd::getppid().as_raw().cast_unsigned() != request.parent {
        return Err(("parent_died", Errno::ESRCH));
    }
    umask(Mode::from_bits_truncate(0o077));
    nix::unistd::chdir(request.cwd.as_c_str()).map_err(at("chdir"))
}

/// Gives root up for good, and looks whether it is gone.
fn become_user(uid: Uid, gid: Gid) -> Result<(), Failed> {
    nix::unistd::setgroups(&[]).map_err(|errno| ("setgroups", errno))?;
    nix::unistd::setresgid(gid, gid, gid).map_err(|errno| ("setresgid", errno))?;
    nix::unistd::setresuid(uid, uid, uid).map_err(|errno| ("setresuid", errno))?;
    sys::clear_capabilities().map_err(|errno| ("capabilities", errno))?;

    let users = nix::unistd::getresuid().map_err(|errno| ("getresuid", errno))?;
    let groups = nix::unistd::getresgid().map_err(|errno| ("getresgid", errno))?;
    let supplementary = nix::unistd::getgroups().map_err(|errno| ("getgroups", errno))?;
    let exact = [users.real, users.effective, users.saved].iter().all(|id| *id == uid)
        && [groups.real, groups.effective, groups.saved].iter().all(|id| *id == gid)
        && supplementary.is_empty();
    if exact && sys::root_is_out_of_reach() { Ok(()) } else { Err(("verify_ids", Errno::EPERM)) }
}

/// Empties the keyrings of a UID, which only that UID can. Exit code 0: there is nothing in them.
fn forget(args: &[OsString]) -> ! {
    let ids: Vec<u32> = args.iter().filter_map(|arg| arg.to_str()?.parse().ok()).collect();
    let [uid, gid] = ids.as_slice() else { exit(2) };
    if become_user(Uid::from_raw(*uid), Gid::from_raw(*gid)).is_err() {
        exit(3);
    }
    sys::clear_keyrings();
    exit(0)
}

/// Kills every process of a UID. Exit code 0: the signal was sent to all there were.
fn sweep(args: &[OsString]) -> ! {
    let ids: Vec<u32> = args.iter().filter_map(|arg| arg.to_str()?.parse().ok()).collect();
    let [uid, gid, reaper] = ids.as_slice() else { exit(2) };
    let (uid, gid, reaper) = (Uid::from_raw(*uid), Gid::from_raw(*gid), Uid::from_raw(*reaper));
    // Among hundreds of spinning processes a pass takes seconds otherwise. Not allowed everywhere, never required.
    let _ = sys::raise_priority();
    // The effective UID gives the permission to kill. The real one gives it too, so it must not be 0:
    // the kill would reach every process of root. As the saved one is the reaper's as well, nothing
    // that runs as `uid` may kill this helper.
    let done = nix::unistd::setgroups(&[])
        .and_then(|()| nix::unistd::setresgid(gid, gid, gid))
        .and_then(|()| nix::unistd::setresuid(reaper, uid, reaper))
        .and_then(|()| nix::unistd::getresuid())
        .is_ok_and(|ids| ids.real == reaper && ids.effective == uid && ids.saved == reaper);
    if !done || reaper.is_root() || uid.is_root() {
        exit(3);
    }
    match kill(Pid::from_raw(-1), Signal::SIGKILL) {
        // None there, or none that we may kill.
        Ok(()) | Err(Errno::ESRCH | Errno::EPERM) => exit(0),
        Err(_) => exit(4),
    }
}
