//! The Forgeplane command line: a client of the HTTP API, and `forgeplane dev`, the whole control plane in
//! one process.
//!
//! Exit codes: 0 done, 1 the run failed or the check found violations, 2 wrong usage, 3 refused by the coordinator, 4 not reachable.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to its terminal")]

mod args;
mod client;
mod commands;
mod dev;
mod failure;
mod output;
mod source;

use clap::Parser as _;
use std::process::ExitCode;

use args::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    // The same executable is the sandbox helper of its worker; that must be decided before anything else.
    forgeplane_worker::sandbox::run_if_helper();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return Failure::local("no_runtime", format!("no threads can be started: {error}")).report();
        }
    };
    let result = runtime.block_on(async {
        match cli.command {
            Command::Dev(options) => dev::run(options).await,
            command => commands::run(cli.global, command).await,
        }
    });
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
