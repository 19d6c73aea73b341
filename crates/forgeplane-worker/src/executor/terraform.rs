//! Terraform and OpenTofu: the same code, another binary.
//!
//! | operation | commands (all with `-input=false -no-color`) |
//! | --- | --- |
//! | every one | `init` |
//! | `plan`, `destroy` (plan) | `plan -detailed-exitcode -var-file=… -out=…` (`-destroy`), `show -json`, `show` |
//! | `plan-only` | the same, without publishing anything |
//! | `preview` | the same with `-lock=false` |
//! | `apply` | `show -json`, `apply <the approved plan file>` |
//! | `destroy` (perform), `teardown` | `plan -destroy -out=…`, `apply <that plan file>` |
//!
//! An apply never plans again, and nothing is applied that is not a plan file.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use forgeplane_core::digest::Digest;
use forgeplane_core::model::{ArtifactKind, Operation, PlanSummary, RunError, Tool};
use serde_json::Value;

use super::{Execution, ExecutionError, Executor, Report};
use crate::sandbox::Exit;

/// Replaces whatever backend the source has; the settings come by environment, so that neither the plan file
/// nor `.terraform` holds an address or a credential.
const BACKEND: &str = "terraform {\n  backend \"http\" {}\n}\n";
/// Of several override files the one whose name sorts last counts.
const BACKEND_FILE: &str = "zzzz_forgeplane_override.tf";
/// How the names of override files end, after a name of their own or none.
const OVERRIDES: [&str; 4] = ["override.tf", "override.tf.json", "override.tofu", "override.tofu.json"];
const LOCK_FILE: &str = ".terraform.lock.hcl";
const ERRORED_STATE: &str = "errored.tfstate";
const PLAN_FILE: &str = "tfplan";
/// The largest plan file, plan JSON or state document that is read back, bytes.
const MAX_BYTES: u64 = 256 << 20;

/// Runs `terraform` or `tofu`.
#[derive(Debug, Clone)]
pub struct TerraformExecutor {
    tool: Tool,
    /// The tool's own configuration file.
    configuration: String,
}

impl TerraformExecutor {
    /// The executor of Terraform.
    #[must_use]
    pub const fn terraform() -> Self {
        Self { tool: Tool::Terraform, configuration: String::new() }
    }

    /// The executor of OpenTofu.
    #[must_use]
    pub const fn tofu() -> Self {
        Self { tool: Tool::Tofu, configuration: String::new() }
    }

    /// Providers come from this directory, laid out as `terraform providers mirror` does it, and from nowhere else. Runs
    /// share it and only read it: a cache that every run writes to is not safe.
    ///
    /// # Errors
    /// A path that is not absolute or no directory, or one that everybody can write to.
    pub fn provider_mirror(mut self, directory: &Path) -> std::io::Result<Self> {
        let invalid = |why: &str| {
            std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("{}: {why}", directory.display()))
        };
        let metadata = std::fs::metadata(directory)?;
        let path = directory.to_str().ok_or_else(|| invalid("the path is not text"))?;
        if !directory.is_absolute() || !metadata.is_dir() {
            return Err(invalid("it is not the absolute path of a directory"));
        }
        if metadata.permissions().mode() & 0o002 != 0 {
            return Err(invalid("everybody can write to it, a tool included"));
        }
        // HCL has the strings of JSON, and templates in them.
        let quoted = Value::from(path).to_string().replace("${", "$${").replace("%{", "%%{");
        self.configuration =
            format!("provider_installation {{\n  filesystem_mirror {{\n    path = {quoted}\n  }}\n}}\n");
        Ok(self)
    }
}

#[async_trait]
impl Executor for TerraformExecutor {
    fn tool(&self) -> Tool {
        self.tool
    }

    async fn execute(&self, execution: &mut Execution<'_>) -> Result<Report, ExecutionError> {
        let mut steps = Steps::prepare(execution, &self.configuration)?;
        let result = steps.run().await;
        steps.keep_errored_state().await?;
        result
    }
}

struct Steps<'a, 'b> {
    execution: &'a mut Execution<'b>,
    /// The root module.
    cwd: PathBuf,
    /// The root module, relative to the source.
    module: PathBuf,
    variables: PathBuf,
    cli_config: PathBuf,
}

fn words(args: &[&str]) -> Vec<OsString> {
    args.iter().map(OsString::from).collect()
}

fn with_path(prefix: &str, path: &Path) -> OsString {
    let mut word = OsString::from(prefix);
    word.push(path);
    word
}

impl<'a, 'b> Steps<'a, 'b> {
    fn prepare(execution: &'a mut Execution<'b>, configuration: &str) -> Result<Self, ExecutionError> {
        let workspace = execution.workspace;
        let module = execution.entrypoint()?;
        let cwd = workspace.source.join(&module);
        if !cwd.is_dir() {
            return Err(ExecutionError::Invalid {
                code: "invalid_entrypoint",
                message: format!("the source has no directory `{}`", module.display()),
            });
        }
        for file in std::fs::read_dir(&cwd)? {
            let name = file?.file_name();
            if outranks_backend(&name.to_string_lossy()) {
                return Err(ExecutionError::Invalid {
                    code: "backend_conflict",
                    message: format!(
                        "`{}` in the source would override the managed state backend; give it a name that sorts before `{BACKEND_FILE}`",
                        name.display()
                    ),
                });
            }
        }
        workspace.put_source(&module.join(BACKEND_FILE), BACKEND.as_bytes())?;
        if let Some(lock_file) = execution.lock_file {
            workspace.put_source(&module.join(LOCK_FILE), lock_file)?;
        }
        let variables = serde_json::to_vec(&execution.inputs()).map_err(std::io::Error::other)?;
        let variables = workspace.put_input("variables.tfvars.json", &variables)?;
        let cli_config = workspace.put_input("cli.tfrc", configuration.as_bytes())?;
        Ok(Self { execution, cwd, module, variables, cli_config })
    }

    async fn run(&mut self) -> Result<Report, ExecutionError> {
        let exit = self.init().await?;
        if exit.code != Some(0) {
            return Ok(Report::command_failed("init", exit));
        }
        match self.execution.snapshot.operation.clone() {
            Operation::Plan { .. }
            | Operation::Destroy { mode: forgeplane_core::model::DestroyMode::Plan } => {
                let (report, plan) = self.plan(true).await?;
                match plan {
                    Some(plan) => self.publish(report, plan).await,
                    None => Ok(report),
                }
            }
            Operation::PlanOnly => Ok(self.plan(true).await?.0),
            Operation::Preview => Ok(self.plan(false).await?.0),
            Operation::Apply => self.apply_approved().await,
            Operation::Destroy { .. } | Operation::Teardown => self.remove_everything().await,
            Operation::Execute => Err(ExecutionError::Invalid {
                code: "unsupported_operation",
                message: "Terraform and OpenTofu do not execute playbooks".into(),
            }),
        }
    }

    fn environment(&self) -> Result<Vec<(OsString, OsString)>, ExecutionError> {
        let mut env = self.execution.environment()?;
        let mut set = |name: &str, value: OsString| env.push((name.into(), value));
        set("TF_IN_AUTOMATION", "1".into());
        set("TF_INPUT", "0".into());
        // Not `.terraform` below the source: a bundle could bring one, with a backend and a workspace of its own.
        set("TF_DATA_DIR", self.execution.workspace.home.join("terraform-data").into());
        set("TF_CLI_CONFIG_FILE", self.cli_config.clone().into());
        if let Some(state) = self.execution.state {
            for (name, value) in state.environment() {
                set(name, value.into());
            }
        }
        Ok(env)
    }

    async fn command(&mut self, args: Vec<OsString>) -> Result<Exit, ExecutionError> {
        let (env, cwd) = (self.environment()?, self.cwd.clone());
        self.execution.command(&args, env, &cwd).await
    }

    async fn init(&mut self) -> Result<Exit, ExecutionError> {
        let mut args = words(&["init", "-input=false", "-no-color"]);
        if self.execution.lock_file.is_some() {
            args.push("-lockfile=readonly".into());
        }
        self.command(args).await
    }

    /// Plans; gives the plan file if there is one.
    async fn plan(&mut self, lock: bool) -> Result<(Report, Option<Vec<u8>>), ExecutionError> {
        let out = self.execution.workspace.output.join(PLAN_FILE);
        let mut args = words(&["plan", "-input=false", "-no-color", "-detailed-exitcode"]);
        if self.execution.snapshot.operation.removes_everything() {
            args.push("-destroy".into());
        }
        if !lock {
            args.push("-lock=false".into());
        }
        args.push(with_path("-var-file=", &self.variables));
        args.push(with_path("-out=", &out));
        let exit = self.command(args).await?;
        // 0: nothing to do; 2: something to do; both are success. Anything else is not.
        if !matches!(exit.code, Some(0 | 2)) {
            return Ok((Report::command_failed("plan", exit), None));
        }
        let summary = self.show_json(&out).await?.as_deref().and_then(summary);
        let plan = self.execution.workspace.read_back(
            &self.execution.workspace.output.clone(),
            Path::new(PLAN_FILE),
            MAX_BYTES,
        )?;
        Ok((Report { exit: Some(exit), error: None, summary }, plan))
    }

    /// `show -json` of a plan; `None` if the tool cannot: that never decides a run.
    async fn show_json(&mut self, plan: &Path) -> Result<Option<Vec<u8>>, ExecutionError> {
        let mut args = words(&["show", "-json", "-no-color"]);
        args.push(plan.into());
        self.show(args).await
    }

    async fn show(&mut self, args: Vec<OsString>) -> Result<Option<Vec<u8>>, ExecutionError> {
        let (env, cwd, timeout) = (self.environment()?, self.cwd.clone(), self.execution.show_timeout);
        match self.execution.capture(&args, env, &cwd, timeout, MAX_BYTES).await {
            Ok((exit, output)) if exit.code == Some(0) => Ok(Some(output)),
            Err(stopped @ ExecutionError::Stopped(_)) => Err(stopped),
            Ok((exit, _)) => {
                self.execution.say(&format!("[forgeplane: the plan could not be shown: {exit:?}]"));
                Ok(None)
            }
            Err(error) => {
                self.execution.say(&format!("[forgeplane: the plan could not be shown: {error}]"));
                Ok(None)
            }
        }
    }

    async fn publish(&mut self, report: Report, plan: Vec<u8>) -> Result<Report, ExecutionError> {
        let out = self.execution.workspace.output.join(PLAN_FILE);
        if let Some(json) = self.show_json(&out).await? {
            self.execution.publish(ArtifactKind::PlanJson, json).await?;
        }
        let mut args = words(&["show", "-no-color"]);
        args.push(out.into());
        if let Some(text) = self.show(args).await? {
            self.execution.publish(ArtifactKind::PlanText, text).await?;
        }
        let source = self.execution.workspace.source.clone();
        let lock_file =
            self.execution.workspace.read_back(&source, &self.module.join(LOCK_FILE), MAX_BYTES)?;
        if let Some(lock_file) = lock_file {
            self.execution.publish(ArtifactKind::LockFile, lock_file).await?;
        }
        self.execution.publish(ArtifactKind::Plan, plan).await?;
        Ok(report)
    }

    /// Applies exactly the approved plan file.
    async fn apply_approved(&mut self) -> Result<Report, ExecutionError> {
        let bound = self.execution.snapshot.plan.as_ref().map(|p| p.digest);
        let Some(plan) = self.execution.plan.filter(|bytes| Some(Digest::of(bytes)) == bound) else {
            return Err(ExecutionError::Invalid {
                code: "artifact_digest_mismatch",
                message: "the plan file is not the one that was approved".into(),
            });
        };
        let file = self.execution.workspace.put_input(PLAN_FILE, plan)?;
        let summary = self.show_json(&file).await?.as_deref().and_then(summary);
        self.apply(&file, summary).await
    }

    async fn apply(&mut self, plan: &Path, summary: Option<PlanSummary>) -> Result<Report, ExecutionError> {
        let mut args = words(&["apply", "-input=false", "-no-color"]);
        args.push(plan.into());
        let exit = self.command(args).await?;
        if exit.code == Some(0) {
            Ok(Report { exit: Some(exit), error: None, summary })
        } else {
            Ok(Report { summary, ..Report::command_failed("apply", exit) })
        }
    }

    /// Plans the removal of everything and applies that plan.
    async fn remove_everything(&mut self) -> Result<Report, ExecutionError> {
        let (report, plan) = self.plan(true).await?;
        if report.error.is_some() {
            return Ok(report);
        }
        let Some(plan) = plan else {
            return Ok(Report {
                error: Some(RunError {
                    code: "tool_failed".into(),
                    message: "the tool wrote no plan file".into(),
                }),
                ..report
            });
        };
        // Handed back through the worker, so that what is applied is what was read.
        let file = self.execution.workspace.put_input(PLAN_FILE, &plan)?;
        self.apply(&file, report.summary).await
    }

    /// A state that the tool could not save is published: it may be the only record of what was created.
    async fn keep_errored_state(&mut self) -> Result<(), ExecutionError> {
        let source = self.execution.workspace.source.clone();
        let left =
            self.execution.workspace.read_back(&source, &self.module.join(ERRORED_STATE), MAX_BYTES)?;
        if let Some(state) = left {
            self.execution.say(
                "[forgeplane: the tool could not save its state; it left errored.tfstate, which is kept]",
            );
            self.execution.keep_state(state).await?;
        }
        Ok(())
    }
}

/// Whether a file of the source would be merged after the worker's backend, or take its place.
fn outranks_backend(name: &str) -> bool {
    let stem = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let is_override = OVERRIDES
        .iter()
        .any(|end| name.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('_')));
    is_override && (name >= BACKEND_FILE || stem(name) == stem(BACKEND_FILE))
}

/// Counts the changes of a plan's JSON.
fn summary(json: &[u8]) -> Option<PlanSummary> {
    let plan: Value = serde_json::from_slice(json).ok()?;
    let mut summary = PlanSummary::default();
    for change in plan.get("resource_changes").and_then(Value::as_array).into_iter().flatten() {
        if change.get("mode").and_then(Value::as_str) != Some("managed") {
            continue;
        }
        let change = change.get("change")?;
        let actions = change.get("actions").and_then(Value::as_array).into_iter().flatten();
        for action in actions.filter_map(Value::as_str) {
            match action {
                "create" => summary.add += 1,
                "update" => summary.change += 1,
                "delete" => summary.destroy += 1,
                _ => {}
            }
        }
        if change.get("importing").is_some_and(|i| !i.is_null()) {
            summary.import += 1;
        }
    }
    Some(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_counts_as_one_removal_and_one_addition() {
        let json = br#"{"resource_changes":[
            {"mode":"managed","change":{"actions":["create"]}},
            {"mode":"managed","change":{"actions":["delete","create"]}},
            {"mode":"managed","change":{"actions":["update"],"importing":{"id":"x"}}},
            {"mode":"managed","change":{"actions":["no-op"]}},
            {"mode":"data","change":{"actions":["read"]}}]}"#;
        assert_eq!(summary(json), Some(PlanSummary { add: 2, change: 1, destroy: 1, import: 1 }));
        assert_eq!(summary(b"not json"), None);
    }

    #[test]
    fn a_mirror_that_others_can_write_to_or_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mirror = |path: &Path| TerraformExecutor::tofu().provider_mirror(path);
        let odd = dir.path().join("a \"b\" ${c} %{d}");
        std::fs::create_dir(&odd).unwrap();
        let configuration = mirror(&odd).unwrap().configuration;
        assert!(configuration.contains(r#"/a \"b\" $${c} %%{d}""#), "{configuration}");
        assert!(mirror(Path::new("relative")).is_err());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(mirror(&dir.path().join("file")).is_err());
        std::fs::set_permissions(&odd, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(mirror(&odd).is_err());
    }

    #[test]
    fn override_files_that_would_win_over_the_managed_backend_are_told_apart() {
        for wins in [
            "zzzzz_override.tf",
            "zzzz_forgeplane_override.tf",
            "zzzz_forgeplane_override.tofu",
            "zzzz_forgeplane_override.tf.json",
            "zzzz_x_override.tf.json",
            "\u{e4}_override.tf",
        ] {
            assert!(outranks_backend(wins), "{wins}");
        }
        for loses in
            ["override.tf", "main_override.tf", "backend_override.tofu", "zzzzz.tf", "zzzzzoverride.tf"]
        {
            assert!(!outranks_backend(loses), "{loses}");
        }
    }
}
