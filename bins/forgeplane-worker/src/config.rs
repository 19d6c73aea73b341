//! The configuration: a TOML file, then `FORGEPLANE_WORKER_…`, then flags; later ones win.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forgeplane_core::model::{Name, Tool, UnknownTool};
use forgeplane_process::{
    ConfigArgs, Failure, LogConfig, ProbesConfig, Sources, read_file, read_secret_file,
};
use forgeplane_proto::client::ConnectOptions;
use forgeplane_queue_nats::NatsOptions;
use forgeplane_worker::executor::TerraformExecutor;
use forgeplane_worker::sandbox::Isolation;
use forgeplane_worker::{Tools, WorkerConfig};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

/// Variables of the environment: `FORGEPLANE_WORKER_COORDINATOR__CA` is `coordinator.ca`.
const PREFIX: &str = "FORGEPLANE_WORKER_";

/// Everything a worker can be told.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub name: Name,
    pub pool_name: Name,
    pub coordinator: CoordinatorConfig,
    /// Jobs come through NATS; without it they are pulled from the coordinator.
    #[serde(default)]
    pub nats: Option<NatsOptions>,
    /// Needed for the first registration; or a file that holds it.
    #[serde(default)]
    pub enrollment_token: Option<SecretString>,
    #[serde(default)]
    pub enrollment_token_file: Option<PathBuf>,
    /// Keys and journal; must survive restarts.
    pub state_dir: PathBuf,
    /// Workspaces; every parent must be passable for the tools' user id.
    pub workspace_root: PathBuf,
    /// The user id that tools run as.
    #[serde(default)]
    pub iac_uid: Option<u32>,
    /// Their group id; the user id unless set.
    #[serde(default)]
    pub iac_gid: Option<u32>,
    /// The otherwise unused user id that ends their processes; the one after `iac_uid` unless set.
    #[serde(default)]
    pub reaper_uid: Option<u32>,
    /// Run tools without isolation; only for local development.
    pub unsafe_no_isolation: bool,
    /// Tools by label; whatever is in `PATH` unless set.
    #[serde(default)]
    pub tools: BTreeMap<String, PathBuf>,
    /// Where Terraform and OpenTofu find providers, and nowhere else; the registries unless set.
    #[serde(default)]
    pub provider_mirror: Option<PathBuf>,
    /// After SIGTERM, how long a running tool may go on before it is interrupted, seconds.
    pub drain_timeout_s: u64,
    /// With less room than this on the disk of workspaces or state nothing new is taken, MiB.
    pub min_free_mib: u64,
    pub probes: ProbesConfig,
    pub log: LogConfig,
}

/// Where the coordinators are.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinatorConfig {
    /// Their addresses, `https://host:port`.
    pub urls: Vec<String>,
    /// The authority that signed their certificates, PEM; the system's unless set.
    pub ca: Option<PathBuf>,
    /// This worker's own certificate and key, PEM.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// The name in their certificates, if it is not the host of the address.
    pub server_name: Option<String>,
    pub unsafe_plaintext: bool,
}

/// What is not told.
#[derive(Serialize)]
struct Defaults {
    pool_name: &'static str,
    coordinator: CoordinatorConfig,
    state_dir: &'static str,
    workspace_root: &'static str,
    unsafe_no_isolation: bool,
    drain_timeout_s: u64,
    min_free_mib: u64,
    probes: ProbesConfig,
    log: LogConfig,
}

fn invalid(error: impl ToString) -> Failure {
    Failure::new("config_invalid", error.to_string())
}

/// A secret that is the only text of its file.
fn read_secret(setting: &str, path: &Path) -> Result<SecretString, Failure> {
    Ok(SecretString::from(read_secret_file(setting, path)?.expose_secret().trim()))
}

impl Config {
    /// What a process was told.
    pub fn sources(args: &ConfigArgs) -> Result<Sources, Failure> {
        let defaults = Defaults {
            pool_name: "default",
            coordinator: CoordinatorConfig::default(),
            state_dir: "/var/lib/forgeplane/worker",
            workspace_root: "/var/lib/forgeplane/workspaces",
            unsafe_no_isolation: false,
            drain_timeout_s: 300,
            min_free_mib: 256,
            probes: ProbesConfig::local(8423),
            log: LogConfig::default(),
        };
        Sources::read(PREFIX, &defaults, args)
    }

    /// How to reach the coordinators.
    pub fn connect(&self) -> Result<ConnectOptions, Failure> {
        let it = &self.coordinator;
        let identity = match (&it.certificate, &it.key) {
            (Some(certificate), Some(key)) => Some((
                read_file("coordinator.certificate", certificate)?,
                read_secret("coordinator.key", key)?,
            )),
            (None, None) => None,
            _ => {
                return Err(Failure::new(
                    "tls_incomplete",
                    "`coordinator.certificate` and `coordinator.key` are given together",
                ));
            }
        };
        Ok(ConnectOptions {
            urls: it.urls.clone(),
            ca: it.ca.as_deref().map(|ca| read_file("coordinator.ca", ca)).transpose()?,
            identity,
            server_name: it.server_name.clone(),
            unsafe_plaintext: it.unsafe_plaintext,
        })
    }

    /// What the worker itself needs.
    pub fn worker(&self) -> Result<WorkerConfig, Failure> {
        let mut worker = WorkerConfig::new(
            self.name.clone(),
            self.pool_name.clone(),
            self.state_dir.clone(),
            self.workspace_root.clone(),
            self.isolation()?,
        );
        worker.min_free_bytes = self.min_free_mib.saturating_mul(1 << 20);
        worker.enrollment_token = match (&self.enrollment_token, &self.enrollment_token_file) {
            (Some(_), Some(_)) => {
                return Err(Failure::new(
                    "config_ambiguous",
                    "`enrollment_token` and `enrollment_token_file` are both given",
                ));
            }
            (token @ Some(_), None) => token.clone(),
            // Its file may be gone once the worker has enrolled.
            (None, Some(file)) if file.exists() => Some(read_secret("enrollment_token_file", file)?),
            (None, _) => None,
        };
        if !self.tools.is_empty() {
            let tools = self.tools.iter().map(|(label, path)| {
                let tool: Tool =
                    label.parse().map_err(|e: UnknownTool| invalid(format!("`tools.{label}`: {e}")))?;
                Ok((tool, path.clone()))
            });
            worker.tools = Tools::Explicit(tools.collect::<Result<_, Failure>>()?);
        }
        Ok(worker)
    }

    /// The executors of Terraform and OpenTofu.
    pub fn terraform(&self) -> Result<[TerraformExecutor; 2], Failure> {
        let executors = [TerraformExecutor::terraform(), TerraformExecutor::tofu()];
        let Some(mirror) = &self.provider_mirror else { return Ok(executors) };
        let [terraform, tofu] = executors.map(|it| it.provider_mirror(mirror));
        let refused = |e: std::io::Error| invalid(format!("`provider_mirror`: {e}"));
        Ok([terraform.map_err(refused)?, tofu.map_err(refused)?])
    }

    fn isolation(&self) -> Result<Isolation, Failure> {
        match (self.unsafe_no_isolation, self.iac_uid) {
            (true, None) => Ok(Isolation::UnsafeNone),
            (true, Some(_)) => {
                Err(Failure::new("config_ambiguous", "`unsafe_no_isolation` and `iac_uid` are both given"))
            }
            (false, None) => Err(Failure::new("iac_uid_missing", "no user id for tools is given").way_out(
                "set `iac_uid` (FORGEPLANE_WORKER_IAC_UID) to a user id that nothing else uses on this host",
            )),
            (false, Some(uid)) => {
                let reaper_uid = match self.reaper_uid {
                    Some(reaper) => reaper,
                    None => uid.checked_add(1).ok_or_else(|| invalid("`iac_uid` is too large"))?,
                };
                Ok(Isolation::Uid { uid, gid: self.iac_gid.unwrap_or(uid), reaper_uid })
            }
        }
    }
}
