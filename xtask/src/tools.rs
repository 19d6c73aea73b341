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
            execute(Command::new("apt-get").args(["install", "--quiet", "--yes", "python3-venv"]))?;
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
