//! A real NATS server for one test: it can be stopped, killed, frozen, wiped and put back to an older copy.
//!
//! The program is found by an environment variable, see [`Version`]; a test without it fails.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Longer than a server takes to start or to end on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which program to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// The one that `FORGEPLANE_TEST_NATS_SERVER` names, else `nats-server` on the `PATH`.
    #[default]
    Current,
    /// The oldest one that is supported, 2.9: the one that `FORGEPLANE_TEST_NATS_SERVER_2_9` names.
    V2_9,
}

impl Version {
    fn program(self) -> PathBuf {
        let variable = match self {
            Self::Current => "FORGEPLANE_TEST_NATS_SERVER",
            Self::V2_9 => "FORGEPLANE_TEST_NATS_SERVER_2_9",
        };
        match (std::env::var_os(variable), self) {
            (Some(path), _) => path.into(),
            (None, Self::Current) => "nats-server".into(),
            (None, Self::V2_9) => panic!(
                "{variable} is not set: let it name a nats-server 2.9, or run the tests by `cargo xtask test`, which installs one"
            ),
        }
    }
}

/// What the server encrypts with, all PEM.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// Its certificate, for `127.0.0.1`, with the chain.
    pub cert: String,
    /// The key of the certificate.
    pub key: String,
    /// The authority of client certificates; absent: none is asked for.
    pub client_ca: Option<String>,
}

/// How to start a server.
#[derive(Debug, Clone, Default)]
pub struct NatsServerOptions {
    /// Which program.
    pub version: Version,
    /// Absent: no encryption.
    pub tls: Option<ServerTls>,
    /// More of the configuration file, such as users with their permissions.
    pub config: String,
}

/// A NATS server with JetStream on a free port of the loopback interface. Dropping it kills it and removes its files.
#[derive(Debug)]
pub struct NatsServer {
    dir: TempDir,
    /// The configuration file up to what a test adds.
    base: String,
    program: PathBuf,
    tls: bool,
    port: u16,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    process: Child,
    /// Every line of its log until it ends.
    log: Arc<Mutex<String>>,
}

impl NatsServer {
    /// Starts a server of the current version without any access control.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&NatsServerOptions::default())
    }

    /// Starts a server.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start_with(options: &NatsServerOptions) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the server");
        let base = configuration(dir.path(), options);
        fs::write(dir.path().join("server.conf"), base.clone() + &options.config).unwrap();
        let mut server = Self {
            dir,
            base,
            program: options.version.program(),
            tls: options.tls.is_some(),
            port: 0,
            running: None,
        };
        server.run();
        server
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", if self.tls { "tls" } else { "nats" }, self.port)
    }

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// What it wrote into its log since it was last started.
    #[must_use]
    pub fn log(&self) -> String {
        self.running.as_ref().map_or_else(String::new, |it| it.log.lock().unwrap().clone())
    }

    /// Stops it as an administrator does (SIGTERM) and waits until it has ended.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        self.ended();
    }

    /// Lets the running server read its configuration anew, with another end, such as other users.
    ///
    /// # Panics
    /// When it does not take it.
    pub fn reload(&self, config: &str) {
        let path = self.dir.path().join("server.conf");
        fs::write(&path, self.base.clone() + config).unwrap();
        let reloaded = |log: &str| log.matches("Reloaded server configuration").count();
        let before = reloaded(&self.log());
        self.signal(Signal::SIGHUP);
        let deadline = Instant::now() + PATIENCE;
        while reloaded(&self.log()) == before {
            assert!(Instant::now() < deadline, "the server does not reload:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills it (SIGKILL) and waits until it has ended.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.ended();
    }

    /// Starts it again, on the same port; kills it first if it runs.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn restart(&mut self) {
        if self.running.is_some() {
            self.kill();
        }
        self.run();
    }

    /// Stands still (SIGSTOP), with its connections open, until [`thaw`](Self::thaw).
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Goes on (SIGCONT).
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Removes everything it stored. It must not run.
    pub fn wipe(&self) {
        self.assert_ended();
        fs::remove_dir_all(self.store()).unwrap();
    }

    /// Copies everything it stored, for [`restore`](Self::restore). It must not run.
    ///
    /// # Panics
    /// If it runs or the copy cannot be made.
    #[must_use]
    pub fn snapshot(&self) -> TempDir {
        self.assert_ended();
        let copy = tempfile::tempdir().unwrap();
        copy_dir(&self.store(), copy.path());
        copy
    }

    /// Puts everything it stored back to what it was. It must not run.
    pub fn restore(&self, copy: &TempDir) {
        self.wipe();
        copy_dir(copy.path(), &self.store());
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn assert_ended(&self) {
        assert!(self.running.is_none(), "the server must be stopped before its files are touched");
    }

    fn signal(&self, signal: Signal) {
        let running = self.running.as_ref().expect("the server runs");
        let pid = Pid::from_raw(running.process.id().try_into().unwrap());
        kill(pid, signal).expect("the server's process can be signalled");
    }

    fn ended(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.process.wait().expect("the server's process can be waited for");
        }
    }

    fn run(&mut self) {
        let port = if self.port == 0 { "-1".to_owned() } else { self.port.to_string() };
        let process = Command::new(&self.program)
            .args(["--addr", "127.0.0.1", "--port", &port, "--config"])
            .arg(self.dir.path().join("server.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut process = process.unwrap_or_else(|e| {
            panic!(
                "{} could not be started ({e}): let FORGEPLANE_TEST_NATS_SERVER name a nats-server, or run the tests by `cargo xtask test`, which installs one",
                self.program.display()
            )
        });
        let log = Arc::new(Mutex::new(String::new()));
        let lines = follow(&mut process, Arc::clone(&log));
        self.running = Some(Running { process, log });
        loop {
            let line = match lines.recv_timeout(PATIENCE) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => panic!("the server ended:\n{}", self.log()),
                Err(RecvTimeoutError::Timeout) => panic!("the server does not start:\n{}", self.log()),
            };
            if let Some((_, port)) = line.split_once("Listening for client connections on 127.0.0.1:") {
                self.port = port.trim().parse().expect("a port");
            }
            if line.contains("Server is ready") {
                break;
            }
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            // Also ends one that stands still.
            let _ = running.process.kill();
            let _ = running.process.wait();
        }
    }
}

/// Reads the log to its end, so that the server never waits for a reader.
fn follow(process: &mut Child, log: Arc<Mutex<String>>) -> Receiver<String> {
    let stderr = process.stderr.take().expect("the log is piped");
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            writeln!(log.lock().unwrap(), "{line}").unwrap();
            let _ = sender.send(line);
        }
    });
    lines
}

fn configuration(dir: &Path, options: &NatsServerOptions) -> String {
    let file = |name: &str, content: &str| {
        let path = dir.join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let mut text = format!("jetstream {{ store_dir: \"{}\" }}\n", dir.join("store").display());
    if let Some(tls) = &options.tls {
        let (cert, key) = (file("cert.pem", &tls.cert), file("key.pem", &tls.key));
        writeln!(text, "tls {{ cert_file: \"{cert}\", key_file: \"{key}\"").unwrap();
        if let Some(ca) = &tls.client_ca {
            writeln!(text, "ca_file: \"{}\", verify: true", file("client-ca.pem", ca)).unwrap();
        }
        text.push_str("}\n");
    }
    text
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
