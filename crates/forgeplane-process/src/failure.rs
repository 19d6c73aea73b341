//! Why the process ends.

use std::fmt;
use std::process::ExitCode;

/// Why the process ends: a stable code, what happened, what to do next.
#[derive(Debug)]
pub struct Failure {
    code: &'static str,
    message: String,
    way_out: Option<&'static str>,
}

impl Failure {
    /// A failure.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), way_out: None }
    }

    /// Says what to do next.
    #[must_use]
    pub const fn way_out(mut self, text: &'static str) -> Self {
        self.way_out = Some(text);
        self
    }

    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.code
    }

    /// Tells the person at the terminal and gives the exit code.
    pub fn report(&self) -> ExitCode {
        eprintln!("error[{}]: {}", self.code, self.message);
        if let Some(way_out) = self.way_out {
            eprintln!("  next: {way_out}");
        }
        ExitCode::FAILURE
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
