//! A command that runs: its output, its signals, its end.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::{fmt, thread};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::{oneshot, watch};

use super::request::{FAILED, READY, Request};
use super::{Sandbox, SandboxError};

/// How a command ended: one of the two is set, or neither if it was killed and the kernel would not let go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, if it ended by itself.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        Self { code: status.code(), signal: status.signal() }
    }
}

/// The reading end of a command's stdout or stderr.
///
/// It ends when the last process that inherited the writing end does, which may be after the command's
/// own end; whoever reads it should stop some time after [`Running::wait`] has returned.
#[derive(Debug)]
pub struct Pipe(pipe::Receiver);

impl Pipe {
    fn new(end: OwnedFd) -> Result<Self, SandboxError> {
        pipe::Receiver::from_owned_fd(end).map(Self).map_err(SandboxError::Spawn)
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

/// A command that was started. Dropping it kills the command's process group.
pub struct Running {
    group: Arc<Group>,
    end: watch::Receiver<Option<Result<Exit, i32>>>,
    stdout: Option<Pipe>,
    stderr: Option<Pipe>,
    /// Keeps the spawning thread alive, whose end would be the command's.
    _sandbox: Sandbox,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("pid", &self.group.leader)
            .field("end", &*self.end.borrow())
            .finish_non_exhaustive()
    }
}

impl Running {
    /// The command's stdout, once.
    pub fn take_stdout(&mut self) -> Option<Pipe> {
        self.stdout.take()
    }

    /// The command's stderr, once.
    pub fn take_stderr(&mut self) -> Option<Pipe> {
        self.stderr.take()
    }

    /// Sends SIGINT to the process group, the first time it is called and never again: tools take a
    /// second one for "stop at once, leave things as they are". True if this call sent it.
    pub fn interrupt(&self) -> bool {
        let mut state = self.group.lock();
        if state.interrupted || state.reaped {
            return false;
        }
        state.interrupted = true;
        killpg(self.group.leader, Signal::SIGINT).is_ok()
    }

    /// Sends SIGKILL to the process group.
    pub fn kill(&self) {
        self.group.kill();
    }

    /// Waits for the command's end. May be dropped and called again, also after the end.
    ///
    /// What the command left in its own process group is killed at that moment; what left the group is
    /// found by [`Sandbox::sweep`].
    ///
    /// # Errors
    /// [`SandboxError::Lost`] if something else in this process took the exit status away.
    pub async fn wait(&mut self) -> Result<Exit, SandboxError> {
        let lost = |errno| SandboxError::Lost(io::Error::from_raw_os_error(errno));
        match self.end.wait_for(Option::is_some).await {
            Ok(end) => (*end).unwrap_or(Err(Errno::ECHILD as i32)).map_err(lost),
            Err(_) => Err(lost(Errno::ECHILD as i32)),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.group.kill();
    }
}

/// The process group, named by the process id of its leader. The id belongs to the command only until
/// the leader is reaped; signals and reaping exclude each other, so that no signal reaches a stranger.
struct Group {
    leader: Pid,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    interrupted: bool,
    reaped: bool,
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self) {
        let state = self.lock();
        if !state.reaped {
            let _ = killpg(self.leader, Signal::SIGKILL);
        }
    }

    /// Waits for the leader, kills the rest of the group, reaps. Blocks.
    fn reap(&self, child: &mut Child) -> Result<Exit, i32> {
        let ended = loop {
            match waitid(Id::Pid(self.leader), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
                Err(Errno::EINTR) => {}
                result => break result,
            }
        };
        let mut state = self.lock();
        state.reaped = true;
        ended.map_err(|errno| errno as i32)?;
        // The zombie still holds the id.
        let _ = killpg(self.leader, Signal::SIGKILL);
        child.wait().map(Exit::from).map_err(|error| error.raw_os_error().unwrap_or(Errno::ECHILD as i32))
    }
}

/// Tells a fresh helper what to become, and watches what it becomes until its end.
pub(super) async fn hand_over(
    mut child: Child,
    request: Request,
    helper: UnixStream,
    sandbox: Sandbox,
) -> Result<Running, SandboxError> {
    let missing = || SandboxError::Spawn(io::Error::other("the helper has no output"));
    let stdout = child.stdout.take().map(OwnedFd::from);
    let stderr = child.stderr.take().map(OwnedFd::from);
    let leader = Pid::from_raw(child.id().cast_signed());
    let group = Arc::new(Group { leader, state: Mutex::default() });
    let (set_end, end) = watch::channel(None);
    let (started, answer) = oneshot::channel();

    let watched = Arc::clone(&group);
    let watcher = thread::Builder::new().name("sandbox-watcher".to_owned()).spawn(move || {
        let handshake = converse(&request, helper);
        drop(request);
        if handshake.is_err() {
            let _ = child.kill();
        }
        let runs = handshake.is_ok();
        // Nobody waits for the answer any more, so nobody would ever end the command.
        if started.send(handshake).is_err() && runs {
            watched.kill();
        }
        set_end.send_replace(Some(watched.reap(&mut child)));
    });
    // Without the thread the socket is closed, and the helper ends by itself.
    watcher.map_err(SandboxError::Spawn)?;

    // From here on dropping `running` kills, also if the caller goes away and on the way out of an error.
    let mut running = Running { group, end, stdout: None, stderr: None, _sandbox: sandbox };
    answer.await.map_err(|_| SandboxError::HelperDied)??;
    running.stdout = Some(Pipe::new(stdout.ok_or_else(missing)?)?);
    running.stderr = Some(Pipe::new(stderr.ok_or_else(missing)?)?);
    Ok(running)
}

/// Sends the request; the socket closes when the helper becomes the tool. Blocks.
fn converse(request: &Request, mut helper: UnixStream) -> Result<(), SandboxError> {
    // A helper that cannot be written to may still have told why.
    let _ = request.write_to(&helper);
    let mut answer = Vec::new();
    helper.read_to_end(&mut answer).map_err(|_| SandboxError::HelperDied)?;
    let words = answer.strip_prefix(&[READY]);
    match words.unwrap_or(&answer) {
        [] if words.is_some() => Ok(()),
        [FAILED, errno @ ..] if errno.len() >= 4 => {
            let (errno, step) = errno.split_at(4);
            Err(SandboxError::HelperFailed {
                step: String::from_utf8_lossy(step).into_owned(),
                errno: i32::from_le_bytes([errno[0], errno[1], errno[2], errno[3]]),
            })
        }
        _ => Err(SandboxError::HelperDied),
    }
}
