//! Why the coordinator did not do what it was asked.

use crate::evidence::EnvelopeError;
use crate::ports::{BoxError, Conflict, ControlError, StoreError};
use crate::refusal::{Code, Refusal};
use crate::seal::VaultError;

/// Why the coordinator did not do what it was asked. Nothing changed, except after
/// [`StoreError::Unknown`].
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The rules say no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store cannot answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Sealed content cannot be stored or opened.
    #[error(transparent)]
    Vault(#[from] VaultError),
    /// Others kept changing the same records.
    #[error("the same records were changed by others again and again; try again")]
    Contention(Conflict),
    /// The coordinator is shutting down.
    #[error("the coordinator is shutting down")]
    Stopped,
    /// It was assembled without something it needs.
    #[error("the coordinator cannot start: {0}")]
    Assembly(#[source] BoxError),
}

impl CoordinatorError {
    /// Stable machine code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.code.as_str(),
            Self::Store(error) => error.code(),
            Self::Vault(error) => error.code(),
            Self::Contention(_) => "contention",
            Self::Stopped => "stopped",
            Self::Assembly(_) => "assembly",
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Assembly(_) => false,
            Self::Store(error) => error.is_retryable(),
            Self::Vault(error) => matches!(error, VaultError::Blob(_)),
            Self::Contention(_) | Self::Stopped => true,
        }
    }
}

impl From<EnvelopeError> for CoordinatorError {
    fn from(error: EnvelopeError) -> Self {
        Refusal::new(Code::InvalidEvidence, error.to_string()).into()
    }
}

impl From<CoordinatorError> for ControlError {
    fn from(error: CoordinatorError) -> Self {
        match error {
            CoordinatorError::Refused(refusal) => Self::Refused(refusal),
            other => Self::Unavailable(Box::new(other)),
        }
    }
}
