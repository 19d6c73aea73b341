//! From the command line to an exit code.

use std::process::ExitCode;

use clap::Parser;

use crate::Failure;

/// Reads the command line and runs the process on threads of its own. A command line that cannot be read ends with 2, a
/// failure is told on the terminal.
pub fn start<C, F>(run: impl FnOnce(C) -> F) -> ExitCode
where
    C: Parser,
    F: Future<Output = Result<(), Failure>>,
{
    let cli = match C::try_parse() {
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
