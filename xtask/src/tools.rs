//! Infrastructure tools that the demo and the tests need.

use std::path::PathBuf;
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
    let home = root().join("target/ansible");
    let playbook = home.join("bin/ansible-playbook");
    if !playbook.exists() {
        // The system's Python first: one below somebody's home directory is out of reach for the isolated user id.
        let system = PathBuf::from("/usr/bin/python3");
        let python = if system.exists() {
            system
        } else {
            which("python3").ok_or("python3 is needed to install ansible-core")?
        };
        if !succeeds(Command::new(&python).args(["-c", "import ensurepip"]))
            && is_root()
            && which("apt-get").is_some()
        {
            execute(Command::new("apt-get").args(["update", "--quiet", "--quiet"]))?;
            execute(&mut install("python3-venv"))?;
        }
        execute(Command::new(&python).args(["-m", "venv", "--clear"]).arg(&home))
            .map_err(|e| format!("{e}\ninstall the venv module of {} and try again", python.display()))?;
        execute(Command::new(home.join("bin/pip")).args([
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "ansible-core==2.19.*",
        ]))?;
    }
    Ok(playbook)
}

/// Installs a distribution package, asking nothing.
fn install(package: &str) -> Command {
    let mut command = Command::new("apt-get");
    command.args(["install", "--quiet", "--yes", package]).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Makes sure that PostgreSQL's programs are there; the tests start their own servers.
pub fn postgres() -> Result<()> {
    let there = || {
        std::fs::read_dir("/usr/lib/postgresql")
            .is_ok_and(|mut versions| versions.any(|v| v.is_ok_and(|v| v.path().join("bin/initdb").exists())))
    };
    if there() || std::env::var_os("FORGEPLANE_TEST_POSTGRES").is_some() {
        return Ok(());
    }
    if is_root() && which("apt-get").is_some() {
        execute(Command::new("apt-get").args(["update", "--quiet", "--quiet"]))?;
        // Only the programs: without this the package makes and starts a server of its own.
        execute(&mut install("postgresql-common"))?;
        std::fs::write("/etc/postgresql-common/createcluster.conf", "create_main_cluster = false\n")
            .map_err(|e| format!("/etc/postgresql-common/createcluster.conf: {e}"))?;
        execute(&mut install("postgresql"))?;
    }
    if there() {
        return Ok(());
    }
    Err("the tests run a real PostgreSQL (14 or newer): install the package `postgresql`, or say in FORGEPLANE_TEST_POSTGRES where its `initdb` is".into())
}

/// PgBouncer with its libraries, unpacked into `target/pgbouncer` if need be.
pub fn pgbouncer() -> Result<PathBuf> {
    unpacked(
        "pgbouncer",
        &["pgbouncer", "libc-ares2", "libcares2", "libevent-2.1-7", "libevent-2.1-7t64"],
        "usr/sbin/pgbouncer",
    )
}

/// Unpacks distribution packages below `target/<name>`, without installing them: nothing is started and nothing of the
/// system changes. Of the packages those are taken that the distribution has; `proof` must be there afterwards.
fn unpacked(name: &str, packages: &[&str], proof: &str) -> Result<PathBuf> {
    let home = root().join("target").join(name);
    if home.join(proof).exists() {
        return Ok(home);
    }
    let failed = |e| format!("{e}\n`{}` cannot be unpacked into {}", packages.join(" "), home.display());
    std::fs::create_dir_all(&home).map_err(|e| failed(e.to_string()))?;
    if !succeeds(Command::new("apt-cache").args(["show", packages[0]])) && is_root() {
        execute(Command::new("apt-get").args(["update", "--quiet", "--quiet"])).map_err(failed)?;
    }
    for package in packages {
        if !succeeds(Command::new("apt-cache").args(["show", package])) {
            continue;
        }
        execute(Command::new("apt-get").args(["download", "--quiet", "--quiet", package]).current_dir(&home))
            .map_err(failed)?;
    }
    for entry in std::fs::read_dir(&home).map_err(|e| failed(e.to_string()))? {
        let path = entry.map_err(|e| failed(e.to_string()))?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            execute(Command::new("dpkg").arg("-x").arg(&path).arg(&home)).map_err(failed)?;
        }
    }
    if home.join(proof).exists() { Ok(home) } else { Err(failed(format!("{proof} is not in the packages"))) }
}
