//! The connection to the broker is encrypted and the broker proves who it is.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod broker;

use std::fs;
use std::path::PathBuf;

use broker::{make_job, options, take, worker_jobs};
use forgeplane_core::ports::JobQueue as _;
use forgeplane_queue_nats::{ConnectError, NatsOptions, NatsQueue, NatsTls};
use forgeplane_testkit::fixtures::Fixtures;
use forgeplane_testkit::nats_server::{NatsServer, NatsServerOptions, ServerTls};
use forgeplane_testkit::run::story;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// An authority, whose certificate is in a file.
struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Test authority");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let authority = Self { dir: tempfile::tempdir().unwrap(), issuer: Issuer::new(params, key), pem };
        fs::write(authority.file(), &authority.pem).unwrap();
        authority
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// A certificate for this name, and its key.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// A client certificate and its key, in files.
    fn client(&self) -> (PathBuf, PathBuf) {
        let (cert, key) = self.issue("client");
        let files = (self.dir.path().join("client.pem"), self.dir.path().join("client-key.pem"));
        fs::write(&files.0, cert).unwrap();
        fs::write(&files.1, key).unwrap();
        files
    }

    fn server(&self, name: &str, client_ca: Option<String>) -> NatsServer {
        let (cert, key) = self.issue(name);
        let tls = Some(ServerTls { cert, key, client_ca });
        NatsServer::start_with(&NatsServerOptions { tls, ..NatsServerOptions::default() })
    }
}

fn trusting(server: &NatsServer, authority: &Authority) -> NatsOptions {
    let tls = NatsTls { required: true, ca_file: Some(authority.file()), ..NatsTls::default() };
    NatsOptions { tls, ..options(server) }
}

async fn refusal(options: NatsOptions) -> ConnectError {
    let error = NatsQueue::connect(options).await.unwrap_err();
    assert_eq!((error.code(), error.is_retryable()), ("nats_tls", false), "{error}");
    error
}

#[test]
fn jobs_travel_encrypted_from_a_broker_of_a_trusted_authority() {
    story(async {
        let authority = Authority::new();
        let mut server = authority.server("127.0.0.1", None);
        let queue = NatsQueue::connect(trusting(&server, &authority)).await.unwrap();
        let (worker, job) = make_job(&Fixtures::new());
        queue.publish(&job).await.unwrap();
        let mut jobs = worker_jobs(trusting(&server, &authority), worker).await;
        server.kill();
        server.restart();
        take(&mut jobs, &job).await;
    });
}

#[test]
fn a_broker_of_another_authority_or_name_is_refused() {
    story(async {
        let authority = Authority::new();
        let server = authority.server("127.0.0.1", None);
        refusal(trusting(&server, &Authority::new())).await;
        // The authorities of the system do not vouch for it either.
        refusal(options(&server)).await;
        let misnamed = authority.server("another.example", None);
        refusal(trusting(&misnamed, &authority)).await;
    });
}

#[test]
fn a_broker_without_tls_is_refused_where_it_is_required() {
    story(async {
        let server = NatsServer::start();
        refusal(trusting(&server, &Authority::new())).await;
    });
}

#[test]
fn a_client_certificate_is_shown_where_the_broker_asks_for_one() {
    story(async {
        let authority = Authority::new();
        let server = authority.server("127.0.0.1", Some(authority.pem.clone()));
        let without = trusting(&server, &authority);
        NatsQueue::connect(without.clone()).await.unwrap_err();
        let (cert, key) = authority.client();
        let tls = NatsTls { cert_file: Some(cert), key_file: Some(key), ..without.tls.clone() };
        NatsQueue::connect(NatsOptions { tls, ..without }).await.unwrap();
    });
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    story(async {
        let authority = Authority::new();
        let server = authority.server("127.0.0.1", None);
        let tls = NatsTls { ca_file: Some("/does/not/exist.pem".into()), ..NatsTls::default() };
        let error = NatsQueue::connect(NatsOptions { tls, ..options(&server) }).await.unwrap_err();
        assert_eq!(error.code(), "nats_file_unreadable");
        assert!(error.to_string().contains("/does/not/exist.pem"), "{error}");
    });
}
