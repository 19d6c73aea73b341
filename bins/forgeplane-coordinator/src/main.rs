//! One of any number of Forgeplane coordinators.
//!
//! A coordinator keeps nothing to itself: records are in the store, and any number of coordinators may work on one
//! PostgreSQL database. Configuration is a TOML file, the environment (`FORGEPLANE_COORDINATOR_…`) and flags.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its terminal")]

mod assemble;
mod config;
mod failure;
mod keys;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use forgeplane_core::model::{Name, Role};
use secrecy::ExposeSecret as _;

use config::{Config, Sources};
use failure::Failure;

/// A Forgeplane coordinator: HTTP API, worker API, scheduling
#[derive(Debug, Parser)]
#[command(name = "forgeplane-coordinator", version)]
struct Cli {
    /// Configuration file (TOML)
    #[arg(long, global = true, value_name = "FILE", env = "FORGEPLANE_COORDINATOR_CONFIG")]
    config: Option<PathBuf>,
    /// Print the configuration in force, secrets blotted out, and end
    #[arg(long)]
    print_config: bool,
    /// Overrule one setting, such as `--set api.listen=127.0.0.1:8420`; not for secrets
    #[arg(long = "set", global = true, value_name = "NAME=VALUE")]
    set: Vec<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the keys of a new installation; every coordinator gets the same
    Keys,
    /// Make an API token, with the authority of somebody who can open the store
    Token {
        /// The project; made if need be
        #[arg(long)]
        project: Name,
        /// Whose it is
        #[arg(long)]
        name: Name,
        /// What it allows: viewer, operator, approver or admin
        #[arg(long)]
        role: String,
    },
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::new("no_runtime", error.to_string()).report(),
    };
    match runtime.block_on(run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

async fn run(cli: Cli) -> Result<(), Failure> {
    let flags = cli
        .set
        .iter()
        .map(|text| match text.split_once('=') {
            Some((name, value)) => Ok((name, value.to_owned())),
            None => Err(Failure::new("flag_invalid", format!("--set {text}: expected NAME=VALUE"))),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let sources = Sources::read(cli.config.as_deref(), &flags)?;
    if cli.print_config {
        print!("{}", sources.print()?);
        return Ok(());
    }
    let config = sources.config()?;
    match cli.command {
        None => serve::serve(config).await,
        Some(Command::Keys) => {
            keys::Keys::make(&config.keys.directory)?;
            println!("made the keys in {}", config.keys.directory.display());
            Ok(())
        }
        Some(Command::Token { project, name, role }) => token(&config, &project, &name, &role).await,
    }
}

async fn token(config: &Config, project: &Name, name: &Name, role: &str) -> Result<(), Failure> {
    let role = [Role::Viewer, Role::Operator, Role::Approver, Role::Admin]
        .into_iter()
        .find(|it| it.as_str() == role)
        .ok_or_else(|| Failure::new("role_unknown", format!("there is no role `{role}`")))?;
    let failed =
        |e: forgeplane_core::coordinator::CoordinatorError| Failure::new("token_failed", e.to_string());
    let coordinator = assemble::coordinator(config).await?;
    let project = coordinator.ensure_project(project).await.map_err(failed)?;
    let (_, token) = coordinator.issue_token(project.id, name, role, None).await.map_err(failed)?;
    println!("{}", token.expose_secret());
    Ok(())
}
