//! Connections to a coordinator: addresses, encryption, liveness.

use std::net::IpAddr;
use std::time::Duration;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use secrecy::{ExposeSecret as _, SecretString};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};

/// How to reach a coordinator.
#[derive(Debug, Clone, Default)]
pub struct ConnectOptions {
    /// Its addresses, `https://host:port`; several replicas are tried in turn.
    pub urls: Vec<String>,
    /// The certificate authority that signed its certificate, PEM; the system's authorities unless set.
    pub ca: Option<Vec<u8>>,
    /// The worker's own certificate and its key, PEM, for coordinators that ask for one.
    pub identity: Option<(Vec<u8>, SecretString)>,
    /// The name in its certificate, if it is not the host of the address.
    pub server_name: Option<String>,
    /// Accept `http://` to hosts other than this one. Credentials and secrets then travel readably.
    pub unsafe_plaintext: bool,
}

/// Why a coordinator cannot be connected to.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No address was given.
    #[error("no address of a coordinator was given: give one like `https://coordinator.example:7443`")]
    NoAddress,
    /// Not an address.
    #[error("`{url}` is not the address of a coordinator: it looks like `https://coordinator.example:7443`")]
    Address {
        /// What was given.
        url: String,
    },
    /// Everything would travel readably.
    #[error(
        "`{url}` is not encrypted: use `https://`, or accept with `unsafe_plaintext` that credentials travel readably"
    )]
    Plaintext {
        /// What was given.
        url: String,
    },
    /// Nothing to trust in what is to be trusted, such as a file that is half written.
    #[error("there is no certificate in the certificate authority, or one that cannot be read")]
    Authority,
    /// A certificate or key that cannot be used.
    #[error("the certificates cannot be used: {0}")]
    Tls(#[source] tonic::transport::Error),
}

impl ConnectError {
    /// Stable machine code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoAddress => "coordinator_address_missing",
            Self::Address { .. } => "coordinator_address_invalid",
            Self::Plaintext { .. } => "plaintext_refused",
            Self::Authority | Self::Tls(_) => "tls_unusable",
        }
    }
}

/// One channel per address.
pub(super) fn channels(options: &ConnectOptions) -> Result<Vec<Channel>, ConnectError> {
    if options.urls.is_empty() {
        return Err(ConnectError::NoAddress);
    }
    if let Some(ca) = &options.ca {
        let authorities: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(ca).collect();
        if !authorities.is_ok_and(|authorities| !authorities.is_empty()) {
            return Err(ConnectError::Authority);
        }
    }
    options.urls.iter().map(|url| channel(url, options)).collect()
}

fn channel(url: &str, options: &ConnectOptions) -> Result<Channel, ConnectError> {
    let invalid = || ConnectError::Address { url: url.to_owned() };
    let uri: Uri = url.parse().map_err(|_| invalid())?;
    let host = uri.host().ok_or_else(invalid)?.to_owned();
    let encrypted = match uri.scheme_str() {
        Some("https") => true,
        Some("http") if is_loopback(&host) || options.unsafe_plaintext => false,
        Some("http") => return Err(ConnectError::Plaintext { url: url.to_owned() }),
        _ => return Err(invalid()),
    };
    let mut endpoint = Endpoint::from(uri)
        .connect_timeout(Duration::from_secs(5))
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(30)))
        // Also while nothing is called: a path that died in silence is noticed before it is needed.
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    if encrypted {
        endpoint = endpoint.tls_config(tls(options)).map_err(ConnectError::Tls)?;
    }
    Ok(endpoint.connect_lazy())
}

fn tls(options: &ConnectOptions) -> ClientTlsConfig {
    let mut tls = ClientTlsConfig::new();
    tls = match &options.ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(ca)),
        None => tls.with_native_roots(),
    };
    if let Some((certificate, key)) = &options.identity {
        tls = tls.identity(Identity::from_pem(certificate, key.expose_secret()));
    }
    if let Some(name) = &options.server_name {
        tls = tls.domain_name(name);
    }
    tls
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> &'static str {
        let options = ConnectOptions { urls: vec![url.to_owned()], ..ConnectOptions::default() };
        channels(&options).unwrap_err().code()
    }

    #[tokio::test]
    async fn credentials_do_not_travel_readably_unless_somebody_says_so() {
        for url in ["http://127.0.0.1:7000", "http://localhost:7000", "http://[::1]:7000"] {
            let options = ConnectOptions { urls: vec![url.to_owned()], ..ConnectOptions::default() };
            assert!(channels(&options).is_ok(), "{url}");
        }
        for url in ["http://10.0.0.1:7000", "http://localhost.example:7000", "http://0.0.0.0:1"] {
            assert_eq!(refused(url), "plaintext_refused", "{url}");
            let options = ConnectOptions {
                urls: vec![url.to_owned()],
                unsafe_plaintext: true,
                ..ConnectOptions::default()
            };
            assert!(channels(&options).is_ok(), "{url}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        assert_eq!(channels(&ConnectOptions::default()).unwrap_err().code(), "coordinator_address_missing");
        for url in ["", "coordinator:7443", "ftp://x", "/path", "https://"] {
            assert_eq!(refused(url), "coordinator_address_invalid", "{url:?}");
        }
    }
}
