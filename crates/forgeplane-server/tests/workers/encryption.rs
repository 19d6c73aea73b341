//! TLS, client certificates, and where plaintext is refused.

use std::sync::Arc;

use forgeplane_core::Code;
use forgeplane_core::digest::Digest;
use forgeplane_core::ports::*;
use forgeplane_proto::client::{ConnectOptions, GrpcControlPlane};
use forgeplane_server::workers::{Certificates, ServerPem, Tls, WorkerService, serve_workers};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::served::{PLAINTEXT, Served};
use crate::support::House;
use crate::worker::FakeWorker;

/// A certificate authority of a test.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// A certificate for `name` and its key.
    fn issue(&self, name: &str) -> (Vec<u8>, String) {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        (certificate.pem().into_bytes(), key.serialize_pem())
    }
}

pub(crate) fn pem(authority: &Authority, client_ca: Option<Vec<u8>>) -> ServerPem {
    let (certificate, key) = authority.issue("localhost");
    ServerPem { certificate, key: key.into(), client_ca }
}

async fn serve(house: &House, authority: &Authority, client_ca: Option<Vec<u8>>) -> Served {
    serve_at("127.0.0.1:0", house, Certificates::new(&pem(authority, client_ca)).unwrap()).await
}

pub(crate) async fn serve_at(at: &str, house: &House, certificates: Certificates) -> Served {
    let shutdown = CancellationToken::new();
    let service = WorkerService::new(&house.coordinator, shutdown.child_token());
    Served::start(at, service, Tls::Server(certificates), shutdown).await
}

pub(crate) fn options(served: &Served, ca: Vec<u8>) -> ConnectOptions {
    let urls = vec![format!("https://localhost:{}", served.address.port())];
    ConnectOptions { urls, ca: Some(ca), ..ConnectOptions::default() }
}

async fn challenge(options: &ConnectOptions) -> Result<Challenge, ControlError> {
    GrpcControlPlane::new(options).unwrap().challenge().await
}

#[tokio::test]
async fn a_worker_trusts_its_authority_and_no_other() {
    let house = House::new().await;
    let (authority, other) = (Authority::new(), Authority::new());
    let served = serve(&house, &authority, None).await;
    challenge(&options(&served, authority.pem())).await.unwrap();
    assert!(matches!(challenge(&options(&served, other.pem())).await, Err(ControlError::Unavailable(_))));
    let renamed =
        ConnectOptions { server_name: Some("another.example".into()), ..options(&served, authority.pem()) };
    assert!(challenge(&renamed).await.is_err(), "the certificate is for localhost");
    let plaintext = ConnectOptions { urls: vec![served.url()], ..ConnectOptions::default() };
    assert!(challenge(&plaintext).await.is_err());
    served.stop().await;
}

#[tokio::test]
async fn a_coordinator_may_ask_for_certificates() {
    let house = House::new().await;
    let (authority, workers, other) = (Authority::new(), Authority::new(), Authority::new());
    let served = serve(&house, &authority, Some(workers.pem())).await;
    let with = |issuer: &Authority| {
        let (certificate, key) = issuer.issue("worker-1");
        ConnectOptions { identity: Some((certificate, key.into())), ..options(&served, authority.pem()) }
    };
    challenge(&with(&workers)).await.unwrap();
    assert!(challenge(&with(&other)).await.is_err(), "signed by somebody else");
    assert!(challenge(&options(&served, authority.pem())).await.is_err(), "no certificate");
    served.stop().await;
}

/// Whoever steals a session credential also needs the certificate's key.
#[tokio::test]
async fn a_session_is_bound_to_the_certificate_it_was_opened_with() {
    let house = House::new().await;
    let (authority, workers) = (Authority::new(), Authority::new());
    let served = serve(&house, &authority, Some(workers.pem())).await;
    let connection = |(certificate, key): (Vec<u8>, String)| {
        let identity = Some((certificate, key.into()));
        GrpcControlPlane::new(&ConnectOptions { identity, ..options(&served, authority.pem()) }).unwrap()
    };
    let (own, thief) = (workers.issue("worker-1"), workers.issue("worker-2"));
    let worker = FakeWorker::enroll_over(&house, Arc::new(connection(own.clone()))).await;
    worker.plane.heartbeat(&worker.session, Heartbeat::default()).await.unwrap();
    connection(own).heartbeat(&worker.session, Heartbeat::default()).await.unwrap();
    match connection(thief).heartbeat(&worker.session, Heartbeat::default()).await {
        Err(ControlError::Refused(refusal)) => assert_eq!(refusal.code, Code::Unauthenticated, "{refusal}"),
        other => panic!("a stolen session was not refused: {other:?}"),
    }
    // A claimed thumbprint counts for nothing: only what the connection shows does.
    let claimed = Session { certificate: Some(Digest::of(b"x")), ..worker.session.clone() };
    worker.plane.heartbeat(&claimed, Heartbeat::default()).await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn plaintext_is_served_on_loopback_only_unless_somebody_says_so() {
    let house = House::new().await;
    let service = || WorkerService::new(&house.coordinator, CancellationToken::new());
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let error = serve_workers(listener, service(), &PLAINTEXT, CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.code(), "plaintext_refused");
    assert!(error.to_string().contains("certificate"), "{error}");

    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let (service, tls) = (service(), Tls::Plaintext { unsafe_anywhere: true });
    let serving = tokio::spawn(async move { serve_workers(listener, service, &tls, stop).await });
    let urls = vec![format!("http://127.0.0.1:{port}")];
    challenge(&ConnectOptions { urls, ..ConnectOptions::default() }).await.unwrap();
    shutdown.cancel();
    serving.await.unwrap().unwrap();
}

#[test]
fn unusable_certificates_are_an_error_without_the_key() {
    let (authority, other) = (Authority::new(), Authority::new());
    let good = || pem(&authority, None);
    let text = |text: &str| text.as_bytes().to_vec();
    for (what, bad) in [
        ("certificate chain", ServerPem { certificate: text("no certificate"), ..good() }),
        ("key cannot be read", ServerPem { key: "top-secret".into(), ..good() }),
        ("cannot be used", ServerPem { key: other.issue("localhost").1.into(), ..good() }),
        ("authorities of workers", ServerPem { client_ca: Some(text("nobody")), ..good() }),
    ] {
        assert!(!format!("{bad:?}").contains("top-secret"));
        let error = Certificates::new(&bad).unwrap_err();
        assert_eq!(error.code(), "tls_unusable");
        assert!(error.to_string().contains(what), "{error}");
        assert!(!format!("{error:?}").contains("top-secret"));
    }
}

/// B25: connections made after a replacement use the new certificate; what cannot be used replaces nothing.
#[tokio::test]
async fn b25_certificates_can_be_replaced_while_serving() {
    let house = House::new().await;
    let (old, new) = (Authority::new(), Authority::new());
    let certificates = Certificates::new(&pem(&old, None)).unwrap();
    let served = serve_at("127.0.0.1:0", &house, certificates.clone()).await;
    let trusting_old = GrpcControlPlane::new(&options(&served, old.pem())).unwrap();
    trusting_old.challenge().await.unwrap();

    certificates.replace(&ServerPem { key: "no key".into(), ..pem(&new, None) }).unwrap_err();
    challenge(&options(&served, old.pem())).await.unwrap();

    certificates.replace(&pem(&new, None)).unwrap();
    trusting_old.challenge().await.expect("a connection that is open stays");
    assert!(challenge(&options(&served, old.pem())).await.is_err());
    challenge(&options(&served, new.pem())).await.unwrap();
    // The worker's end can be told as well, without losing its session or its calls.
    trusting_old.replace(&options(&served, new.pem())).unwrap();
    trusting_old.challenge().await.unwrap();
    trusting_old.replace(&options(&served, b"no certificate".to_vec())).unwrap_err();
    trusting_old.challenge().await.unwrap();
    served.stop().await;
}

/// B24: whoever is slow with the handshake keeps nobody else waiting.
#[tokio::test]
async fn b24_a_handshake_that_stands_still_delays_nobody() {
    let house = House::new().await;
    let authority = Authority::new();
    let served = serve(&house, &authority, None).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::TcpStream::connect(served.address).await.unwrap());
    }
    challenge(&options(&served, authority.pem())).await.unwrap();
    // And is left in the end.
    let mut byte = [0];
    let end = tokio::io::AsyncReadExt::read(&mut silent[0], &mut byte);
    let end = tokio::time::timeout(std::time::Duration::from_secs(60), end).await;
    assert!(matches!(end, Ok(Ok(0) | Err(_))), "{end:?}");
    served.stop().await;
}
