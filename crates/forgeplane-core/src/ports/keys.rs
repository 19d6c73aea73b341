//! Sealing keys, wherever they live.

use secrecy::SecretBox;

use super::BoxError;

/// A key provider that could not answer.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// No key has this id.
    #[error("no sealing key `{0}`; it was needed to open something sealed earlier")]
    Unknown(String),
    /// The provider failed.
    #[error("the key provider failed: {0}")]
    Provider(#[source] BoxError),
}

/// A 256-bit sealing key.
pub type SealingKey = SecretBox<[u8; 32]>;

/// Gives sealing keys. The current key seals; every earlier one still opens.
pub trait KeyProvider: Send + Sync + 'static {
    /// The id of the key to seal with: 1 to 64 characters of `a-z 0-9 -`.
    fn current(&self) -> String;

    /// The key with this id.
    ///
    /// # Errors
    /// When there is no such key or it cannot be had.
    fn key(&self, id: &str) -> Result<SealingKey, KeyError>;
}

/// One key, held in memory.
pub struct StaticKey {
    id: String,
    key: SealingKey,
}

impl StaticKey {
    /// A provider with this one key.
    #[must_use]
    pub fn new(id: impl Into<String>, key: [u8; 32]) -> Self {
        Self { id: id.into(), key: SecretBox::new(Box::new(key)) }
    }
}

impl std::fmt::Debug for StaticKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StaticKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl KeyProvider for StaticKey {
    fn current(&self) -> String {
        self.id.clone()
    }

    fn key(&self, id: &str) -> Result<SealingKey, KeyError> {
        use secrecy::ExposeSecret as _;
        if id == self.id {
            Ok(SecretBox::new(Box::new(*self.key.expose_secret())))
        } else {
            Err(KeyError::Unknown(id.to_owned()))
        }
    }
}
