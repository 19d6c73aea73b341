//! Encryption of the worker API: certificates that can be replaced while it serves, and the handshakes.

use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;

use crate::accept::next_connection;

/// How long a handshake may take: longer than any honest one over a bad network.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How many connections may wait, encrypted, to be served.
const BACKLOG: usize = 64;

/// How the worker API is encrypted.
#[derive(Debug, Clone)]
pub enum Tls {
    /// Not at all: only on a loopback address, unless `unsafe_anywhere` is set. Credentials and secrets travel
    /// readably.
    Plaintext {
        /// Accept it on any address.
        unsafe_anywhere: bool,
    },
    /// With the coordinator's certificate.
    Server(Certificates),
}

/// What the worker API is encrypted with, as it is in files.
#[derive(Debug, Clone)]
pub struct ServerPem {
    /// The certificate chain, PEM.
    pub certificate: Vec<u8>,
    /// Its key, PEM.
    pub key: SecretString,
    /// The authorities whose certificates workers must show, PEM; none is asked for unless set.
    pub client_ca: Option<Vec<u8>>,
}

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificatesError {
    /// Not PEM, or nothing of what is needed in it.
    #[error("{what} cannot be read: {source}")]
    Pem {
        /// Which part.
        what: &'static str,
        /// What is wrong.
        source: pem::Error,
    },
    /// The chain is empty.
    #[error("there is no certificate in the certificate chain")]
    NoCertificate,
    /// Certificate and key do not go together, or are of an unknown kind.
    #[error("the certificate or its key cannot be used: {0}")]
    Unusable(#[source] rustls::Error),
    /// The authorities of workers cannot be used.
    #[error("the authorities of workers cannot be used: {0}")]
    ClientCa(#[source] VerifierBuilderError),
}

impl CertificatesError {
    /// Stable machine code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "tls_unusable"
    }
}

/// What the worker API is encrypted with; can be replaced while it serves. Clones are the same.
#[derive(Clone)]
pub struct Certificates(Arc<RwLock<Arc<ServerConfig>>>);

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Certificates {
    /// # Errors
    /// [`CertificatesError`]: what cannot be read or does not go together.
    pub fn new(pem: &ServerPem) -> Result<Self, CertificatesError> {
        Ok(Self(Arc::new(RwLock::new(configuration(pem)?))))
    }

    /// Connections that are made from now on are encrypted with these; those that are open stay as they are.
    ///
    /// # Errors
    /// [`CertificatesError`]; the former ones are used on.
    pub fn replace(&self, pem: &ServerPem) -> Result<(), CertificatesError> {
        let new = configuration(pem)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The encrypted connections of a listener. A peer that is slow with its handshake keeps nobody else waiting, and is
    /// left after a while.
    pub(super) fn accept(&self, listener: TcpListener) -> ReceiverStream<io::Result<TlsStream<TcpStream>>> {
        let (connections, accepted) = mpsc::channel(BACKLOG);
        let certificates = self.clone();
        tokio::spawn(async move {
            loop {
                let tcp = tokio::select! {
                    biased;
                    () = connections.closed() => return,
                    tcp = next_connection(&listener) => tcp,
                };
                let (acceptor, connections) =
                    (TlsAcceptor::from(certificates.current()), connections.clone());
                tokio::spawn(async move {
                    match tokio::time::timeout(HANDSHAKE, handshake(&acceptor, tcp)).await {
                        Ok(Ok(stream)) => {
                            // Nobody takes it any more when the server ends.
                            let _ = connections.send(Ok(stream)).await;
                        }
                        Ok(Err(error)) => tracing::debug!(%error, "a connection was not encrypted"),
                        Err(_) => tracing::debug!("a connection was not encrypted in time"),
                    }
                });
            }
        });
        ReceiverStream::new(accepted)
    }
}

async fn handshake(acceptor: &TlsAcceptor, tcp: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    tcp.set_nodelay(true)?;
    acceptor.accept(tcp).await
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificatesError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| CertificatesError::Pem { what, source })
}

fn configuration(pem: &ServerPem) -> Result<Arc<ServerConfig>, CertificatesError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(CertificatesError::Unusable)?;
    let builder = match &pem.client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates("the authorities of workers", ca)? {
                roots.add(authority).map_err(CertificatesError::Unusable)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(CertificatesError::ClientCa)?)
        }
    };
    let chain = certificates("the certificate", &pem.certificate)?;
    if chain.is_empty() {
        return Err(CertificatesError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(pem.key.expose_secret().as_bytes())
        .map_err(|source| CertificatesError::Pem { what: "the certificate's key", source })?;
    let mut config = builder.with_single_cert(chain, key).map_err(CertificatesError::Unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
