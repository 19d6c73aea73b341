//! The configuration: a TOML file, then `FORGEPLANE_COORDINATOR_…`, then flags; later ones win.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use forgeplane_core::rules::Settings;
use forgeplane_process::{ConfigArgs, Failure, LogConfig, ProbesConfig, Sources};
use forgeplane_queue_nats::NatsOptions;
use forgeplane_store_postgres::PostgresOptions;
use serde::{Deserialize, Serialize};

/// Variables of the environment: `FORGEPLANE_COORDINATOR_STORE__POSTGRES__URL` is `store.postgres.url`.
const PREFIX: &str = "FORGEPLANE_COORDINATOR_";

/// Everything a coordinator can be told.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub store: StoreConfig,
    #[serde(default)]
    pub blobs: Option<BlobsConfig>,
    /// Jobs go to workers through NATS; without it, workers pull them from the coordinators.
    #[serde(default)]
    pub nats: Option<NatsOptions>,
    pub keys: KeysConfig,
    pub api: ApiConfig,
    pub workers: WorkersConfig,
    pub probes: ProbesConfig,
    pub settings: SettingsConfig,
    pub log: LogConfig,
}

/// Where records live.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    pub sqlite: Option<PathBuf>,
    pub postgres: Option<PostgresOptions>,
}

/// Where sealed bytes live; unless told, in the PostgreSQL database.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlobsConfig {
    /// A directory that all coordinators share.
    pub directory: PathBuf,
}

/// Where `sealing.key` and `signing.key` are, the same for all coordinators.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeysConfig {
    pub directory: PathBuf,
}

/// The HTTP API.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiConfig {
    pub listen: SocketAddr,
    /// Serve plain HTTP on another address than loopback, for a proxy in front that encrypts.
    pub unsafe_plaintext: bool,
}

/// The gRPC API for workers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkersConfig {
    pub listen: SocketAddr,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Workers must show a certificate of this authority.
    pub client_ca: Option<PathBuf>,
    pub unsafe_plaintext: bool,
}

/// The figures that rules decide with.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsConfig {
    pub heartbeat_s: u64,
    pub offer_ttl_s: u64,
    pub worker_offline_after_s: u64,
    pub unresolved_after_s: u64,
    pub republish_after_s: u64,
    pub session_ttl_s: u64,
    /// The most jobs any worker runs at once; 0 pauses everything.
    pub worker_max_concurrent_jobs: u32,
    pub unsafe_allow_no_isolation: bool,
}

/// The section is there, so that what is missing is told as one of its fields.
#[derive(Serialize)]
struct StoreDefaults {}

/// What is not told.
#[derive(Serialize)]
struct Defaults {
    store: StoreDefaults,
    keys: KeysConfig,
    api: ApiConfig,
    workers: WorkersConfig,
    probes: ProbesConfig,
    settings: SettingsConfig,
    log: LogConfig,
}

impl Defaults {
    fn new() -> Self {
        let settings = Settings::default();
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Self {
            store: StoreDefaults {},
            keys: KeysConfig { directory: "/etc/forgeplane/keys".into() },
            api: ApiConfig { listen: local(8420), unsafe_plaintext: false },
            workers: WorkersConfig {
                listen: local(8421),
                certificate: None,
                key: None,
                client_ca: None,
                unsafe_plaintext: false,
            },
            probes: ProbesConfig::local(8422),
            settings: SettingsConfig {
                heartbeat_s: settings.heartbeat.as_secs(),
                offer_ttl_s: settings.offer_ttl.as_secs(),
                worker_offline_after_s: settings.worker_offline_after.as_secs(),
                unresolved_after_s: settings.unresolved_after.as_secs(),
                republish_after_s: settings.republish_after.as_secs(),
                session_ttl_s: settings.session_ttl.as_secs(),
                worker_max_concurrent_jobs: settings.worker_max_concurrent_jobs,
                unsafe_allow_no_isolation: settings.unsafe_allow_no_isolation,
            },
            log: LogConfig::default(),
        }
    }
}

impl Config {
    /// What a process was told.
    pub fn sources(args: &ConfigArgs) -> Result<Sources, Failure> {
        Sources::read(PREFIX, &Defaults::new(), args)
    }
}

impl SettingsConfig {
    /// As the rules want them.
    pub fn settings(&self) -> Settings {
        Settings {
            heartbeat: Duration::from_secs(self.heartbeat_s),
            offer_ttl: Duration::from_secs(self.offer_ttl_s),
            worker_offline_after: Duration::from_secs(self.worker_offline_after_s),
            unresolved_after: Duration::from_secs(self.unresolved_after_s),
            republish_after: Duration::from_secs(self.republish_after_s),
            session_ttl: Duration::from_secs(self.session_ttl_s),
            worker_max_concurrent_jobs: self.worker_max_concurrent_jobs,
            unsafe_allow_no_isolation: self.unsafe_allow_no_isolation,
            ..Settings::default()
        }
    }
}
