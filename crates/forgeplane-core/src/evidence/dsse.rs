//! The envelope and the pre-authentication encoding.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// The largest payload that is ever verified, bytes.
pub const MAX_PAYLOAD_BYTES: usize = 64 * 1024;

/// A statement with a payload type of its own.
pub trait Statement: Serialize + DeserializeOwned {
    /// The DSSE payload type.
    const PAYLOAD_TYPE: &'static str;
}

/// A signature and the key it was made with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvelopeSignature {
    /// SHA-256 of the public key.
    pub keyid: Digest,
    /// Base64 of the 64 signature bytes.
    pub sig: String,
}

/// A DSSE envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Envelope {
    /// What the payload is.
    pub payload_type: String,
    /// Base64 of the payload bytes.
    pub payload: String,
    /// One signature; a [`KeyRotation`](super::KeyRotation) has two.
    pub signatures: Vec<EnvelopeSignature>,
}

/// An envelope that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Not JSON of an envelope, or not base64.
    #[error("not a signed envelope: {0}")]
    Malformed(String),
    /// Larger than [`MAX_PAYLOAD_BYTES`].
    #[error("the payload is larger than {MAX_PAYLOAD_BYTES} bytes")]
    TooLarge,
    /// Another kind of statement.
    #[error("expected a payload of type {expected}, found {found:?}")]
    WrongType {
        /// What was expected.
        expected: &'static str,
        /// What it says.
        found: String,
    },
    /// Signed by another key than expected.
    #[error("signed by key {found}, not by {expected}")]
    WrongKey {
        /// The key that should have signed.
        expected: Digest,
        /// The key named.
        found: Digest,
    },
    /// The signature does not verify.
    #[error("the signature does not verify")]
    BadSignature,
}

/// The id of a public key: SHA-256 of its 32 bytes.
#[must_use]
pub fn key_id(public_key: &[u8; 32]) -> Digest {
    Digest::of(public_key)
}

/// DSSE's pre-authentication encoding: what is actually signed.
#[must_use]
pub fn pre_authentication_encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len() + payload_type.len() + 32);
    bytes.extend_from_slice(
        format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).as_bytes(),
    );
    bytes.extend_from_slice(payload);
    bytes
}

impl Envelope {
    /// Signs a statement.
    ///
    /// # Errors
    /// When the statement is larger than [`MAX_PAYLOAD_BYTES`] or cannot be serialized.
    pub fn sign<S: Statement>(statement: &S, key: &SigningKey) -> Result<Self, EnvelopeError> {
        let payload = serde_json::to_vec(statement).map_err(|e| EnvelopeError::Malformed(e.to_string()))?;
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(EnvelopeError::TooLarge);
        }
        Ok(Self {
            payload_type: S::PAYLOAD_TYPE.to_owned(),
            payload: STANDARD.encode(&payload),
            signatures: vec![signature(S::PAYLOAD_TYPE, &payload, key)],
        })
    }

    /// Adds another key's signature over the same bytes.
    ///
    /// # Errors
    /// When the payload is of another type or not readable.
    pub fn countersign<S: Statement>(mut self, key: &SigningKey) -> Result<Self, EnvelopeError> {
        let payload = self.payload_bytes::<S>()?;
        self.signatures.push(signature(S::PAYLOAD_TYPE, &payload, key));
        Ok(self)
    }

    /// The envelope as JSON text: what is stored, sent and digested.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Plain structs with string keys always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads an envelope from JSON text.
    ///
    /// # Errors
    /// When it is not one.
    pub fn from_json(text: &str) -> Result<Self, EnvelopeError> {
        if text.len() > 2 * MAX_PAYLOAD_BYTES {
            return Err(EnvelopeError::TooLarge);
        }
        serde_json::from_str(text).map_err(|e| EnvelopeError::Malformed(e.to_string()))
    }

    /// The digest of the envelope's JSON text.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(self.to_json().as_bytes())
    }

    /// The key that claims to have signed, before anything is verified.
    ///
    /// # Errors
    /// When there is not exactly one signature.
    pub fn signer(&self) -> Result<Digest, EnvelopeError> {
        match self.signatures.as_slice() {
            [one] => Ok(one.keyid),
            other => Err(EnvelopeError::Malformed(format!("expected one signature, found {}", other.len()))),
        }
    }

    /// Reads the payload without verifying it: only to find the key to verify with.
    ///
    /// # Errors
    /// When type, size or content are wrong.
    pub fn peek<S: Statement>(&self) -> Result<S, EnvelopeError> {
        parse(&self.payload_bytes::<S>()?)
    }

    /// Verifies the signature strictly and then reads the very bytes that were verified.
    ///
    /// # Errors
    /// When type, size, key, signature or content are wrong.
    pub fn verify<S: Statement>(&self, public_key: &[u8; 32]) -> Result<S, EnvelopeError> {
        self.verify_all(&[*public_key])
    }

    /// As [`Envelope::verify`], for a statement that all of these keys signed, in this order, and no other.
    ///
    /// # Errors
    /// When type, size, keys, signatures or content are wrong.
    pub fn verify_all<S: Statement>(&self, public_keys: &[[u8; 32]]) -> Result<S, EnvelopeError> {
        let (wanted, found) = (public_keys.len(), self.signatures.len());
        if wanted != found || wanted == 0 {
            return Err(EnvelopeError::Malformed(format!("expected {wanted} signatures, found {found}")));
        }
        for (public_key, signature) in public_keys.iter().zip(&self.signatures) {
            let (expected, found) = (key_id(public_key), signature.keyid);
            if found != expected {
                return Err(EnvelopeError::WrongKey { expected, found });
            }
        }
        let payload = self.payload_bytes::<S>()?;
        let signed = pre_authentication_encoding(S::PAYLOAD_TYPE, &payload);
        for (public_key, signature) in public_keys.iter().zip(&self.signatures) {
            let signature = STANDARD
                .decode(&signature.sig)
                .ok()
                .and_then(|bytes| Signature::from_slice(&bytes).ok())
                .ok_or_else(|| EnvelopeError::Malformed("the signature is not 64 bytes of base64".into()))?;
            VerifyingKey::from_bytes(public_key)
                .and_then(|key| key.verify_strict(&signed, &signature))
                .map_err(|_| EnvelopeError::BadSignature)?;
        }
        parse(&payload)
    }

    fn payload_bytes<S: Statement>(&self) -> Result<Vec<u8>, EnvelopeError> {
        if self.payload_type != S::PAYLOAD_TYPE {
            return Err(EnvelopeError::WrongType {
                expected: S::PAYLOAD_TYPE,
                found: self.payload_type.clone(),
            });
        }
        if self.payload.len() > 2 * MAX_PAYLOAD_BYTES {
            return Err(EnvelopeError::TooLarge);
        }
        let bytes = STANDARD.decode(&self.payload).map_err(|e| EnvelopeError::Malformed(e.to_string()))?;
        if bytes.len() > MAX_PAYLOAD_BYTES { Err(EnvelopeError::TooLarge) } else { Ok(bytes) }
    }
}

fn signature(payload_type: &str, payload: &[u8], key: &SigningKey) -> EnvelopeSignature {
    let signature = key.sign(&pre_authentication_encoding(payload_type, payload));
    EnvelopeSignature {
        keyid: key_id(key.verifying_key().as_bytes()),
        sig: STANDARD.encode(signature.to_bytes()),
    }
}

fn parse<S: Statement>(payload: &[u8]) -> Result<S, EnvelopeError> {
    serde_json::from_slice(payload).map_err(|e| EnvelopeError::Malformed(e.to_string()))
}
