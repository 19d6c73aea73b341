//! Namespaces of the kernel for one test: disks and networks that nobody else sees, and that are gone when the test is.
//!
//! They belong to the thread that asks for them, and to every thread and process that it starts afterwards. They need
//! root, and the programs `unshare`, `nsenter` and `ip`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::output;
use crate::postgres_server::copy;

/// Longer than a process takes to start on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is mounted from now on, nobody else sees.
///
/// # Panics
/// When it cannot be.
pub fn own_mounts() {
    unshare(CloneFlags::CLONE_NEWNS).expect("root can have mounts of its own");
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
}

/// Puts a disk of this many bytes in the place of a directory, with what is in it.
///
/// # Panics
/// When it cannot be.
pub fn small_disk(directory: &Path, bytes: u64) {
    let before = directory.with_extension("before");
    fs::rename(directory, &before).unwrap();
    fs::create_dir(directory).unwrap();
    let options = format!("size={bytes},mode=711");
    mount(Some("none"), directory, Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
    for entry in fs::read_dir(before).unwrap() {
        copy(&entry.unwrap().path(), directory);
    }
}

/// Shows a file in the place of another one.
///
/// # Panics
/// When it cannot be.
pub fn in_the_place_of(other: &Path, file: &Path) {
    mount(Some(file), other, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

/// From now on there is no network but a loopback interface.
///
/// # Panics
/// When it cannot be.
pub fn own_network() {
    unshare(CloneFlags::CLONE_NEWNET).expect("root can have a network of its own");
    ip(&["link", "set", "lo", "up"]);
}

fn ip(args: &[&str]) {
    output(Command::new("ip").args(args));
}

/// A host at the other end of a cable.
#[derive(Debug)]
pub struct FarHost {
    /// Keeps its network.
    holder: Child,
}

impl FarHost {
    /// The address of this end of the cable.
    pub const HERE: &'static str = "10.77.0.1";
    const THERE: &'static str = "10.77.0.2";
    const CABLE: &'static str = "cable";

    /// Connects one to the network that this thread has, which is to be its own.
    ///
    /// # Panics
    /// When it cannot be.
    #[must_use]
    pub fn connect() -> Self {
        let mut holder = Command::new("unshare");
        holder.args(["--net", "sleep", "infinity"]).stdin(Stdio::null());
        let host = Self { holder: holder.spawn().expect("`unshare` can be started") };
        // Not the process's, which may be another one.
        let (own, deadline) = (network_of("thread-self"), Instant::now() + PATIENCE);
        while network_of(&host.pid()) == own {
            assert!(Instant::now() < deadline, "the other host gets no network");
            std::thread::sleep(Duration::from_millis(2));
        }
        ip(&["link", "add", Self::CABLE, "type", "veth", "peer", "name", Self::CABLE, "netns", &host.pid()]);
        ip(&["address", "add", &format!("{}/30", Self::HERE), "dev", Self::CABLE]);
        ip(&["link", "set", Self::CABLE, "up"]);
        for args in [
            &["link", "set", "lo", "up"][..],
            &["address", "add", &format!("{}/30", Self::THERE), "dev", Self::CABLE],
            &["link", "set", Self::CABLE, "up"],
        ] {
            let enter = host.enter();
            output(Command::new(&enter[0]).args(&enter[1..]).arg("ip").args(args));
        }
        host
    }

    fn pid(&self) -> String {
        self.holder.id().to_string()
    }

    /// The command that runs another one there; for [`Process::run_by`](super::Process::run_by).
    #[must_use]
    pub fn enter(&self) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/proc/{}/ns/net", self.pid())]
    }

    /// Nothing passes, and neither end is told.
    pub fn unplug(&self) {
        ip(&["link", "set", Self::CABLE, "down"]);
    }

    /// Everything passes again.
    pub fn plug(&self) {
        ip(&["link", "set", Self::CABLE, "up"]);
    }
}

impl Drop for FarHost {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn network_of(process: &str) -> PathBuf {
    fs::read_link(format!("/proc/{process}/ns/net")).unwrap()
}
