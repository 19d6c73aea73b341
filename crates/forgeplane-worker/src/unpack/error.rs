//! Why an archive is refused.

use std::io;
use std::path::PathBuf;

/// Why an archive is refused or could not be written.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// Not a complete gzip-compressed tar archive.
    #[error("the archive cannot be read{}: {source}", .entry.as_ref().map(|name| format!(" at `{name}`")).unwrap_or_default())]
    Malformed {
        /// The entry, if it is known.
        entry: Option<String>,
        /// What is wrong with it.
        source: io::Error,
    },
    /// A name that does not stay inside the folder, or is no usable name.
    #[error("the name of `{entry}` is not allowed: {reason}")]
    UnsafeName {
        /// The entry.
        entry: String,
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// A symbolic link that may lead out of the folder.
    #[error("the link `{entry}` is not allowed: {reason}")]
    UnsafeLink {
        /// The entry.
        entry: String,
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// Neither a folder, a plain file nor a symbolic link.
    #[error("`{entry}` is {kind}; only folders, files and symbolic links are allowed")]
    ForbiddenKind {
        /// The entry.
        entry: String,
        /// What it is.
        kind: &'static str,
    },
    /// A file with the setuid or setgid bit.
    #[error("the file `{entry}` has a setuid or setgid bit")]
    PrivilegedMode {
        /// The entry.
        entry: String,
    },
    /// Two entries claim one name, or names that differ only in case.
    #[error("`{entry}` collides with `{other}`")]
    Duplicate {
        /// The later entry.
        entry: String,
        /// The earlier one.
        other: String,
    },
    /// More entries than allowed.
    #[error("the archive has more than {limit} entries, at `{entry}`")]
    TooManyEntries {
        /// The first entry beyond the limit.
        entry: String,
        /// The limit.
        limit: usize,
    },
    /// More content than allowed.
    #[error("the archive's content is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// The content is so much larger than the archive that it must be meant to fill the disk.
    #[error("the archive's content is more than {limit} times as large as the archive")]
    Bomb {
        /// The limit.
        limit: u64,
    },
    /// The target folder holds something already.
    #[error("{path} is not empty")]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// The content could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl UnpackError {
    /// The stable machine code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "archive_malformed",
            Self::UnsafeName { .. } => "unsafe_name",
            Self::UnsafeLink { .. } => "unsafe_link",
            Self::ForbiddenKind { .. } => "forbidden_kind",
            Self::PrivilegedMode { .. } => "privileged_mode",
            Self::Duplicate { .. } => "duplicate_name",
            Self::TooManyEntries { .. } => "too_many_entries",
            Self::TooLarge { .. } => "archive_too_large",
            Self::Bomb { .. } => "archive_bomb",
            Self::NotEmpty { .. } => "folder_not_empty",
            Self::Write { .. } => "write_failed",
        }
    }

    /// Whether the same archive may be accepted later: only writing depends on anything but the archive.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Write { .. })
    }

    /// The entry that is refused, if it is a matter of one.
    #[must_use]
    pub fn entry(&self) -> Option<&str> {
        match self {
            Self::Malformed { entry, .. } => entry.as_deref(),
            Self::UnsafeName { entry, .. }
            | Self::UnsafeLink { entry, .. }
            | Self::ForbiddenKind { entry, .. }
            | Self::PrivilegedMode { entry }
            | Self::Duplicate { entry, .. }
            | Self::TooManyEntries { entry, .. } => Some(entry),
            Self::TooLarge { .. } | Self::Bomb { .. } | Self::NotEmpty { .. } | Self::Write { .. } => None,
        }
    }

    /// A failure to read, at an entry if its name is not empty.
    pub(super) fn reading(entry: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Malformed {
            entry: Some(entry.to_owned()).filter(|name| !name.is_empty()),
            source,
        }
    }
}
