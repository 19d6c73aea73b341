//! The keys all coordinators share: one seals what is stored, one signs bundles.

use forgeplane_process::Failure;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use secrecy::{ExposeSecret as _, SecretString};

const NAMES: [&str; 2] = ["sealing", "signing"];

/// The keys of an installation.
pub struct Keys {
    pub sealing: [u8; 32],
    pub signing: [u8; 32],
}

fn unusable(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new("key_unusable", format!("{}: {why}", path.display()))
}

impl Keys {
    /// Reads the keys of a directory.
    pub fn read(directory: &Path) -> Result<Self, Failure> {
        let [sealing, signing] = NAMES.map(|name| read(&directory.join(format!("{name}.key"))));
        Ok(Self { sealing: sealing?, signing: signing? })
    }

    /// Makes the keys of a new installation; never replaces one.
    pub fn make(directory: &Path) -> Result<(), Failure> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|e| unusable(directory, e))?;
        for name in NAMES {
            let path = directory.join(format!("{name}.key"));
            let mut key = [0; 32];
            getrandom::fill(&mut key).map_err(|e| unusable(&path, e))?;
            let text = SecretString::from(hex::encode(key));
            let mut file = fs::OpenOptions::new()
                .create_new(true)
                .write(true)
                .mode(0o600)
                .open(&path)
                .map_err(|e| unusable(&path, e))?;
            writeln!(file, "{}", text.expose_secret())
                .and_then(|()| file.sync_all())
                .map_err(|e| unusable(&path, e))?;
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<[u8; 32], Failure> {
    let metadata = fs::metadata(path).map_err(|e| {
        unusable(path, e).way_out("make the keys of a new installation once with `forgeplane-coordinator keys`, and give every coordinator the same")
    })?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(unusable(path, "others than its owner can read it").way_out("chmod 600"));
    }
    let text = SecretString::from(fs::read_to_string(path).map_err(|e| unusable(path, e))?);
    let mut key = [0; 32];
    hex::decode_to_slice(text.expose_secret().trim(), &mut key)
        .map_err(|_| unusable(path, "it is not a key of 64 hex digits"))?;
    Ok(key)
}
