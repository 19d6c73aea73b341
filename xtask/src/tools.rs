//! Infrastructure tools that the demo and the tests need.

use std::path::PathBuf;
use std::process::Command;

use crate::shell::{Result, execute, root, which};

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
        let python = which("python3")
            .ok_or("python3 is needed to install ansible-core; install it and its venv module")?;
        execute(Command::new(python).arg("-m").arg("venv").arg(&home))?;
        execute(Command::new(home.join("bin/pip")).args([
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "ansible-core==2.19.*",
        ]))?;
    }
    Ok(playbook)
}
