//! The commands, one file per noun.

mod approval;
mod attempt;
mod check;
mod follow;
mod input;
mod instance;
mod run;
mod run_view;
mod state;
mod template;
mod token;
mod verify;
mod worker;

use std::process::ExitCode;

use clap::CommandFactory as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::{Cli, Command, Format, Global, ListOptions};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// Runs a command.
pub async fn run(global: Global, command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Verify { file, coordinator_key, worker_key } => {
            return verify::run(&global, &file, coordinator_key.as_deref(), worker_key.as_deref());
        }
        Command::Check(options) => return check::run(&global, &options).await,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "forgeplane", &mut std::io::stdout());
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let client = Client::connect(&global)?;
    let context = Context { client, format: global.output };
    match command {
        Command::Template(command) => template::run(&context, command).await,
        Command::Instance(command) => instance::run(&context, command).await,
        Command::Run(command) => run::run(&context, command).await,
        Command::Attempt(command) => attempt::run(&context, command).await,
        Command::Approval(command) => approval::run(&context, command).await,
        Command::State(command) => state::run(&context, command).await,
        Command::Worker(command) => worker::run(&context, command).await,
        Command::Secret(command) => token::secret(&context, command).await,
        Command::Token(command) => token::run(&context, command).await,
        // Done with above, or before.
        Command::Dev(_) | Command::Verify { .. } | Command::Check(_) | Command::Completions { .. } => {
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What every command works with.
struct Context {
    client: Client,
    format: Format,
}

impl Context {
    /// Prints JSON for scripts, or what `people` prints.
    fn print<T: Serialize>(&self, value: &T, people: impl FnOnce(&T)) -> Result<ExitCode, Failure> {
        match self.format {
            Format::Json => output::json(value)?,
            Format::Table => people(value),
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reads a page.
    async fn page<T: DeserializeOwned>(
        &self,
        path: &str,
        page: &ListOptions,
        mut query: Vec<(&str, String)>,
    ) -> Result<forgeplane_server::api::Page<T>, Failure> {
        query.push(("limit", page.limit.to_string()));
        if let Some(after) = &page.after {
            query.push(("after", after.clone()));
        }
        self.client.get(path, &query).await
    }
}

/// Tells people that a list goes on.
fn more(next: Option<&String>) {
    if let Some(next) = next {
        println!("more with: --after {next}");
    }
}

/// A name or id as one path segment.
fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    // A segment of dots would be resolved away.
    if out.bytes().all(|b| b == b'.') { out.replace('.', "%2E") } else { out }
}

/// Reads a label, naming the known ones otherwise.
fn label<T: std::str::FromStr>(argument: &str, text: &str) -> Result<T, Failure>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e: T::Err| Failure::local("invalid_argument", format!("{argument} {text:?}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g24_whatever_is_typed_stays_one_path_segment() {
        assert_eq!(segment("../x"), "..%2Fx");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("a?b#c%"), "a%3Fb%23c%25");
        assert_eq!(segment("run_0123"), "run_0123");
    }
}
