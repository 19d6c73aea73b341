//! Finding tools and their versions. Tools are never downloaded.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::ToolIdentity;
use forgeplane_core::model::Tool;
use tokio::io::AsyncReadExt as _;

use crate::config::Tools;
use crate::error::{WorkerError, at};
use crate::executor;
use crate::host::Processes;
use crate::sandbox::CommandSpec;

/// How long a tool may take to tell its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(60);
/// The most bytes of a version answer that are read.
const VERSION_BYTES: u64 = 64 * 1024;

/// A tool that was found and asked for its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTool {
    /// Which tool.
    pub tool: Tool,
    /// Its executable, as configured or found.
    pub path: PathBuf,
    /// The version it reports.
    pub version: String,
    /// Digest of the executable.
    pub digest: Digest,
    /// What the file looked like when it was digested.
    seen: Fingerprint,
}

/// Which file it was and when it was last changed; nobody but root can give another file the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Fingerprint {
    fn of(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let file = path.metadata()?;
        let changed = (file.ctime(), file.ctime_nsec());
        Ok(Self { device: file.dev(), inode: file.ino(), bytes: file.size(), changed })
    }
}

impl FoundTool {
    /// The tool as it appears in outcomes.
    #[must_use]
    pub fn identity(&self) -> ToolIdentity {
        ToolIdentity { tool: self.tool, version: self.version.clone(), digest: self.digest }
    }

    /// Whether the executable is still the one that was found (faults E23). A file that was not touched since
    /// is not read again.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        Fingerprint::of(&self.path).is_ok_and(|now| now == self.seen)
            || std::fs::read(&self.path).is_ok_and(|bytes| Digest::of(&bytes) == self.digest)
    }
}

/// Finds the tools to offer.
pub(crate) async fn find(
    tools: &Tools,
    processes: &dyn Processes,
    scratch: &Path,
) -> Result<BTreeMap<Tool, FoundTool>, WorkerError> {
    let mut found = BTreeMap::new();
    match tools {
        Tools::Explicit(paths) => {
            for (tool, path) in paths {
                found.insert(*tool, check(*tool, path, processes, scratch).await?);
            }
        }
        Tools::Detect => {
            for tool in [Tool::Terraform, Tool::Tofu, Tool::Ansible] {
                let Some(path) = in_path(executor::program(tool)) else { continue };
                match check(tool, &path, processes, scratch).await {
                    Ok(it) => {
                        found.insert(tool, it);
                    }
                    Err(error) => tracing::warn!(%tool, %error, "a tool in PATH is not offered"),
                }
            }
        }
    }
    Ok(found)
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| is_executable(file))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

async fn check(
    tool: Tool,
    path: &Path,
    processes: &dyn Processes,
    scratch: &Path,
) -> Result<FoundTool, WorkerError> {
    if !path.is_absolute() || !is_executable(path) {
        return Err(WorkerError::ToolMissing { tool, path: path.to_owned() });
    }
    let failed = |reason: String| WorkerError::ToolCheckFailed { tool, path: path.to_owned(), reason };
    let seen = Fingerprint::of(path).map_err(at(path))?;
    let digest = Digest::of(&std::fs::read(path).map_err(at(path))?);
    let spec = CommandSpec {
        program: path.to_owned(),
        args: vec![OsString::from("--version")],
        env: executor::base_environment(path, scratch, scratch),
        cwd: scratch.to_owned(),
    };
    let mut running = processes.spawn(spec).await?;
    let stdout = running.stdout();
    let answer = tokio::time::timeout(VERSION_TIMEOUT, async {
        let mut answer = Vec::new();
        if let Some(stdout) = stdout {
            // What could not be read shows as a missing version below.
            let _ = stdout.take(VERSION_BYTES).read_to_end(&mut answer).await;
        }
        (running.wait().await, answer)
    })
    .await;
    let Ok((exit, answer)) = answer else {
        running.kill();
        return Err(failed(format!("no answer within {} s", VERSION_TIMEOUT.as_secs())));
    };
    let exit = exit?;
    if exit.code != Some(0) {
        return Err(failed(format!("it ended with {exit:?}")));
    }
    let text = String::from_utf8_lossy(&answer);
    let version = version_in(&text).ok_or_else(|| failed("its answer names no version".into()))?;
    Ok(FoundTool { tool, path: path.to_owned(), version, digest, seen })
}

/// The first word that looks like a version in the first line.
fn version_in(answer: &str) -> Option<String> {
    let line = answer.lines().next()?;
    line.split(|c: char| c.is_whitespace() || c == '[' || c == ']')
        .map(|word| word.trim_start_matches('v'))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_the_tools_really_print() {
        assert_eq!(version_in("Terraform v1.11.4\non linux_amd64\n").as_deref(), Some("1.11.4"));
        assert_eq!(version_in("OpenTofu v1.10.0\n").as_deref(), Some("1.10.0"));
        assert_eq!(version_in("ansible-playbook [core 2.19.1]\n").as_deref(), Some("2.19.1"));
        assert_eq!(version_in("usage: nothing"), None);
    }
}
