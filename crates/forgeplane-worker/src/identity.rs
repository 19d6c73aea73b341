//! The worker's signing key and the coordinator's pinned key.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use ed25519_dalek::SigningKey;
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::key_id;
use forgeplane_core::ports::{Entropy, EntropyExt as _};
use zeroize::Zeroizing;

use crate::durable;
use crate::error::{WorkerError, at};
use crate::host::{Disk, Host};

/// Who this worker is: a key that was made here and never leaves.
pub(crate) struct Identity {
    disk: Arc<dyn Disk>,
    entropy: Arc<dyn Entropy>,
    key: RwLock<SigningKey>,
    /// The key in force.
    path: PathBuf,
    /// The key that is to take its place, while the coordinator's word on that is not known.
    next: PathBuf,
    pin: PathBuf,
}

fn read(disk: &dyn Disk, path: &Path) -> Result<Option<SigningKey>, WorkerError> {
    if disk.is_exposed(path).unwrap_or(false) {
        return Err(WorkerError::StateCorrupt {
            path: path.to_path_buf(),
            reason: "the worker's key can be read by others: if it was, remove it and enroll this worker anew; if not, `chmod 600` it".into(),
        });
    }
    let text = match disk.read(path).map(Zeroizing::new) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(path)(error)),
    };
    let mut seed = Zeroizing::new([0; 32]);
    hex::decode_to_slice(text.trim_ascii(), seed.as_mut()).map_err(|_| WorkerError::StateCorrupt {
        path: path.to_path_buf(),
        reason:
            "not a key of 64 hex digits: restore it from a backup, or remove it and enroll this worker anew"
                .into(),
    })?;
    Ok(Some(SigningKey::from_bytes(&seed)))
}

/// Makes a key; on disk when this returns.
fn make(disk: &dyn Disk, entropy: &dyn Entropy, path: &Path) -> Result<SigningKey, WorkerError> {
    let seed = Zeroizing::new(entropy.bytes());
    let text = Zeroizing::new(hex::encode(*seed));
    durable::replace(disk, path, text.as_bytes()).map_err(at(path))?;
    Ok(SigningKey::from_bytes(&seed))
}

impl Identity {
    /// Reads the key, or makes one at the first start.
    pub(crate) fn load(host: &dyn Host, state_dir: &Path) -> Result<Self, WorkerError> {
        let (disk, entropy) = (host.disk(), host.entropy());
        let path = state_dir.join("identity.key");
        let key = match read(&*disk, &path)? {
            Some(key) => key,
            None => make(&*disk, &*entropy, &path)?,
        };
        Ok(Self {
            disk,
            entropy,
            key: RwLock::new(key),
            path,
            next: state_dir.join("identity-next.key"),
            pin: state_dir.join("coordinator.pub"),
        })
    }

    /// The key in force.
    pub(crate) fn signing_key(&self) -> SigningKey {
        // A key is replaced whole; a panic elsewhere cannot leave one half-made.
        self.key.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The id of the key in force.
    pub(crate) fn key_id(&self) -> Digest {
        key_id(self.signing_key().verifying_key().as_bytes())
    }

    /// The key of a replacement that was begun.
    pub(crate) fn next_key(&self) -> Result<Option<SigningKey>, WorkerError> {
        read(&*self.disk, &self.next)
    }

    /// Begins a replacement, or goes on with the one that was begun.
    pub(crate) fn make_next_key(&self) -> Result<SigningKey, WorkerError> {
        match self.next_key()? {
            Some(key) => {
                // Its sync may have failed.
                durable::sync_parent(&*self.disk, &self.next).map_err(at(&self.next))?;
                Ok(key)
            }
            None => make(&*self.disk, &*self.entropy, &self.next),
        }
    }

    /// Ends a replacement: the next key is the one in force, whether or not the disk takes that.
    pub(crate) fn adopt(&self, next: SigningKey) -> Result<(), WorkerError> {
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = next;
        durable::rename(&*self.disk, &self.next, &self.path).map_err(at(&self.path))
    }

    /// Pins the coordinator's key at the first registration and refuses any other one later.
    pub(crate) fn pin_coordinator(&self, key: [u8; 32]) -> Result<(), WorkerError> {
        match self.disk.read(&self.pin) {
            Ok(pinned) if pinned.trim_ascii() == hex::encode(key).as_bytes() => Ok(()),
            Ok(_) => Err(WorkerError::CoordinatorChanged { pin: self.pin.clone() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                durable::replace(&*self.disk, &self.pin, hex::encode(key).as_bytes()).map_err(at(&self.pin))
            }
            Err(error) => Err(at(&self.pin)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::{LocalDisk, Machine};

    #[test]
    fn a_key_is_made_once_and_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let first = Identity::load(&Machine, dir.path()).unwrap().key_id();
        assert_eq!(Identity::load(&Machine, dir.path()).unwrap().key_id(), first);
        let mode = fs::metadata(dir.path().join("identity.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn another_coordinator_is_refused_once_one_is_pinned() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity::load(&Machine, dir.path()).unwrap();
        identity.pin_coordinator([1; 32]).unwrap();
        identity.pin_coordinator([1; 32]).unwrap();
        assert_eq!(identity.pin_coordinator([2; 32]).unwrap_err().code(), "coordinator_changed");
    }

    #[test]
    fn a_damaged_key_is_an_error_and_not_a_new_identity() {
        let dir = tempfile::tempdir().unwrap();
        durable::replace(&LocalDisk, &dir.path().join("identity.key"), b"xyz").unwrap();
        assert_eq!(Identity::load(&Machine, dir.path()).err().unwrap().code(), "worker_state_corrupt");
    }

    #[test]
    fn a_replacement_that_was_begun_goes_on_with_the_same_key() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity::load(&Machine, dir.path()).unwrap();
        let old = identity.key_id();
        let next = identity.make_next_key().unwrap();
        let again = Identity::load(&Machine, dir.path()).unwrap();
        assert_eq!(again.key_id(), old);
        assert_eq!(again.make_next_key().unwrap(), next);
        again.adopt(next.clone()).unwrap();
        assert_eq!(again.key_id(), key_id(next.verifying_key().as_bytes()));
        assert_eq!(Identity::load(&Machine, dir.path()).unwrap().key_id(), again.key_id());
        assert!(again.next_key().unwrap().is_none());
    }

    #[test]
    fn a_key_that_others_can_read_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        Identity::load(&Machine, dir.path()).unwrap();
        let key = dir.path().join("identity.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Identity::load(&Machine, dir.path()).err().unwrap();
        assert_eq!(error.code(), "worker_state_corrupt");
        assert!(error.to_string().contains("can be read by others"));
    }
}
