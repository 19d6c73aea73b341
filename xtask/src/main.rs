//! Tasks of the workspace: `cargo xtask demo` runs the main job on this machine, `cargo xtask test` runs
//! everything that must pass before a change lands.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to its terminal")]

mod demo;
mod shell;
mod test;
mod tools;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <task>

  demo [--unsafe-no-isolation] [--ansible]
                 plan, review, promote, approve, apply and verify a real run, from nothing
  demo --distributed
                 2 coordinators, PostgreSQL, NATS with TLS and 3 workers, one of each killed on the way
  test           format, lints, docs, all tests and doctests, the demos
  soak --minutes N
                 the simulation, the model, crashes in pairs and random commands, for about N minutes
  openapi        write crates/forgeplane-server/openapi.json anew";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["demo", options @ ..] => demo::Options::parse(options).and_then(|options| demo::run(&options)),
        ["test"] => test::run(),
        ["soak", "--minutes", minutes] => test::soak(minutes),
        ["openapi"] => test::write_openapi(),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
