//! A coordinator from its configuration.

use forgeplane_process::{Failure, read_file, read_secret_file};
use std::path::{Path, PathBuf};

use forgeplane_blobs::ObjectBlobs;
use forgeplane_core::coordinator::{Builder, Coordinator};
use forgeplane_core::ports::StaticKey;
use forgeplane_queue_nats::NatsQueue;
use forgeplane_server::workers::{Certificates, ServerPem, Tls};
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

/// How the worker API is encrypted, and the files that say so.
pub fn tls(config: &WorkersConfig) -> Result<(Tls, Vec<PathBuf>), Failure> {
    match (&config.certificate, &config.key) {
        (Some(certificate), Some(key)) => {
            let certificates = Certificates::new(&pem(config, certificate, key)?)
                .map_err(|e| Failure::new(e.code(), e.to_string()))?;
            let files = [certificate, key].into_iter().chain(&config.client_ca).cloned().collect();
            Ok((Tls::Server(certificates), files))
        }
        (None, None) if config.client_ca.is_none() => {
            Ok((Tls::Plaintext { unsafe_anywhere: config.unsafe_plaintext }, Vec::new()))
        }
        _ => Err(Failure::new(
            "tls_incomplete",
            "`workers.certificate` and `workers.key` are given together, and `workers.client_ca` only with them",
        )),
    }
}

fn pem(config: &WorkersConfig, certificate: &Path, key: &Path) -> Result<ServerPem, Failure> {
    Ok(ServerPem {
        certificate: read_file("workers.certificate", certificate)?,
        key: read_secret_file("workers.key", key)?,
        client_ca: config.client_ca.as_deref().map(|ca| read_file("workers.client_ca", ca)).transpose()?,
    })
}

/// Reads the certificates anew; those that cannot be used are told of, and the former ones are used on.
pub fn renew(certificates: &Certificates, config: &WorkersConfig) {
    let (Some(certificate), Some(key)) = (&config.certificate, &config.key) else { return };
    let renewed = pem(config, certificate, key)
        .map_err(|e| e.to_string())
        .and_then(|pem| certificates.replace(&pem).map_err(|e| e.to_string()));
    match renewed {
        Ok(()) => tracing::info!("new connections of workers are encrypted with the new certificate"),
        Err(error) => tracing::warn!(%error, "the certificate has changed and cannot be used yet"),
    }
}
