//! An installation with an API client.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forgeplane_testkit::installation::{
    Coordinator, Installation, InstallationOptions, Process, Programs, Proxy, Worker, WorkerSpec,
};
use serde_json::{Value, json};

/// Longer than anything takes on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Lost workers are noticed soon.
pub const SOON: &[&str] =
    &["settings.heartbeat_s = 1", "settings.worker_offline_after_s = 3", "settings.unresolved_after_s = 5"];

pub fn programs() -> Programs {
    Programs::of(Path::new(env!("CARGO_BIN_EXE_forgeplane-coordinator")).parent().unwrap())
}

pub fn options(nats: bool, settings: &[&str]) -> InstallationOptions {
    InstallationOptions { nats, sqlite: false, settings: settings.iter().map(|s| (*s).to_owned()).collect() }
}

/// Looks again and again until there is what is waited for; what was found instead is told when it does not come.
pub async fn until<T>(what: &str, look: impl AsyncFn() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(instead) => assert!(Instant::now() < deadline, "{what}: {instead}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The administrator at the HTTP API.
#[derive(Clone)]
pub struct Client {
    token: String,
    http: reqwest::Client,
}

impl Client {
    /// Asks the API at this address. `None`: no answer, or one that says to come back.
    pub async fn try_ask(&self, api: &str, post: Option<(&str, Value)>, path: &str) -> Option<Value> {
        let url = format!("{api}/api/v1{path}");
        let request = match post {
            Some((key, body)) => self.http.post(url).header("idempotency-key", key).json(&body),
            None => self.http.get(url),
        };
        let request = request.bearer_auth(&self.token).timeout(Duration::from_secs(10));
        let answer = request.send().await.ok()?;
        let status = answer.status();
        if status.is_server_error() {
            return None;
        }
        let body: Value = answer.json().await.ok()?;
        assert!(status.is_success(), "{path}: {status} {body}");
        Some(body)
    }
}

/// An installation, its administrator, and a tool.
pub struct Site {
    pub installation: Installation,
    pub admin: PathBuf,
    pub tool: PathBuf,
    pub client: Client,
}

impl Site {
    /// With a tool of this body, and the coordinators named.
    pub fn start(options: InstallationOptions, tool: &str, names: &[&str]) -> (Self, Vec<Coordinator>) {
        let one_at_a_time = options.sqlite;
        let installation = Installation::start(programs(), options);
        let mut coordinators: Vec<_> = names.iter().map(|name| installation.coordinator(name)).collect();
        if one_at_a_time {
            coordinators[0].process.terminate();
        }
        let admin = installation.token(&coordinators[0], "demo", "admin");
        if one_at_a_time {
            coordinators[0].process.start("workers: ");
        }
        let token = std::fs::read_to_string(&admin).unwrap();
        let tool = installation.tool(tool);
        let client = Client { token, http: reqwest::Client::new() };
        (Self { installation, admin, tool, client }, coordinators)
    }

    pub fn worker(&mut self, name: &str, coordinators: &[&Coordinator]) -> Worker {
        let spec = WorkerSpec { name, pool: "default", tool: "terraform", path: &self.tool };
        self.installation.worker(&spec, coordinators, &self.admin)
    }

    pub async fn get(&self, at: &Coordinator, path: &str) -> Value {
        self.client.try_ask(&at.api, None, path).await.expect("the coordinator answers")
    }

    pub async fn post(&self, at: &Coordinator, path: &str, body: Value) -> Value {
        self.client.try_ask(&at.api, Some(("once", body)), path).await.expect("the coordinator answers")
    }

    /// A worker that reaches its coordinator through a network that can be disturbed.
    pub fn worker_behind(&mut self, name: &str, coordinator: &Coordinator, network: &Proxy) -> Worker {
        let spec = WorkerSpec { name, pool: "default", tool: "terraform", path: &self.tool };
        let urls = [format!("https://{}", network.address())];
        self.installation.worker_at(&spec, &urls, coordinator, &self.admin)
    }

    /// A template of the tool with one instance.
    pub fn app(&self, at: &Coordinator) {
        self.template(at, "", &[]);
    }

    /// A template of this source with one instance.
    pub fn template(&self, at: &Coordinator, main: &str, push: &[&str]) {
        let source = self.installation.directory().join("source");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("main.tf"), main).unwrap();
        let source = source.to_str().unwrap();
        let push = [&["template", "push", source, "--tool", "terraform", "--name", "app"], push].concat();
        for args in [&push[..], &["instance", "create", "app", "--template", "app"]] {
            let output = self.installation.cli(at, &self.admin).args(args).output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// Creates a run that only reads, and gives its id.
    pub async fn preview(&self, at: &Coordinator, key: &str) -> String {
        self.create(at, "preview", key).await
    }

    /// Creates a run, and gives its id.
    pub async fn create(&self, at: &Coordinator, operation: &str, key: &str) -> String {
        let body = json!({"instance": "app", "operation": operation});
        let run =
            self.client.try_ask(&at.api, Some((key, body)), "/runs").await.expect("the run is admitted");
        run["id"].as_str().unwrap().to_owned()
    }

    pub async fn run(&self, at: &Coordinator, run: &str) -> Value {
        self.get(at, &format!("/runs/{run}")).await
    }

    /// Waits until something holds of a run.
    pub async fn until_run(&self, at: &Coordinator, run: &str, holds: impl Fn(&Value) -> bool) -> Value {
        until("the run does not come to that", async || {
            let view = self.run(at, run).await;
            if holds(&view) { Ok(view) } else { Err(format!("{view:#}")) }
        })
        .await
    }

    pub async fn until_status(&self, at: &Coordinator, run: &str, status: &str) -> Value {
        self.until_run(at, run, |view| view["run"]["status"] == status).await
    }

    /// Waits until the ledger says this.
    pub async fn until_ledger(&self, text: &str) {
        until(text, async || {
            let ledger = self.installation.ledger();
            if ledger.contains(text) { Ok(()) } else { Err(format!("it is not in the ledger:\n{ledger}")) }
        })
        .await;
    }

    /// Waits until a coordinator answers again.
    pub async fn until_answers(&self, at: &Coordinator) {
        until("the coordinator does not answer", async || {
            self.client.try_ask(&at.api, None, "/runs").await.map(drop).ok_or_else(|| at.process.log())
        })
        .await;
    }

    /// Waits until something holds of the workers.
    pub async fn until_workers(&self, at: &Coordinator, holds: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        until("the workers do not come to that", async || {
            let answer = self.client.try_ask(&at.api, None, "/workers").await;
            let workers = answer.and_then(|page| page["items"].as_array().cloned()).unwrap_or_default();
            if holds(&workers) { Ok(workers) } else { Err(format!("{workers:#?}")) }
        })
        .await
    }

    /// Waits until a process has said this.
    pub async fn until_log(&self, process: &Process, text: &str) {
        until(text, async || {
            let log = process.log();
            if log.contains(text) { Ok(()) } else { Err(format!("it is not in the log:\n{log}")) }
        })
        .await;
    }

    /// Status and text of a probe.
    pub async fn probe(&self, probes: &str, path: &str) -> (u16, String) {
        let answer = self.client.http.get(format!("{probes}{path}")).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

/// A directory that tools may pass through, and look into by name.
pub fn passable() -> tempfile::TempDir {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    tempfile::Builder::new().permissions(mode).tempdir().unwrap()
}

/// A directory that tools may look into, and the file in it that a [`patient_tool`] waits for.
pub fn word() -> (tempfile::TempDir, PathBuf) {
    let dir = passable();
    let go = dir.path().join("go");
    (dir, go)
}

/// A tool that runs until a file appears or it is interrupted; it tells the ledger what becomes of it.
pub fn patient_tool(go: &Path) -> String {
    format!(
        "[ \"$1\" = plan ] || exit 0\ntrap 'echo interrupted $ATTEMPT >> $LEDGER; exit 1' INT\n\
         echo started $ATTEMPT >> $LEDGER\nwhile [ ! -e {} ]; do sleep 0.05; done\necho ended $ATTEMPT >> $LEDGER",
        go.display()
    )
}
