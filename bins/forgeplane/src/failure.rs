//! Why a command failed, as exit code and message.

use std::process::ExitCode;

/// A run ended without success, or a check found violations.
pub const RUN_FAILED: u8 = 1;
/// The command line or a local file is wrong.
pub const USAGE: u8 = 2;
/// The coordinator refused.
pub const REFUSED: u8 = 3;
/// The coordinator cannot be reached or cannot answer now.
pub const NOT_REACHABLE: u8 = 4;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    exit: u8,
    code: String,
    message: String,
    way_out: Option<String>,
}

impl Failure {
    /// Something wrong on this side: arguments, files.
    pub fn local(code: &str, message: impl Into<String>) -> Self {
        Self { exit: USAGE, code: code.to_owned(), message: message.into(), way_out: None }
    }

    /// The coordinator said no.
    pub fn refused(code: impl Into<String>, message: impl Into<String>, way_out: Option<String>) -> Self {
        Self { exit: REFUSED, code: code.into(), message: message.into(), way_out }
    }

    /// The coordinator did not answer, or said that it cannot.
    pub fn not_reachable(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { exit: NOT_REACHABLE, code: code.into(), message: message.into(), way_out: None }
    }

    /// Whether the same may succeed later, by itself.
    pub const fn is_passing(&self) -> bool {
        self.exit == NOT_REACHABLE
    }

    /// Says what to do next.
    pub fn way_out(mut self, text: impl Into<String>) -> Self {
        self.way_out = Some(text.into());
        self
    }

    /// Tells the person at the terminal and gives the exit code.
    pub fn report(&self) -> ExitCode {
        eprintln!("error[{}]: {}", self.code, self.message);
        if let Some(way_out) = &self.way_out {
            eprintln!("  next: {way_out}");
        }
        ExitCode::from(self.exit)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::local("io", error.to_string())
    }
}
