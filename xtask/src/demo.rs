//! The main job, from nothing to a verified outcome.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::shell::{Result, cargo, execute, is_root, root, target};
use crate::tools::{self, DemoTool};

/// What the demo is asked to do.
#[derive(Debug, Default)]
pub struct Options {
    /// Run tools without isolation, when not root.
    pub unsafe_no_isolation: bool,
    /// Show an Ansible run even if OpenTofu or Terraform is there.
    pub ansible: bool,
    /// Show two coordinators, PostgreSQL, NATS and three workers, each a process.
    pub distributed: bool,
    /// The programs are built already.
    pub built: bool,
}

impl Options {
    /// Reads the command line.
    pub fn parse(args: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        for arg in args {
            match *arg {
                "--unsafe-no-isolation" => options.unsafe_no_isolation = true,
                "--ansible" => options.ansible = true,
                "--distributed" => options.distributed = true,
                other => return Err(format!("`demo` has no option `{other}`")),
            }
        }
        Ok(options)
    }
}

/// Runs the demo; fails at the first step that does not hold.
pub fn run(options: &Options) -> Result<()> {
    if options.distributed {
        return distributed(options);
    }
    if !is_root() && !options.unsafe_no_isolation {
        return Err(
            "the demo isolates the tool under a user id of its own, which only root can: run it as root,\n\
                    or accept the unsafe local development mode with `cargo xtask demo --unsafe-no-isolation`"
                .into(),
        );
    }
    let tool = tools::for_demo(options.ansible)?;
    if !options.built {
        execute(cargo().args(["build", "--quiet", "--package", "forgeplane"]))?;
    }
    let begun = Instant::now();
    let directory = tempfile::Builder::new()
        .prefix("forgeplane-demo-")
        .tempdir()
        .map_err(|e| format!("no temporary directory: {e}"))?;
    let demo = Demo::start(directory.path(), options, &tool)?;
    let summary = match &tool {
        DemoTool::Terraform(label, _) => demo.terraform(label)?,
        DemoTool::Ansible(_) => demo.ansible()?,
    };
    demo.stop()?;
    println!("\ndemo passed in {:.1} s: {summary}", begun.elapsed().as_secs_f32());
    Ok(())
}

/// Runs the distributed demo, which is an example of its own.
fn distributed(options: &Options) -> Result<()> {
    if options.unsafe_no_isolation || options.ansible {
        return Err("`demo --distributed` isolates Terraform or OpenTofu, and has no other option".into());
    }
    if !is_root() {
        return Err(
            "the demo isolates tools under user ids of their own, which only root can: run it as root".into(),
        );
    }
    let DemoTool::Terraform(label, terraform) = tools::for_demo(false)? else {
        return Err("the demo runs a real Terraform or OpenTofu: put `terraform` or `tofu` into PATH and run it again".into());
    };
    tools::postgres()?;
    let nats = tools::nats_server()?;
    if !options.built {
        for package in ["forgeplane", "forgeplane-coordinator", "forgeplane-worker-bin"] {
            execute(cargo().args(["build", "--quiet", "--package", package]))?;
        }
        execute(cargo().args([
            "build",
            "--quiet",
            "--package",
            "forgeplane-examples",
            "--example",
            "distributed",
        ]))?;
    }
    let programs = target().join("debug");
    execute(
        Command::new(programs.join("examples/distributed"))
            .arg(&programs)
            .arg(label)
            .arg(terraform)
            .env("FORGEPLANE_TEST_NATS_SERVER", nats),
    )
}

/// A running `forgeplane dev` and its data directory.
struct Demo {
    forgeplane: PathBuf,
    data: PathBuf,
    server: Child,
}

impl Demo {
    fn start(directory: &Path, options: &Options, tool: &DemoTool) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        // The isolated tool must be able to pass through to its workspace, and to nothing else.
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o711))
            .map_err(|e| e.to_string())?;
        let forgeplane = target().join("debug/forgeplane");
        let data = directory.join("data");
        let (label, path) = match tool {
            DemoTool::Terraform(label, path) => (*label, path),
            DemoTool::Ansible(path) => ("ansible", path),
        };
        step("start `forgeplane dev`: coordinator, worker and API in one process, on SQLite");
        let mut command = Command::new(&forgeplane);
        command
            .args(["dev", "--listen", "127.0.0.1:0"])
            .arg("--data-dir")
            .arg(&data)
            .arg("--workspace-root")
            .arg(directory.join("workspaces"))
            .arg("--tool")
            .arg(format!("{label}={}", path.display()))
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if options.unsafe_no_isolation {
            command.arg("--unsafe-no-isolation");
        }
        let mut server =
            command.spawn().map_err(|e| format!("{} could not be started: {e}", forgeplane.display()))?;
        let lines = BufReader::new(server.stdout.take().ok_or("no output")?).lines();
        let mut ready = false;
        for line in lines {
            let line = line.map_err(|e| e.to_string())?;
            println!("  {line}");
            if line.starts_with("ready") {
                ready = true;
                break;
            }
        }
        let demo = Self { forgeplane, data, server };
        if ready {
            Ok(demo)
        } else {
            Err("`forgeplane dev` ended before it was ready; its message is above".into())
        }
    }

    /// A command of the CLI as one user.
    fn command(&self, user: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.forgeplane);
        command.args(args).args(["--as", user]).arg("--data-dir").arg(&self.data).stdin(Stdio::null());
        command
    }

    /// Runs a command and shows it with its output.
    fn show(&self, user: &str, args: &[&str]) -> Result<()> {
        println!("$ forgeplane {} --as {user}", args.join(" "));
        let status = self.command(user, args).status().map_err(|e| e.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("`forgeplane {}` ended with {status}", args.join(" ")))
        }
    }

    /// Runs a command and reads its JSON.
    fn json(&self, user: &str, args: &[&str]) -> Result<Value> {
        println!("$ forgeplane {} --as {user}", args.join(" "));
        let output = self.command(user, args).args(["-o", "json"]).output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(format!(
                "`forgeplane {}` failed:\n{}",
                args.join(" "),
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        serde_json::from_slice(&output.stdout).map_err(|e| format!("not JSON: {e}"))
    }

    /// Runs a command that must be refused with this code.
    fn refused(&self, user: &str, args: &[&str], code: &str) -> Result<()> {
        println!("$ forgeplane {} --as {user}", args.join(" "));
        let output = self.command(user, args).output().map_err(|e| e.to_string())?;
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        print!("{message}");
        if output.status.code() == Some(3) && message.contains(code) {
            Ok(())
        } else {
            Err(format!("`forgeplane {}` should have been refused with `{code}`", args.join(" ")))
        }
    }

    fn template(&self, tool: &str) -> Result<()> {
        let kind = if tool == "ansible" { "ansible" } else { "terraform" };
        let source = root().join("examples").join(kind).join("hello");
        let source = source.to_string_lossy().into_owned();
        step("push the example as a template, and make an instance of it");
        let mut push = vec!["template", "push", &source, "--tool", tool, "--name", "hello"];
        if tool == "ansible" {
            push.extend(["--entrypoint", "playbook.yml"]);
        }
        self.show("operator", &push)?;
        self.show(
            "operator",
            &["instance", "create", "hello", "--template", "hello", "--input", "greeting=Hello"],
        )
    }

    fn approve(&self, run: &str) -> Result<()> {
        let shown = self.json("operator", &["run", "show", run])?;
        let approval = text(&shown, "/approval/id")?;
        step("nobody approves their own run");
        // The admin asked for this run, and admins may approve: only the four-eyes rule stands in the way.
        self.refused("admin", &["approval", "approve", &approval], "self_approval")?;
        step("a second user reviews and approves");
        self.show("approver", &["approval", "approve", &approval, "--reason", "looks right"])
    }

    fn terraform(&self, tool: &str) -> Result<String> {
        self.template(tool)?;
        step("plan");
        let plan = text(&self.json("admin", &["run", "create", "hello", "plan"])?, "/id")?;
        self.show("admin", &["run", "wait", &plan])?;
        self.show("admin", &["run", "plan", &plan])?;
        step("promote: the plan stays as it is, a new apply run waits for approval");
        let apply = text(&self.json("admin", &["run", "promote", &plan])?, "/id")?;
        self.show("operator", &["run", "explain", &apply])?;
        self.approve(&apply)?;
        step("apply, with live logs");
        self.show("operator", &["run", "logs", &apply, "--follow"])?;
        self.show("operator", &["run", "wait", &apply])?;
        step("what there is now: outputs, state generations, approval record, events");
        self.show("operator", &["instance", "show", "hello"])?;
        self.show("operator", &["state", "list", "hello"])?;
        self.show("operator", &["approval", "list"])?;
        self.show("operator", &["run", "events", &apply])?;
        self.verify(&apply)?;
        let generations = self.json("operator", &["state", "list", "hello"])?;
        let generations = generations.pointer("/items").and_then(Value::as_array).map_or(0, Vec::len);
        if generations == 0 {
            return Err("the apply wrote no state generation".into());
        }
        Ok(format!(
            "{tool} plan, self-approval refused, promoted, approved, applied, {generations} state generations, outcome verified"
        ))
    }

    fn ansible(&self) -> Result<String> {
        self.template("ansible")?;
        step("execute: it changes infrastructure, so it waits for approval");
        let run = text(&self.json("admin", &["run", "create", "hello", "execute"])?, "/id")?;
        self.show("operator", &["run", "explain", &run])?;
        self.approve(&run)?;
        self.show("operator", &["run", "logs", &run, "--follow"])?;
        self.show("operator", &["run", "wait", &run])?;
        self.show("operator", &["run", "events", &run])?;
        self.verify(&run)?;
        Ok("ansible run, self-approval refused, approved, executed, outcome verified".into())
    }

    fn verify(&self, run: &str) -> Result<()> {
        step("verify the signed outcome offline, from a file");
        let file = self.data.join("evidence.json");
        let file = file.to_string_lossy().into_owned();
        self.show("operator", &["run", "evidence", run, "--file", &file])?;
        self.show("operator", &["verify", &file])
    }

    /// Ends the server as an operator would, by SIGTERM, and waits for it.
    fn stop(mut self) -> Result<()> {
        execute(Command::new("kill").arg("-TERM").arg(self.server.id().to_string()))?;
        let status = self.server.wait().map_err(|e| e.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("`forgeplane dev` ended with {status}")) }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // Already ended after `stop`; on a failed demo nothing must be left running.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn step(what: &str) {
    println!("\n== {what}");
}

fn text(value: &Value, pointer: &str) -> Result<String> {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .map(str::to_owned)
        .ok_or_else(|| format!("no `{pointer}` in {value}"))
}
