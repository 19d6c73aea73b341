//! The sandbox helper as a program of its own, for embedders that do not want to re-exec themselves.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    forgeplane_worker::sandbox::run_if_helper();
    let _ = writeln!(
        std::io::stderr(),
        "forgeplane-sandbox is started by a Forgeplane worker, not by hand; name it as the worker's sandbox helper"
    );
    ExitCode::from(2)
}
