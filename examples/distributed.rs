//! Two coordinators on one PostgreSQL database, a NATS server with TLS, three workers in two pools: nine processes, of
//! which two are killed while they work. Every run is accounted for in the end.
//!
//! Run it as root: `cargo xtask demo --distributed`
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example talks and stops at the first error")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forgeplane_testkit::installation::{
    Coordinator, Installation, InstallationOptions, Programs, Worker, WorkerSpec,
};
use serde_json::Value;

/// Longer than anything here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn main() {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(programs), Some(tool), Some(terraform)) =
        (arguments.next(), arguments.next(), arguments.next())
    else {
        panic!("usage: distributed DIRECTORY-OF-PROGRAMS terraform|tofu PROGRAM");
    };
    let tool = tool.to_str().unwrap();
    let begun = Instant::now();
    step("PostgreSQL, and a NATS server with TLS");
    let settings = [
        "settings.heartbeat_s = 1",
        "settings.worker_offline_after_s = 5",
        "settings.unresolved_after_s = 10",
    ];
    let options =
        InstallationOptions { nats: true, sqlite: false, settings: settings.map(str::to_owned).into() };
    let mut site = Installation::start(Programs::of(&programs), options);

    step("two coordinators on the one database");
    let (mut alpha, beta) = (site.coordinator("alpha"), site.coordinator("beta"));
    for coordinator in [&alpha, &beta] {
        let Coordinator { process, api, workers, .. } = coordinator;
        println!("  {} (pid {}): API {api}, workers {workers}", process.name(), process.pid());
    }
    let admin = site.token(&alpha, "demo", "admin");
    let operator = site.token(&alpha, "demo", "operator");
    let approver = site.token(&alpha, "demo", "approver");

    step("three workers in two pools, each enrolled once, with its own key and its own user on the broker");
    let mut workers: Vec<Worker> = [("east-1", "east"), ("east-2", "east"), ("west-1", "west")]
        .into_iter()
        .map(|(name, pool)| {
            let spec = WorkerSpec { name, pool, tool, path: &terraform };
            site.worker(&spec, &[&alpha, &beta], &admin)
        })
        .collect();
    let demo = Demo { site, operator, approver };
    demo.show(&beta, &["worker", "list"]);

    step("five instances in the two pools, planned, promoted, approved by somebody else");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/terraform/hello");
    let instances = ["red", "green", "blue", "cyan", "amber"];
    for pool in ["east", "west"] {
        demo.show(&alpha, &["template", "push", source, "--tool", tool, "--name", pool, "--pool", pool]);
    }
    for (instance, pool) in instances.iter().zip(["east", "east", "east", "west", "west"]) {
        let greeting = format!("greeting=Hello {instance}");
        demo.show(&alpha, &["instance", "create", instance, "--template", pool, "--input", &greeting]);
    }
    let plans: Vec<String> = instances.iter().map(|instance| demo.plan(&alpha, instance)).collect();
    let applies: Vec<String> = plans.iter().map(|plan| demo.promote(&beta, plan)).collect();

    step("while they are applied, one coordinator and one worker are killed (SIGKILL)");
    let (broken, victim) = demo.until("an apply runs in the east", || {
        applies.iter().zip(instances).find_map(|(run, instance)| {
            let view = demo.json(&beta, &["run", "show", run]);
            let at = workers.iter().position(|w| view["attempts"][0]["worker"] == *w.id)?;
            let busy = view["run"]["status"] == "running" && demo.log(&beta, run).contains("(1 of 3)");
            (busy && at < 2).then(|| ((run.clone(), instance), at))
        })
    });
    println!(
        "  alpha (pid {}) and {} (pid {})",
        alpha.process.pid(),
        workers[victim].process.name(),
        workers[victim].process.pid()
    );
    alpha.process.kill();
    workers[victim].process.kill();

    step("the other coordinator goes on, the other workers execute the rest");
    for run in applies.iter().filter(|run| **run != broken.0) {
        demo.until("the run ends", || demo.ended(&beta, run).then_some(()));
    }
    demo.show(&beta, &["run", "list"]);
    step("nobody starts the killed worker's run a second time: it may have changed the world");
    demo.until("the worker is missed", || {
        (demo.json(&beta, &["run", "show", &broken.0])["unresolved"] == true).then_some(())
    });
    demo.show(&beta, &["run", "explain", &broken.0]);

    step("the worker comes back and says from its journal what it knows; the coordinator comes back too");
    workers[victim].process.start("ready");
    alpha.process.start("workers: ");
    demo.until("the run ends", || demo.ended(&alpha, &broken.0).then_some(()));
    demo.show(&alpha, &["run", "show", &broken.0]);

    step("a fresh plan says what is left to do");
    let plan = demo.plan(&alpha, broken.1);
    let apply = demo.promote(&beta, &plan);
    demo.until("the run ends", || demo.ended(&beta, &apply).then_some(()));

    step("every run is accounted for");
    demo.show(&alpha, &["run", "list"]);
    let runs = demo.json(&alpha, &["run", "list"]);
    let runs = runs["items"].as_array().unwrap();
    let succeeded = runs.iter().filter(|run| run["status"] == "succeeded").count();
    let failed: Vec<&Value> = runs.iter().filter(|run| run["status"] == "failed").collect();
    assert_eq!((runs.len(), succeeded, failed.len()), (12, 11, 1), "{runs:#?}");
    assert_eq!(failed[0]["id"], broken.0.as_str());
    println!("{}", demo.site.check().unwrap_or_else(|found| panic!("the store does not hold:\n{found}")));

    step("everything ends when it is asked to");
    for process in workers.iter_mut().map(|w| &mut w.process).chain([&mut alpha.process]) {
        let status = process.terminate();
        println!("  {}: {status}", process.name());
        assert!(status.success(), "{}", process.log());
    }
    drop(beta);
    println!(
        "\ndistributed demo passed in {:.1} s: 12 runs on 2 coordinators and 3 workers, one of each killed; 11 succeeded, \
         1 failed by its worker's own word, none twice, none lost",
        begun.elapsed().as_secs_f32()
    );
}

fn step(what: &str) {
    println!("\n== {what}");
}

struct Demo {
    site: Installation,
    operator: PathBuf,
    approver: PathBuf,
}

impl Demo {
    fn command(&self, at: &Coordinator, token: &Path, args: &[&str]) -> Command {
        let mut command = self.site.cli(at, token);
        command.args(args);
        command
    }

    /// Runs a command that must succeed, and shows it with its output.
    fn show(&self, at: &Coordinator, args: &[&str]) {
        println!("$ forgeplane {}", args.join(" "));
        let status = self.command(at, &self.operator, args).status().unwrap();
        assert!(status.success(), "it ended with {status}");
    }

    /// Runs a command as this user and reads its JSON.
    fn json_as(&self, token: &Path, at: &Coordinator, args: &[&str]) -> Value {
        let output = self.command(at, token, args).args(["-o", "json"]).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn json(&self, at: &Coordinator, args: &[&str]) -> Value {
        self.json_as(&self.operator, at, args)
    }

    fn plan(&self, at: &Coordinator, instance: &str) -> String {
        let run = self.json(at, &["run", "create", instance, "plan"])["id"].as_str().unwrap().to_owned();
        self.until("the plan ends", || self.ended(at, &run).then_some(()));
        run
    }

    /// Promotes a plan, and approves the apply as somebody else.
    fn promote(&self, at: &Coordinator, plan: &str) -> String {
        let run = self.json(at, &["run", "promote", plan])["id"].as_str().unwrap().to_owned();
        let view = self.json(at, &["run", "show", &run]);
        let approval = view["approval"]["id"].as_str().unwrap();
        self.json_as(&self.approver, at, &["approval", "approve", approval, "--reason", "looks right"]);
        run
    }

    fn ended(&self, at: &Coordinator, run: &str) -> bool {
        let view = self.json(at, &["run", "show", run]);
        matches!(view["run"]["status"].as_str().unwrap(), "succeeded" | "failed" | "canceled" | "timed_out")
    }

    fn log(&self, at: &Coordinator, run: &str) -> String {
        let output = self.command(at, &self.operator, &["run", "logs", run]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Looks again and again until there is something to see.
    fn until<T>(&self, what: &str, look: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            assert!(Instant::now() < deadline, "{what}: it does not come to that");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
