//! Runs a tool in a box of its own, and proves afterwards that nothing of it is left.
//!
//! The worker never becomes the tool. It starts a small helper (itself, exec'd again under the name
//! `forgeplane-sandbox`, or an executable you name), which takes these steps in this order and then
//! `execve`s the tool:
//!
//! | step | why |
//! | --- | --- |
//! | own session and process group | one signal reaches the tool and what it started, and not the worker |
//! | stdin from `/dev/null` | a tool that asks a question gets an end of file, not silence |
//! | every other descriptor closes at exec | no socket, key file or journal of the worker is inherited |
//! | default signal actions | an ignored SIGINT would be inherited, and cancelling would do nothing |
//! | limits: no core files, open files, processes | secrets do not land in core files; a fork bomb ends |
//! | capability bounding and ambient sets emptied | no later exec brings a capability back |
//! | `setgroups([])`, `setresgid`, `setresuid`, read back | root is gone, and so are its groups |
//! | an empty session keyring | keys of the worker's session are not inherited |
//! | no new privileges | a setuid program is no way out |
//! | parent-death signal, then the parent compared | the worker's death takes the tool along |
//! | umask 077, working directory, `execve` | with exactly the environment that was given |
//!
//! A step that fails is told to the worker with its name ([`SandboxError::HelperFailed`]), so that it is
//! never taken for the tool's own exit code.
//!
//! After the tool, [`Sandbox::sweep`] kills every process of the UID in one system call, which no fork
//! bomb, double fork or second session escapes, and looks at every thread of the host until two scans
//! in a row find none of that UID. [`Sandbox::clear`] also removes what is no process: files in directories
//! that everybody may write to, System V objects, keys.
//!
//! ```no_run
//! use forgeplane_worker::sandbox::{CommandSpec, Isolation, Sandbox, run_if_helper};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     run_if_helper(); // before any thread exists
//!     tokio::runtime::Runtime::new()?.block_on(async {
//!         let sandbox = Sandbox::new(Isolation::Uid { uid: 60_000, gid: 60_000, reaper_uid: 60_001 }, None)?;
//!         let mut running = sandbox.spawn(CommandSpec {
//!             program: "/usr/bin/id".into(),
//!             args: vec![],
//!             env: vec![("LANG".into(), "C".into())],
//!             cwd: "/".into(),
//!         }).await?;
//!         println!("{:?}, then {:?}", running.wait().await?, sandbox.sweep().await);
//!         Ok(())
//!     })
//! }
//! ```

mod error;
mod helper;
mod leftovers;
mod request;
mod running;
mod sweep;
mod sys;

use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::{io, thread};

use forgeplane_core::evidence::Cleanup;
use tokio::sync::oneshot;

pub use error::SandboxError;
pub use running::{Exit, Pipe, Running};

use request::Request;

/// Whether `main` called [`run_if_helper`], so that this program may be exec'd again as the helper.
static REEXEC_IS_SAFE: AtomicBool = AtomicBool::new(false);

/// First thing in `main`: acts as the sandbox helper and never returns, if this process was started as
/// one; otherwise remembers that this program may be started as its own helper.
///
/// Call it before any thread exists, hence before a runtime: the helper refuses to work in a process
/// with several threads.
pub fn run_if_helper() {
    helper::act_if_helper();
    REEXEC_IS_SAFE.store(true, Ordering::Release);
}

/// How a tool is kept apart from the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// The tool runs as a user that nothing else on the host uses; needs root.
    Uid {
        /// The tool's user.
        uid: u32,
        /// The tool's only group.
        gid: u32,
        /// Another unused user: the real UID of the helper that kills, so that the tool cannot kill it.
        reaper_uid: u32,
    },
    /// The tool runs as the worker's own user, and nobody can tell what it leaves behind. For local
    /// development only.
    UnsafeNone,
}

/// What to run.
#[derive(Clone, PartialEq, Eq)]
pub struct CommandSpec {
    /// Absolute path of the executable.
    pub program: PathBuf,
    /// Arguments, without the program's name. Everybody on the host can read them: no secrets here.
    pub args: Vec<OsString>,
    /// The whole environment, nothing is added. Secrets may be here.
    pub env: Vec<(OsString, OsString)>,
    /// Absolute path of the working directory; the tool's user must be able to enter it.
    pub cwd: PathBuf,
}

impl fmt::Debug for CommandSpec {
    /// Shows names of environment variables, never their values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandSpec")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("env", &self.env.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("cwd", &self.cwd)
            .finish()
    }
}

/// Starts commands in one isolation and sweeps up after them. Clones share everything.
#[derive(Clone)]
pub struct Sandbox {
    shared: Arc<Shared>,
}

struct Shared {
    isolation: Isolation,
    helper: PathBuf,
    spawner: mpsc::Sender<Start>,
    /// Two sweeps at once would kill each other's helper.
    sweeping: Mutex<()>,
}

/// A command for the spawning thread.
struct Start {
    command: Command,
    reply: oneshot::Sender<io::Result<Child>>,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("isolation", &self.shared.isolation)
            .field("helper", &self.shared.helper)
            .finish()
    }
}

impl Sandbox {
    /// A sandbox, and the thread from which all its commands are started.
    ///
    /// `helper` names the helper executable (the crate's binary `forgeplane-sandbox`, or any program
    /// that calls [`run_if_helper`] first). `None` starts this program again, from its own image, even
    /// if the file was replaced meanwhile.
    ///
    /// # Errors
    /// [`SandboxError::NotRoot`] and [`SandboxError::InvalidIds`] if the isolation is not possible;
    /// [`SandboxError::HelperUnavailable`] if no helper is named and [`run_if_helper`] was not called;
    /// [`SandboxError::HelperMissing`] if the named one cannot be used.
    pub fn new(isolation: Isolation, helper: Option<PathBuf>) -> Result<Self, SandboxError> {
        validate(isolation)?;
        let helper = match helper {
            Some(path) => usable_helper(path)?,
            None if REEXEC_IS_SAFE.load(Ordering::Acquire) => PathBuf::from("/proc/self/exe"),
            None => return Err(SandboxError::HelperUnavailable),
        };
        // The parent-death signal fires when the *thread* that started a command ends, so commands are
        // started by one that lives as long as the sandbox and everything that runs in it.
        let (spawner, starts) = mpsc::channel::<Start>();
        thread::Builder::new()
            .name("sandbox-spawner".to_owned())
            .spawn(move || {
                for Start { mut command, reply } in starts {
                    if let Err(Ok(mut abandoned)) = reply.send(command.spawn()) {
                        let _ = abandoned.kill();
                        let _ = abandoned.wait();
                    }
                }
            })
            .map_err(SandboxError::Spawn)?;
        Ok(Self { shared: Arc::new(Shared { isolation, helper, spawner, sweeping: Mutex::new(()) }) })
    }

    /// How tools are kept apart here.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        self.shared.isolation
    }

    /// Starts a command and returns when the tool itself runs. Needs a tokio runtime.
    ///
    /// A caller that goes away before the answer leaves nothing running.
    ///
    /// # Errors
    /// Everything that keeps the tool from running, see [`SandboxError`].
    pub async fn spawn(&self, spec: CommandSpec) -> Result<Running, SandboxError> {
        let request = Request::new(&spec, self.shared.isolation, std::process::id())?;
        let (ours, theirs) = UnixStream::pair().map_err(SandboxError::Spawn)?;
        let mut command = Command::new(&self.shared.helper);
        command
            .arg0(helper::ARGV0)
            .arg(helper::EXEC)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (reply, answer) = oneshot::channel();
        let gone = || SandboxError::Spawn(io::Error::other("the spawning thread has ended"));
        self.shared.spawner.send(Start { command, reply }).map_err(|_| gone())?;
        let child = answer.await.map_err(|_| gone())?.map_err(SandboxError::Spawn)?;
        running::hand_over(child, request, ours, self.clone()).await
    }

    /// Kills every process of the tool's user and looks until none is left, at most 10 seconds long.
    ///
    /// [`Cleanup::Unverified`] without isolation, because there is no way to tell a tool's leftovers from
    /// the worker's own processes. Once started it runs to its end, also if the caller goes away.
    pub async fn sweep(&self) -> Cleanup {
        self.apart(sweep::sweep).await
    }

    /// [Sweeps](Self::sweep), and removes what tools left outside of their workspaces that is no process: files in
    /// directories that everybody may write to, shared memory, semaphores, message queues, keys. What cannot be removed
    /// makes the user [dirty](Cleanup::Dirty): the next tool could read it.
    pub async fn clear(&self) -> Cleanup {
        self.apart(sweep::clear).await
    }

    async fn apart(&self, work: fn(&Path, sweep::Ids) -> Cleanup) -> Cleanup {
        let Isolation::Uid { uid, gid, reaper_uid } = self.shared.isolation else {
            return Cleanup::Unverified;
        };
        let shared = Arc::clone(&self.shared);
        let swept = tokio::task::spawn_blocking(move || {
            let _alone = shared.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
            work(&shared.helper, sweep::Ids { uid, gid, reaper: reaper_uid })
        });
        swept.await.unwrap_or(Cleanup::Dirty)
    }
}

fn validate(isolation: Isolation) -> Result<(), SandboxError> {
    let Isolation::Uid { uid, gid, reaper_uid } = isolation else { return Ok(()) };
    let refuse = |reason| Err(SandboxError::InvalidIds { reason });
    if uid == 0 || gid == 0 {
        return refuse("the tool's user and group must not be root's");
    }
    if reaper_uid == 0 {
        return refuse("the reaper's user must not be root: it would kill every process of root");
    }
    if [uid, gid, reaper_uid].contains(&u32::MAX) {
        return refuse("4294967295 means \"keep the present id\" to the system");
    }
    if uid == reaper_uid {
        return refuse("the reaper's user must differ from the tool's, or the tool could kill it");
    }
    let own = nix::unistd::getresuid().map_err(|errno| SandboxError::Spawn(errno.into()))?;
    if [own.real, own.effective, own.saved].iter().any(|id| id.as_raw() == uid || id.as_raw() == reaper_uid) {
        return refuse("the tool's and the reaper's user must not be the worker's own");
    }
    if own.effective.is_root() { Ok(()) } else { Err(SandboxError::NotRoot) }
}

fn usable_helper(path: PathBuf) -> Result<PathBuf, SandboxError> {
    match path.canonicalize().and_then(|real| {
        nix::unistd::access(&real, nix::unistd::AccessFlags::X_OK)?;
        if real.is_file() { Ok(real) } else { Err(io::Error::other("it is not a file")) }
    }) {
        Ok(real) => Ok(real),
        Err(source) => Err(SandboxError::HelperMissing { path, source }),
    }
}
