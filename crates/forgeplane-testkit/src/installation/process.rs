//! A process that is started, watched, signalled and started again.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than a process takes to start or to end on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process, running or not. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    command: Command,
    child: Option<Child>,
    log: Arc<Mutex<String>>,
}

impl Process {
    /// Of this command; not started.
    #[must_use]
    pub fn new(name: &str, mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { name: name.to_owned(), command, child: None, log: Arc::default() }
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The command, to be changed before the next start.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// From the next start on it is run by another command, such as `nsenter` with its arguments.
    pub fn run_by(&mut self, by: &[String]) {
        let mut command = Command::new(&by[0]);
        command.args(&by[1..]).arg(self.command.get_program()).args(self.command.get_args());
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command = command;
    }

    /// Starts it and waits until it prints a line that begins like this.
    ///
    /// # Panics
    /// When it does not.
    pub fn start(&mut self, ready: &str) {
        let printed = self.spawn();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match printed.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with(ready) => return,
                Ok(_) => {}
                Err(_) => panic!("{} does not start:\n{}", self.name, self.log()),
            }
        }
    }

    /// Starts it and does not wait for anything.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn launch(&mut self) {
        drop(self.spawn());
    }

    /// Starts it; gives the lines that it prints.
    fn spawn(&mut self) -> Receiver<String> {
        let mut child = self.command.spawn().unwrap_or_else(|e| panic!("{:?}: {e}", self.command));
        let (lines, printed) = channel();
        follow(child.stdout.take().unwrap(), Arc::clone(&self.log), Some(lines));
        follow(child.stderr.take().unwrap(), Arc::clone(&self.log), None);
        self.child = Some(child);
        printed
    }

    /// Its id.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the process runs").id()
    }

    /// Everything it wrote.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().try_into().unwrap()), signal).expect("the process can be signalled");
    }

    /// Kills it, as a crash would, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.take().unwrap().wait().unwrap();
    }

    /// How it ended, if it has.
    ///
    /// # Panics
    /// When it was not started.
    pub fn try_ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut().expect("the process was started").try_wait().unwrap();
        if status.is_some() {
            self.child = None;
        }
        status
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// When it does not.
    pub fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.try_ended() {
                return status;
            }
            assert!(Instant::now() < deadline, "{} does not end:\n{}", self.name, self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.ended()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Reads to the end, so that the process never waits for a reader.
fn follow(stream: impl Read + Send + 'static, log: Arc<Mutex<String>>, lines: Option<Sender<String>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = writeln!(log.lock().unwrap(), "{line}");
            if let Some(lines) = &lines {
                let _ = lines.send(line);
            }
        }
    });
}
