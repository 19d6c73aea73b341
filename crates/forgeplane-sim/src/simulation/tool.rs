//! A Terraform that changes nothing but the world's ledger: it plans, locks, saves state and can be interrupted.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forgeplane_core::digest::Digest;
use forgeplane_core::id::AttemptId;
use forgeplane_worker::host::{Output, Process};
use forgeplane_worker::sandbox::{CommandSpec, Exit, SandboxError};
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::machine::SimMachine;
use super::world::{Apply, Planted};

/// How much output is held until somebody reads it, bytes.
const PIPE: usize = 64 * 1024;
/// The largest state document, bytes.
const MAX_STATE: usize = 1 << 20;

/// A started command.
pub(super) struct Running {
    interrupted: watch::Sender<bool>,
    killed: watch::Sender<bool>,
    end: watch::Receiver<Option<Exit>>,
    stdout: Option<DuplexStream>,
}

#[async_trait]
impl Process for Running {
    fn stdout(&mut self) -> Option<Output> {
        self.stdout.take().map(|pipe| Box::new(pipe) as Output)
    }

    fn stderr(&mut self) -> Option<Output> {
        None
    }

    fn interrupt(&self) {
        self.interrupted.send_replace(true);
    }

    fn kill(&self) {
        self.killed.send_replace(true);
    }

    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        let end = self.end.wait_for(Option::is_some).await.ok().and_then(|end| *end);
        match end {
            Some(exit) => Ok(exit),
            // The machine died under it.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The command itself.
pub(super) struct Tool {
    machine: SimMachine,
    attempt: Option<AttemptId>,
    args: Vec<String>,
    env: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    out: DuplexStream,
    interrupted: watch::Receiver<bool>,
}

impl Tool {
    /// Starts a command; it is counted from here on, whoever hears of it.
    pub(super) fn start(machine: SimMachine, spec: CommandSpec) -> Running {
        let attempt =
            spec.cwd.components().find_map(|part| part.as_os_str().to_str()?.parse::<AttemptId>().ok());
        let args: Vec<String> = spec.args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        if let Some(attempt) = attempt
            && args[0] == "init"
        {
            machine.world.count(|c| c.starts += 1);
            machine.world.record(attempt, |deeds| deeds.starts += 1);
        }
        let (out, stdout) = tokio::io::duplex(PIPE);
        let (interrupted, killed) = (watch::Sender::new(false), watch::Sender::new(false));
        let (tell, end) = watch::channel(None);
        let life = machine.life.clone();
        let mut kill = killed.subscribe();
        let tool = Self {
            machine,
            attempt,
            args,
            env: spec.env,
            cwd: spec.cwd,
            out,
            interrupted: interrupted.subscribe(),
        };
        let ended = Ended { world: Arc::clone(&tool.machine.world), attempt };
        tokio::spawn(async move {
            let takes_it_along = tool.machine.world.planted != Some(Planted::UndeadTool);
            let exit = tokio::select! {
                biased;
                // The worker's death takes the tool along.
                () = life.over(), if takes_it_along => return drop(ended),
                _ = kill.wait_for(|killed| *killed), if takes_it_along => Exit { code: None, signal: Some(9) },
                code = tool.run() => Exit { code: Some(code), signal: None },
            };
            ended.write(exit.code);
            tell.send_replace(Some(exit));
        });
        Running { interrupted, killed, end, stdout: Some(stdout) }
    }

    async fn run(mut self) -> i32 {
        let take = self.machine.world.fate.millis(400);
        match self.args[0].as_str() {
            "--version" => {
                self.print("Terraform v1.11.4\n").await;
                0
            }
            "init" => {
                self.work(take).await;
                i32::from(self.machine.world.fate.fails(10))
            }
            "plan" => self.plan().await,
            "show" => {
                let text = if self.args.iter().any(|arg| arg == "-json") {
                    r#"{"resource_changes":[{"mode":"managed","change":{"actions":["create"]}}]}"#
                } else {
                    "one resource to create\n"
                };
                self.print(text).await;
                0
            }
            "apply" => self.apply().await,
            other => {
                self.print(&format!("no such command: {other}\n")).await;
                1
            }
        }
    }

    async fn print(&mut self, text: &str) {
        // Nobody reads any more.
        let _ = self.out.write_all(text.as_bytes()).await;
    }

    /// Works for a while; false if it was interrupted.
    async fn work(&mut self, how_long: Duration) -> bool {
        tokio::select! {
            biased;
            _ = self.interrupted.wait_for(|interrupted| *interrupted) => false,
            () = tokio::time::sleep(how_long) => true,
        }
    }

    async fn plan(&mut self) -> i32 {
        let (status, state) = self.http("GET", "", Body::empty()).await;
        let take = self.machine.world.fate.millis(1_500);
        if !(status == StatusCode::OK || status == StatusCode::NO_CONTENT) || !self.work(take).await {
            return 1;
        }
        if self.machine.world.fate.fails(20) {
            self.print("Error: the simulated plan failed\n").await;
            return 1;
        }
        let serial =
            serde_json::from_slice::<Value>(&state).ok().and_then(|s| s["serial"].as_u64()).unwrap_or(0);
        let plan = format!("a plan from serial {serial}, {}", self.machine.world.fate.below(u64::MAX));
        let written = self.option("-out=").is_some_and(|path| std::fs::write(path, plan).is_ok());
        self.print("Plan: 1 to add, 0 to change, 0 to destroy.\n").await;
        if written { 2 } else { 1 }
    }

    async fn apply(&mut self) -> i32 {
        let Some(attempt) = self.attempt else { return 1 };
        let from = self.machine.world.age();
        self.machine
            .world
            .record(attempt, |deeds| deeds.applies.push(Apply { from, until: None, exit: None }));
        let lock =
            json!({"ID": format!("lock-{}", self.machine.world.fate.below(u64::MAX)), "Operation": "apply"});
        if self.http("LOCK", "", lock.to_string().into()).await.0 != StatusCode::OK {
            return 1;
        }
        let (_, before) = self.http("GET", "", Body::empty()).await;
        let mut state: Value = serde_json::from_slice(&before).unwrap_or_else(
            |_| json!({"version": 4, "serial": 0, "lineage": format!("l-{attempt}"), "resources": []}),
        );
        let query = format!("?ID={}", lock["ID"].as_str().unwrap_or_default());
        let mut code = 0;
        for step in 0..=self.machine.world.fate.below(3) {
            let take = self.machine.world.fate.millis(2_500);
            let done = self.work(take).await;
            self.print(&format!("step {step}\n")).await;
            state["serial"] = json!(state["serial"].as_u64().unwrap_or(0) + 1);
            state["resources"] = json!([{"mode": "managed", "type": "thing", "name": format!("{attempt}-{step}"), "instances": [{}]}]);
            if !self.save(attempt, &query, &state).await {
                return 1;
            }
            if !done || self.machine.world.fate.fails(20) {
                code = 1;
                break;
            }
        }
        self.http("UNLOCK", "", lock.to_string().into()).await;
        code
    }

    /// Saves a document; what cannot be saved is left beside the configuration.
    async fn save(&mut self, attempt: AttemptId, query: &str, state: &Value) -> bool {
        let document = state.to_string();
        for _ in 0..3 {
            let (status, _) = self.http("POST", query, document.clone().into()).await;
            if status == StatusCode::OK {
                self.machine.world.record(attempt, |deeds| deeds.saved.push(Digest::of(document.as_bytes())));
                return true;
            }
        }
        // The disk of the workspace is not what is simulated.
        let _ = std::fs::write(self.cwd.join("errored.tfstate"), document);
        false
    }

    fn option(&self, name: &str) -> Option<&Path> {
        self.args.iter().find_map(|arg| arg.strip_prefix(name)).map(Path::new)
    }

    fn variable(&self, name: &str) -> String {
        let value = self.env.iter().find(|(key, _)| key.to_str() == Some(name));
        value.map(|(_, value)| value.to_string_lossy().into_owned()).unwrap_or_default()
    }

    async fn http(&self, method: &str, query: &str, body: Body) -> (StatusCode, Vec<u8>) {
        let address = self.variable("TF_HTTP_ADDRESS");
        let refused = (StatusCode::BAD_GATEWAY, Vec::new());
        let Some(service) = address.strip_suffix("/state").and_then(|url| self.machine.services.at(url))
        else {
            return refused;
        };
        let credentials =
            format!("{}:{}", self.variable("TF_HTTP_USERNAME"), self.variable("TF_HTTP_PASSWORD"));
        let request = Request::builder()
            .method(method)
            .uri(format!("{address}{query}"))
            .header("authorization", format!("Basic {}", STANDARD.encode(credentials)))
            .body(body);
        let Ok(request) = request else { return refused };
        let Ok(response) = service.oneshot(request).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), MAX_STATE).await.unwrap_or_default();
        (status, body.to_vec())
    }
}

/// Writes the end of an `apply` into the ledger, however it ends.
struct Ended {
    world: Arc<super::world::World>,
    attempt: Option<AttemptId>,
}

impl Ended {
    fn write(&self, code: Option<i32>) {
        let Some(attempt) = self.attempt else { return };
        let now = self.world.age();
        self.world.record(attempt, |deeds| {
            if let Some(apply) = deeds.applies.last_mut().filter(|apply| apply.until.is_none()) {
                apply.until = Some(now);
                apply.exit = code;
            }
        });
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.write(None);
    }
}
