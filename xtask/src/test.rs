//! Everything that must pass before a change lands.

use std::process::Command;

use crate::shell::{Result, cargo, execute, is_root, succeeds, target, which};
use crate::{demo, tools};

/// Runs all checks, cheapest first.
fn run_checks() -> Result<()> {
    execute(cargo().args(["fmt", "--all", "--check"]))?;
    execute(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    execute(cargo().args(["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"))
}

/// `cargo xtask test`.
pub fn run() -> Result<()> {
    needs()?;
    run_checks()?;
    let mut tests = cargo();
    tests.envs(services()?);
    if succeeds(cargo().args(["nextest", "--version"])) {
        execute(tests.args(["nextest", "run", "--workspace", "--no-fail-fast"]))?;
    } else {
        // Not `--all-targets`: that would run the benchmarks too.
        execute(tests.args([
            "test",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
            "--examples",
            "--no-fail-fast",
        ]))?;
    }
    execute(cargo().args(["test", "--workspace", "--doc"]))?;
    // Built with the tests; a build of one package alone would choose other features and compile anew.
    execute(&mut Command::new(target().join("debug/examples/embed")))?;
    demo::run(&demo::Options { built: true, ..demo::Options::default() })?;
    demo::run(&demo::Options { built: true, distributed: true, ..demo::Options::default() })
}

/// `cargo xtask soak`: a quarter of the time each for the simulation, the model, pairs of crashes, and random commands.
/// Every part runs, also after another one has failed; the last lines say how each went.
pub fn soak(minutes: &str) -> Result<()> {
    let minutes: u64 = minutes.parse().map_err(|_| format!("`--minutes {minutes}` is not a number"))?;
    let quarter = (minutes / 4).max(1);
    needs()?;
    execute(cargo().args(["build", "--workspace", "--bins"]))?;
    let services = services()?;
    let mut report = Vec::new();
    let mut part = |name: &'static str, command: &mut Command| {
        let began = std::time::Instant::now();
        let result = execute(command);
        report.push((name, began.elapsed().as_secs(), result));
    };
    let mut simulation = cargo();
    simulation.args(["run", "--release", "--package", "forgeplane-sim", "--", "--minutes"]);
    part("simulation", simulation.arg(quarter.to_string()));
    for (name, package, filter) in [
        ("model", "forgeplane-sim", "everything_together"),
        ("pairs of crashes", "forgeplane-coordinator", "a17_pairs_of_crashes_are_survived"),
        ("random commands", "forgeplane-core", "no_sequence_of_commands_breaks_an_invariant"),
    ] {
        let mut command = cargo();
        command
            .args(["test", "--package", package, "--tests", filter, "--", "--nocapture"])
            .envs(services.clone())
            .env("FORGEPLANE_SOAK_MINUTES", quarter.to_string())
            // About what a minute takes.
            .env("PROPTEST_CASES", (quarter * 2_000).to_string());
        part(name, &mut command);
    }
    println!("\nsoak:");
    for (name, seconds, result) in &report {
        println!("  {name}: {}, {seconds} s", if result.is_ok() { "no violation" } else { "FAILED" });
    }
    report.into_iter().try_for_each(|(_, _, result)| result)
}

/// The programs that tests start, and the variables that name them.
fn services() -> Result<Vec<(&'static str, std::path::PathBuf)>> {
    Ok(vec![
        ("FORGEPLANE_TEST_ANSIBLE_PLAYBOOK", tools::ansible_playbook()?),
        ("FORGEPLANE_TEST_PGBOUNCER", tools::pgbouncer()?),
        ("FORGEPLANE_TEST_NATS_SERVER", tools::nats_server()?),
        ("FORGEPLANE_TEST_NATS_SERVER_2_9", tools::nats_server_2_9()?),
    ])
}

/// Writes the checked-in OpenAPI document anew.
pub fn write_openapi() -> Result<()> {
    execute(
        cargo()
            .args(["test", "-p", "forgeplane-server", "--test", "http", "openapi"])
            .env("FORGEPLANE_WRITE_OPENAPI", "1"),
    )
}

/// What the tests cannot install themselves; nothing is skipped when it is missing.
fn needs() -> Result<()> {
    if !is_root() {
        return Err("the tests switch to isolated user ids, which only root can: run them as root (for instance in a container)".into());
    }
    if which("terraform").is_none() {
        return Err(
            "the tests run a real Terraform (1.5 or newer): put `terraform` into PATH and run them again"
                .into(),
        );
    }
    tools::postgres()?;
    tools::networks()?;
    if which("python3").is_none() {
        return Err(
            "the tests run a real Ansible from a virtual environment: install python3 with its venv module"
                .into(),
        );
    }
    Ok(())
}
