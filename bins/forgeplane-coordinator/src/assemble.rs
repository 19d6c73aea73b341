//! A coordinator from its configuration.

use std::path::Path;

use forgeplane_blobs::ObjectBlobs;
use forgeplane_core::coordinator::{Builder, Coordinator};
use forgeplane_core::ports::StaticKey;
use forgeplane_process::{Failure, follow_files, read_file, read_secret_file};
use forgeplane_queue_nats::NatsQueue;
use forgeplane_server::workers::{Certificates, CertificatesError, ServerPem, Tls};
use forgeplane_store_postgres::PostgresStore;
use forgeplane_store_sqlite::SqliteStore;
use forgeplane_worker::unpack;

use crate::config::{Config, WorkersConfig};
use crate::keys::Keys;

/// Opens everything the configuration names and builds the coordinator.
pub async fn coordinator(config: &Config) -> Result<Coordinator, Failure> {
    let keys = Keys::read(&config.keys.directory)?;
    let builder = Coordinator::builder()
        .keys(StaticKey::new("k1", keys.sealing))
        .signing_key(keys.signing)
        .settings(config.settings.settings())
        .source_check(unpack::admit);
    let builder = with_queue(with_store(builder, config).await?, config).await?;
    builder.build().await.map_err(|e| Failure::new("coordinator_incomplete", e.to_string()))
}

async fn with_store(builder: Builder, config: &Config) -> Result<Builder, Failure> {
    let directory = config.blobs.as_ref().map(|blobs| blobs.directory.as_path());
    match (&config.store.sqlite, &config.store.postgres) {
        (None, Some(options)) => {
            let store =
                PostgresStore::open(options).await.map_err(|e| Failure::new(e.code(), e.to_string()))?;
            let builder = match directory {
                Some(directory) => builder.blobs(local(directory)?),
                None => builder.blobs(store.blobs()),
            };
            Ok(builder.clock(store.clock()).store(store))
        }
        (Some(path), None) => {
            let store = SqliteStore::open(path).map_err(|e| Failure::new(e.code(), e.to_string()))?;
            let beside = path.with_extension("blobs");
            Ok(builder.blobs(local(directory.unwrap_or(&beside))?).store(store))
        }
        (Some(_), Some(_)) => Err(Failure::new(
            "store_ambiguous",
            "both `store.sqlite` and `store.postgres` are given; records live in one place",
        )),
        (None, None) => Err(Failure::new("store_missing", "no store is given")
            .way_out("set `store.postgres.url`, or `store.sqlite` for a single coordinator")),
    }
}

fn local(directory: &Path) -> Result<ObjectBlobs, Failure> {
    ObjectBlobs::local(directory).map_err(|e| Failure::new("blobs_unavailable", e.to_string()))
}

async fn with_queue(builder: Builder, config: &Config) -> Result<Builder, Failure> {
    match &config.nats {
        None => Ok(builder.outbox_queue()),
        Some(options) => {
            let queue = NatsQueue::connect(options.clone())
                .await
                .map_err(|e| Failure::new(e.code(), e.to_string()))?;
            Ok(builder.queue(queue))
        }
    }
}

/// How the worker API is encrypted.
pub fn tls(config: &WorkersConfig) -> Result<Tls, Failure> {
    match pem(config)? {
        Some(pem) => Ok(Tls::Server(Certificates::new(&pem).map_err(|e| unusable(&e))?)),
        None => Ok(Tls::Plaintext { unsafe_anywhere: config.unsafe_plaintext }),
    }
}

/// Reads certificates anew when their files have changed; those that cannot be used are told of, and the former ones are
/// used on.
pub async fn renew(certificates: Certificates, config: WorkersConfig) {
    let files =
        [&config.certificate, &config.key, &config.client_ca].into_iter().flatten().cloned().collect();
    let renewed = || match pem(&config)? {
        Some(pem) => certificates.replace(&pem).map_err(|e| unusable(&e)),
        None => Ok(()),
    };
    let changed = || match renewed() {
        Ok(()) => tracing::info!("new connections of workers are encrypted with the new certificate"),
        Err(error) => tracing::warn!(%error, "the certificate has changed and cannot be used yet"),
    };
    follow_files(files, changed).await;
}

/// What is in the files; `None` if none are named.
fn pem(config: &WorkersConfig) -> Result<Option<ServerPem>, Failure> {
    match (&config.certificate, &config.key) {
        (Some(certificate), Some(key)) => Ok(Some(ServerPem {
            certificate: read_file("workers.certificate", certificate)?,
            key: read_secret_file("workers.key", key)?,
            client_ca: config
                .client_ca
                .as_deref()
                .map(|ca| read_file("workers.client_ca", ca))
                .transpose()?,
        })),
        (None, None) if config.client_ca.is_none() => Ok(None),
        _ => Err(Failure::new(
            "tls_incomplete",
            "`workers.certificate` and `workers.key` are given together, and `workers.client_ca` only with them",
        )),
    }
}

fn unusable(error: &CertificatesError) -> Failure {
    Failure::new(error.code(), error.to_string())
}
