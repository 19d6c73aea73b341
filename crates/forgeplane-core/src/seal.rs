//! Sealing: bytes at rest are encrypted before a blob store sees them.

use std::sync::Arc;

use bytes::Bytes;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use secrecy::ExposeSecret as _;

use crate::digest::Digest;
use crate::ports::{BlobError, BlobStore, Entropy, EntropyExt as _, KeyError, KeyProvider};

const MAGIC: &[u8; 4] = b"FPS1";
const NONCE_BYTES: usize = 24;

/// Why sealed bytes could not be stored or opened.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The blob store failed.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The key is not to be had.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The bytes were changed, or moved to another name.
    #[error("the sealed blob `{0}` was changed or belongs to another name")]
    Corrupt(String),
}

impl VaultError {
    /// Stable machine code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Blob(_) => "blob_unavailable",
            Self::Key(_) => "key_unavailable",
            Self::Corrupt(_) => "blob_corrupt",
        }
    }
}

/// Seals what goes into a [`BlobStore`] and opens what comes out. The name is part of what is
/// authenticated, so a sealed blob cannot be passed off under another name.
#[derive(Clone)]
pub struct Vault {
    blobs: Arc<dyn BlobStore>,
    keys: Arc<dyn KeyProvider>,
    entropy: Arc<dyn Entropy>,
}

impl Vault {
    /// A vault over `blobs`.
    pub fn new(blobs: Arc<dyn BlobStore>, keys: Arc<dyn KeyProvider>, entropy: Arc<dyn Entropy>) -> Self {
        Self { blobs, keys, entropy }
    }

    /// Seals bytes under a name.
    ///
    /// # Errors
    /// When the key or the blob store fails.
    pub async fn put(&self, name: &str, bytes: &[u8]) -> Result<(), VaultError> {
        let sealed = self.seal(name, bytes)?;
        Ok(self.blobs.put(name, sealed.into()).await?)
    }

    /// Opens the bytes under a name; `None` if there are none.
    ///
    /// # Errors
    /// When the key or the blob store fails, or the bytes were changed.
    pub async fn get(&self, name: &str) -> Result<Option<Bytes>, VaultError> {
        match self.blobs.get(name).await? {
            Some(sealed) => Ok(Some(self.open(name, &sealed)?.into())),
            None => Ok(None),
        }
    }

    /// Seals content under its own digest, in `area` (such as `source` or `state`).
    ///
    /// # Errors
    /// As [`Vault::put`].
    pub async fn put_content(&self, area: &str, bytes: &[u8]) -> Result<Digest, VaultError> {
        let digest = Digest::of(bytes);
        self.put(&content_name(area, digest), bytes).await?;
        Ok(digest)
    }

    /// Opens content by its digest.
    ///
    /// # Errors
    /// As [`Vault::get`]; also when the bytes do not have this digest.
    pub async fn get_content(&self, area: &str, digest: Digest) -> Result<Option<Bytes>, VaultError> {
        let name = content_name(area, digest);
        let bytes = self.get(&name).await?;
        if bytes.as_ref().is_some_and(|b| Digest::of(b) != digest) {
            return Err(VaultError::Corrupt(name));
        }
        Ok(bytes)
    }

    /// Seals bytes without storing them; `context` must be given again to open them.
    ///
    /// # Errors
    /// When the key is not to be had.
    pub fn seal(&self, context: &str, bytes: &[u8]) -> Result<Vec<u8>, VaultError> {
        let id = self.keys.current();
        let cipher = self.cipher(&id)?;
        let nonce: [u8; NONCE_BYTES] = self.entropy.bytes();
        let sealed = cipher
            .encrypt(XNonce::from_slice(&nonce), Payload { msg: bytes, aad: context.as_bytes() })
            .map_err(|_| VaultError::Corrupt(context.to_owned()))?;
        let mut out = Vec::with_capacity(MAGIC.len() + 1 + id.len() + NONCE_BYTES + sealed.len());
        out.extend_from_slice(MAGIC);
        out.push(u8::try_from(id.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(id.as_bytes());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&sealed);
        Ok(out)
    }

    /// Opens what [`Vault::seal`] made.
    ///
    /// # Errors
    /// When the key is not to be had, or bytes or context differ.
    pub fn open(&self, context: &str, sealed: &[u8]) -> Result<Vec<u8>, VaultError> {
        let corrupt = || VaultError::Corrupt(context.to_owned());
        let rest = sealed.strip_prefix(MAGIC.as_slice()).ok_or_else(corrupt)?;
        let (&id_len, rest) = rest.split_first().ok_or_else(corrupt)?;
        let (id, rest) = rest.split_at_checked(usize::from(id_len)).ok_or_else(corrupt)?;
        let (nonce, body) = rest.split_at_checked(NONCE_BYTES).ok_or_else(corrupt)?;
        let id = std::str::from_utf8(id).map_err(|_| corrupt())?;
        self.cipher(id)?
            .decrypt(XNonce::from_slice(nonce), Payload { msg: body, aad: context.as_bytes() })
            .map_err(|_| corrupt())
    }

    fn cipher(&self, id: &str) -> Result<XChaCha20Poly1305, KeyError> {
        let key = self.keys.key(id)?;
        Ok(XChaCha20Poly1305::new(key.expose_secret().into()))
    }
}

fn content_name(area: &str, digest: Digest) -> String {
    format!("{area}/{}", digest.hex())
}
