//! Ansible: `execute` runs the template's playbook.

use std::ffi::OsString;
use std::path::Path;

use async_trait::async_trait;
use forgeplane_core::model::{Operation, Tool};

use super::{Execution, ExecutionError, Executor, Report};

/// Inventories a source may bring, in the order they are looked for.
const INVENTORIES: [&str; 4] = ["inventory", "inventory.ini", "inventory.yml", "inventory.yaml"];

/// Runs `ansible-playbook`.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnsibleExecutor;

#[async_trait]
impl Executor for AnsibleExecutor {
    fn tool(&self) -> Tool {
        Tool::Ansible
    }

    async fn execute(&self, execution: &mut Execution<'_>) -> Result<Report, ExecutionError> {
        let invalid = |code, message: String| ExecutionError::Invalid { code, message };
        if execution.snapshot.operation != Operation::Execute {
            return Err(invalid("unsupported_operation", "Ansible only executes".into()));
        }
        let workspace = execution.workspace;
        let playbook = execution.entrypoint()?;
        if !workspace.source.join(&playbook).is_file() {
            return Err(invalid(
                "invalid_entrypoint",
                format!("the source has no playbook `{}`", playbook.display()),
            ));
        }
        let inputs = serde_json::to_vec(&execution.inputs()).map_err(std::io::Error::other)?;
        let inputs = workspace.put_input("extra-vars.json", &inputs)?;
        let mut extra_vars = OsString::from("@");
        extra_vars.push(&inputs);

        let mut env = execution.environment()?;
        let mut set = |name: &str, value: &Path| env.push((name.into(), value.into()));
        set("ANSIBLE_HOME", &workspace.home.join(".ansible"));
        set("ANSIBLE_LOCAL_TEMP", &workspace.tmp);
        set("ANSIBLE_NOCOLOR", Path::new("1"));
        set("ANSIBLE_RETRY_FILES_ENABLED", Path::new("0"));
        let inventory =
            INVENTORIES.into_iter().find(|name| workspace.source.join(name).exists()).unwrap_or("localhost,");
        let args: Vec<OsString> = [
            "--inventory".into(),
            inventory.into(),
            "--extra-vars".into(),
            extra_vars,
            "--".into(),
            playbook.into(),
        ]
        .into();
        let cwd = workspace.source.clone();
        let exit = execution.command(&args, env, &cwd).await?;
        match exit.code {
            Some(0) => Ok(Report { exit: Some(exit), error: None, summary: None }),
            Some(2) => Ok(Report::command_failed("ansible-playbook (a host failed)", exit)),
            Some(4) => Ok(Report::command_failed(
                "ansible-playbook (a host is unreachable, or the playbook cannot be parsed)",
                exit,
            )),
            _ => Ok(Report::command_failed("ansible-playbook", exit)),
        }
    }
}
