//! The few system calls that `nix` does not wrap. The only `unsafe` code of the crate.
#![allow(unsafe_code)]

use std::ffi::CStr;

use nix::errno::Errno;
use nix::libc;

/// `_LINUX_CAPABILITY_VERSION_3`: capability sets of two 32-bit words.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityWord {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Marks every descriptor from 3 up to close at `execve`.
pub(super) fn close_all_on_exec() -> Result<(), Errno> {
    // SAFETY: plain integers; the call only sets flags on descriptors of this process.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Errno::result(result).map(drop)
}

/// Gives every signal its default action and blocks none: a worker that ignores SIGHUP or SIGINT
/// would otherwise pass that on to the tool, which then could not be interrupted.
pub(super) fn default_signals() -> Result<(), Errno> {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: SIG_DFL installs no handler, so no code of ours can run in signal context.
        // SIGKILL, SIGSTOP and the C library's own signals are refused, which is what we want.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    nix::sys::signal::SigSet::empty().thread_set_mask()
}

/// Drops every capability from the bounding set.
pub(super) fn drop_bounding_set() -> Result<(), Errno> {
    for capability in 0..64 {
        // SAFETY: PR_CAPBSET_READ and PR_CAPBSET_DROP take one integer and touch no memory of ours.
        let known = unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) };
        match known {
            0 => {}
            1 => {
                // SAFETY: as above.
                Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) })?;
            }
            _ => break,
        }
    }
    Ok(())
}

/// Empties the ambient set.
pub(super) fn clear_ambient_set() -> Result<(), Errno> {
    // SAFETY: integers only; unused arguments must be zero, and are.
    let result = unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    Errno::result(result).map(drop)
}

/// Empties the effective, permitted and inheritable sets, and reads them back.
pub(super) fn clear_capabilities() -> Result<(), Errno> {
    let mut header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut words = [CapabilityWord::default(); 2];
    // SAFETY: version 3 reads one header and exactly two words; both live for the call.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, words.as_ptr()) })?;
    // SAFETY: version 3 writes exactly two words into `words`, which is exclusively ours.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) })?;
    let empty = words.iter().all(|word| word.effective | word.permitted | word.inheritable == 0);
    if empty { Ok(()) } else { Err(Errno::EPERM) }
}

/// Lowers the hard limit of `resource` to at most `most`; a limit that is lower already stays.
pub(super) fn limit(resource: nix::sys::resource::Resource, soft: u64, most: u64) -> Result<(), Errno> {
    let (_, hard) = nix::sys::resource::getrlimit(resource)?;
    let hard = hard.min(most);
    nix::sys::resource::setrlimit(resource, soft.min(hard), hard)
}

/// Asks for the highest scheduling priority.
pub(super) fn raise_priority() -> Result<(), Errno> {
    // SAFETY: integers only.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) }).map(drop)
}

/// Whether root cannot be had back.
pub(super) fn root_is_out_of_reach() -> bool {
    let zero = nix::unistd::Uid::from_raw(0);
    let keep = nix::unistd::Uid::from_raw(u32::MAX);
    nix::unistd::setuid(zero).is_err() && nix::unistd::setresuid(keep, zero, keep).is_err()
}

/// Replaces this process by `program`; returns only if that fails.
pub(super) fn execve(program: &CStr, args: &[impl AsRef<CStr>], env: &[impl AsRef<CStr>]) -> Errno {
    match nix::unistd::execve(program, args, env) {
        Ok(never) => match never {},
        Err(errno) => errno,
    }
}

/// A kind of System V objects, which outlive the process that made them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ipc {
    SharedMemory,
    Semaphores,
    Messages,
}

impl Ipc {
    /// Where the kernel lists them.
    pub(super) const fn table(self) -> &'static str {
        match self {
            Self::SharedMemory => "/proc/sysvipc/shm",
            Self::Semaphores => "/proc/sysvipc/sem",
            Self::Messages => "/proc/sysvipc/msg",
        }
    }

    /// The column of their ids.
    pub(super) const fn column(self) -> &'static str {
        match self {
            Self::SharedMemory => "shmid",
            Self::Semaphores => "semid",
            Self::Messages => "msqid",
        }
    }
}

/// Removes a System V object; one that is gone already is no error.
pub(super) fn remove_ipc(kind: Ipc, id: i32) -> Result<(), Errno> {
    let result = match kind {
        // SAFETY: IPC_RMID reads nothing through the pointer.
        Ipc::SharedMemory => unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) },
        // SAFETY: IPC_RMID takes no further argument.
        Ipc::Semaphores => unsafe { libc::semctl(id, 0, libc::IPC_RMID) },
        // SAFETY: as for shared memory.
        Ipc::Messages => unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) },
    };
    match Errno::result(result) {
        Ok(_) | Err(Errno::EINVAL | Errno::EIDRM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
const KEYCTL_CLEAR: libc::c_long = 7;
/// `KEY_SPEC_USER_KEYRING` and `KEY_SPEC_USER_SESSION_KEYRING`.
const OWN_KEYRINGS: [libc::c_long; 2] = [-4, -5];

/// Leaves the session keyring that came with the worker for an empty one. A kernel without keyrings, or a container that
/// forbids them, gives the tool none either.
pub(super) fn leave_session_keyring() {
    // SAFETY: a null name asks for an anonymous keyring; nothing is read.
    unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

/// Empties the keyrings of the user that this process is; see [`leave_session_keyring`] for when there are none.
pub(super) fn clear_keyrings() {
    for keyring in OWN_KEYRINGS {
        // SAFETY: integers only.
        unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_CLEAR, keyring) };
    }
}
