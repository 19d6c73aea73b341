//! One of any number of Forgeplane coordinators.
//!
//! A coordinator keeps nothing to itself: records are in the store, and any number of coordinators may work on one
//! PostgreSQL database. Configuration is a TOML file, the environment (`FORGEPLANE_COORDINATOR_…`) and flags.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its terminal")]

mod assemble;
mod config;
mod keys;
mod serve;

use forgeplane_process::{ConfigArgs, Failure};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::{Name, Role};
use secrecy::ExposeSecret as _;

use config::Config;

/// A Forgeplane coordinator: HTTP API, worker API, scheduling
#[derive(Debug, Parser)]
#[command(name = "forgeplane-coordinator", version)]
struct Cli {
    #[command(flatten)]
    sources: ConfigArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the keys of a new installation; every coordinator gets the same
    Keys,
    /// Print what a worker's user on the NATS server must be allowed, as the server's configuration wants it
    NatsPermissions {
        /// The worker's id, `wrk_…`
        worker: WorkerId,
    },
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
    forgeplane_process::start(run)
}

async fn run(cli: Cli) -> Result<(), Failure> {
    let sources = Config::sources(&cli.sources)?;
    if cli.sources.print_config {
        print!("{}", sources.print()?);
        return Ok(());
    }
    let config: Config = sources.extract()?;
    match cli.command {
        None => serve::serve(config).await,
        Some(Command::Keys) => {
            keys::Keys::make(&config.keys.directory)?;
            println!("made the keys in {}", config.keys.directory.display());
            Ok(())
        }
        Some(Command::NatsPermissions { worker }) => {
            let needed = config.nats.unwrap_or_default().worker_permissions(worker);
            println!("{{ publish: {:?}, subscribe: {:?} }}", needed.publish, needed.subscribe);
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
