//! The certificate authority of one installation.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

pub(super) struct Authority {
    file: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Authority {
    /// A new one, whose certificate is in a file of this directory.
    pub(super) fn new(directory: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Test authority");
        let key = KeyPair::generate().unwrap();
        let file = directory.join("ca.pem");
        fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { file, issuer: Issuer::new(params, key) }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// A certificate for this name, and its key.
    pub(super) fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}
