//! The worker's signing key and the coordinator's pinned key.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ed25519_dalek::{Signer as _, SigningKey};
use forgeplane_core::evidence::registration_message;
use forgeplane_core::model::Name;
use forgeplane_core::ports::Challenge;
use zeroize::Zeroizing;

use crate::durable;
use crate::error::{WorkerError, at};

/// Who this worker is: a key that was made here and never leaves.
pub(crate) struct Identity {
    key: SigningKey,
    pin: PathBuf,
}

impl Identity {
    /// Reads the key, or makes one at the first start.
    pub(crate) fn load(state_dir: &Path) -> Result<Self, WorkerError> {
        let path = state_dir.join("identity.key");
        if durable::is_exposed(&path).unwrap_or(false) {
            return Err(WorkerError::StateCorrupt {
                path,
                reason: "the worker's key can be read by others: if it was, remove it and enroll this worker anew; if not, `chmod 600` it".into(),
            });
        }
        let seed = match fs::read_to_string(&path).map(Zeroizing::new) {
            Ok(text) => {
                let mut seed = Zeroizing::new([0; 32]);
                hex::decode_to_slice(text.trim(), seed.as_mut()).map_err(|_| WorkerError::StateCorrupt {
                    path: path.clone(),
                    reason: "not a key of 64 hex digits: restore it from a backup, or remove it and enroll this worker anew".into(),
                })?;
                seed
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut seed = Zeroizing::new([0; 32]);
                getrandom::fill(seed.as_mut()).map_err(|e| at(&path)(io::Error::other(e)))?;
                let text = Zeroizing::new(hex::encode(*seed));
                durable::replace(&path, text.as_bytes()).map_err(at(&path))?;
                seed
            }
            Err(error) => return Err(at(&path)(error)),
        };
        Ok(Self { key: SigningKey::from_bytes(&seed), pin: state_dir.join("coordinator.pub") })
    }

    pub(crate) fn signing_key(&self) -> &SigningKey {
        &self.key
    }

    pub(crate) fn public_key(&self) -> [u8; 32] {
        self.key.verifying_key().to_bytes()
    }

    /// Proves possession of the key for a registration.
    pub(crate) fn prove(&self, challenge: &Challenge, name: &Name, pool: &Name) -> [u8; 64] {
        self.key.sign(&registration_message(&challenge.0, name.as_str(), pool.as_str())).to_bytes()
    }

    /// Pins the coordinator's key at the first registration and refuses any other one later.
    pub(crate) fn pin_coordinator(&self, key: [u8; 32]) -> Result<(), WorkerError> {
        match fs::read_to_string(&self.pin) {
            Ok(pinned) if pinned.trim() == hex::encode(key) => Ok(()),
            Ok(_) => Err(WorkerError::CoordinatorChanged { pin: self.pin.clone() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                durable::replace(&self.pin, hex::encode(key).as_bytes()).map_err(at(&self.pin))
            }
            Err(error) => Err(at(&self.pin)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let first = Identity::load(dir.path()).unwrap().public_key();
        assert_eq!(Identity::load(dir.path()).unwrap().public_key(), first);
        let mode = fs::metadata(dir.path().join("identity.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn another_coordinator_is_refused_once_one_is_pinned() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity::load(dir.path()).unwrap();
        identity.pin_coordinator([1; 32]).unwrap();
        identity.pin_coordinator([1; 32]).unwrap();
        assert_eq!(identity.pin_coordinator([2; 32]).unwrap_err().code(), "coordinator_changed");
    }

    #[test]
    fn a_damaged_key_is_an_error_and_not_a_new_identity() {
        let dir = tempfile::tempdir().unwrap();
        durable::replace(&dir.path().join("identity.key"), b"xyz").unwrap();
        assert_eq!(Identity::load(dir.path()).err().unwrap().code(), "worker_state_corrupt");
    }
    #[test]
    fn a_key_that_others_can_read_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        Identity::load(dir.path()).unwrap();
        let key = dir.path().join("identity.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Identity::load(dir.path()).err().unwrap();
        assert_eq!(error.code(), "worker_state_corrupt");
        assert!(error.to_string().contains("can be read by others"));
    }
}
