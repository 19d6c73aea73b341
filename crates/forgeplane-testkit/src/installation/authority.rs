//! The certificate authority of one installation.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::FarHost;

/// Where tests serve: on the loopback interface, by a name, and at one end of a cable.
const NAMES: [&str; 3] = ["127.0.0.1", "coordinator.test", FarHost::HERE];

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
    /// A new one, whose certificate is added to a file of this directory, with those that were trusted before.
    pub(super) fn new(directory: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Test authority");
        let key = KeyPair::generate().unwrap();
        let file = directory.join("ca.pem");
        let trusted = fs::read_to_string(&file).unwrap_or_default();
        fs::write(&file, trusted + &params.self_signed(&key).unwrap().pem()).unwrap();
        Self { file, issuer: Issuer::new(params, key) }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// A certificate for a coordinator or a broker, and its key; `expired`: it was valid once.
    pub(super) fn issue(&self, expired: bool) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(NAMES.map(str::to_owned)).unwrap();
        if expired {
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
            params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        }
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}
