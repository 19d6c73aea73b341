//! A house with a coordinator in it: two projects, tokens for every role, templates and instances on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use forgeplane_core::Timestamp;
use forgeplane_core::coordinator::Coordinator;
use forgeplane_core::id::{AttemptId, RunId, WorkerId};
use forgeplane_core::memory::{ManualClock, MemoryBlobs, MemoryQueue, MemoryStore, SeededEntropy};
use forgeplane_core::model::*;
use forgeplane_core::ports::*;
use forgeplane_core::refusal::{Code, Refusal};
use forgeplane_core::rules::Settings;
use forgeplane_server::api;
use secrecy::ExposeSecret as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::worker::FakeWorker;

pub(crate) const SOURCE: &[u8] = b"\x1f\x8b source";
/// The largest source in these tests, bytes.
pub(crate) const MAX_SOURCE: usize = 1 << 20;

/// How the store fails, when it does.
#[derive(Default)]
pub(crate) struct Trouble {
    pub(crate) unavailable: AtomicBool,
    pub(crate) unusable: AtomicBool,
}

/// A store that fails on demand.
struct TroubledStore(MemoryStore, Arc<Trouble>);

impl TroubledStore {
    fn check(&self) -> Result<(), StoreError> {
        if self.1.unavailable.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("connection to db-7.internal refused".into()));
        }
        if self.1.unusable.load(Ordering::SeqCst) {
            return Err(StoreError::Unusable("row 7 of table runs at db-7.internal".into()));
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl Store for TroubledStore {
    async fn commit(&self, batch: Vec<Changeset>) -> Result<Vec<Result<Committed, Conflict>>, StoreError> {
        self.check()?;
        self.0.commit(batch).await
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned<Record>>, StoreError> {
        self.check()?;
        self.0.get(key).await
    }

    async fn find(&self, lookup: &Lookup) -> Result<Option<Versioned<Record>>, StoreError> {
        self.check()?;
        self.0.find(lookup).await
    }

    async fn list(&self, select: &Select, page: &Page) -> Result<Vec<Versioned<Record>>, StoreError> {
        self.check()?;
        self.0.list(select, page).await
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        self.check()?;
        self.0.events(filter, after, limit).await
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.check()?;
        self.0.outbox(limit).await
    }

    async fn outbox_of(&self, worker: WorkerId, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.0.outbox_of(worker, limit).await
    }

    async fn event_head(&self) -> Result<u64, StoreError> {
        self.0.event_head().await
    }

    async fn log(&self, attempt: AttemptId, from: u64, max: usize) -> Result<Vec<LogChunk>, StoreError> {
        self.check()?;
        self.0.log(attempt, from, max).await
    }

    async fn log_end(&self, attempt: AttemptId) -> Result<u64, StoreError> {
        self.check()?;
        self.0.log_end(attempt).await
    }

    async fn allocate_fence(&self) -> Result<Fence, StoreError> {
        self.check()?;
        self.0.allocate_fence().await
    }
}

pub(crate) struct House {
    pub(crate) coordinator: Coordinator,
    pub(crate) router: Router,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) trouble: Arc<Trouble>,
    /// Everything in the project.
    pub(crate) admin: String,
    /// Creates runs.
    pub(crate) operator: String,
    /// Decides approvals.
    pub(crate) approver: String,
    /// Reads.
    pub(crate) viewer: String,
    /// Everything in another project.
    pub(crate) stranger: String,
    names: AtomicU32,
}

impl House {
    pub(crate) async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_second(1_800_000_000).unwrap()));
        let trouble = Arc::new(Trouble::default());
        let coordinator = Coordinator::builder()
            .store(TroubledStore(MemoryStore::default(), Arc::clone(&trouble)))
            .queue(MemoryQueue::default())
            .blobs(MemoryBlobs::default())
            .keys(StaticKey::new("k1", [7; 32]))
            .signing_key([9; 32])
            .clock(Arc::clone(&clock))
            .entropy(SeededEntropy::new(1))
            .source_check(|source| {
                assert!(!source.ends_with(b"panic"), "a check that panics");
                if source.starts_with(&[0x1f, 0x8b]) {
                    return Ok(());
                }
                Err(Refusal::new(Code::InvalidBundle, "the source is not gzip").field("source"))
            })
            .settings(Settings {
                worker_max_concurrent_jobs: 1_000,
                max_source_bytes: MAX_SOURCE,
                max_input_bytes: 10_000,
                ..Settings::default()
            })
            .build()
            .await
            .unwrap();
        let ours = coordinator.ensure_project(&"ours".parse().unwrap()).await.unwrap().id;
        let theirs = coordinator.ensure_project(&"theirs".parse().unwrap()).await.unwrap().id;
        let token = async |project, name: &str, role| {
            let (_, token) =
                coordinator.issue_token(project, &name.parse().unwrap(), role, None).await.unwrap();
            token.expose_secret().to_owned()
        };
        Self {
            admin: token(ours, "ada", Role::Admin).await,
            operator: token(ours, "olga", Role::Operator).await,
            approver: token(ours, "ann", Role::Approver).await,
            viewer: token(ours, "vic", Role::Viewer).await,
            stranger: token(theirs, "sam", Role::Admin).await,
            router: forgeplane_server::router(coordinator.clone()),
            coordinator,
            clock,
            trouble,
            names: AtomicU32::new(0),
        }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, token: &str, path: &str) -> Answer {
        self.send(request(Method::GET, token, path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, token: &str, path: &str, body: Value) -> Answer {
        self.send(json_request(Method::POST, token, path, &body)).await
    }

    /// A POST without a body.
    pub(crate) async fn ask(&self, token: &str, path: &str) -> Answer {
        self.send(request(Method::POST, token, path).body(Body::empty()).unwrap()).await
    }

    pub(crate) fn fresh_name(&self, what: &str) -> String {
        format!("{what}-{}", self.names.fetch_add(1, Ordering::SeqCst))
    }

    pub(crate) async fn push(&self, metadata: Value) -> Answer {
        self.send(push_request(&self.operator, &metadata, SOURCE)).await
    }

    /// A terraform template; `reviewers` must approve what changes infrastructure.
    pub(crate) async fn template(&self, reviewers: u32) -> String {
        let name = self.fresh_name("template");
        let metadata = json!({"name": name, "tool": "terraform", "approval": {"required": reviewers}});
        self.push(metadata).await.expect::<api::TemplateDetail>(201);
        name
    }

    pub(crate) async fn instance_of(&self, template: &str) -> String {
        let name = self.fresh_name("instance");
        let new = json!({"name": name, "template": template});
        self.post(&self.operator, "/api/v1/instances", new).await.expect::<api::Instance>(201);
        name
    }

    /// A terraform instance.
    pub(crate) async fn instance(&self, reviewers: u32) -> String {
        let template = self.template(reviewers).await;
        self.instance_of(&template).await
    }

    pub(crate) async fn run(&self, instance: &str, operation: Value) -> api::Run {
        let mut new = json!({"instance": instance});
        for (key, value) in operation.as_object().unwrap() {
            new[key] = value.clone();
        }
        self.post(&self.operator, "/api/v1/runs", new).await.expect(201)
    }

    pub(crate) async fn run_now(&self, id: RunId) -> api::RunDetail {
        self.get(&self.viewer, &format!("/api/v1/runs/{id}")).await.expect(200)
    }

    /// A worker of the pool `default` that is connected.
    pub(crate) async fn worker(&self) -> FakeWorker {
        FakeWorker::enroll(self).await
    }

    /// A succeeded plan of a fresh instance.
    pub(crate) async fn succeeded_plan(&self, worker: &FakeWorker, reviewers: u32) -> (String, api::Run) {
        let instance = self.instance(reviewers).await;
        let run = self.run(&instance, json!({"operation": "plan"})).await;
        worker.plan(run.id).await;
        (instance, self.run_now(run.id).await.run)
    }
}

pub(crate) fn request(method: Method, token: &str, path: &str) -> axum::http::request::Builder {
    let request = Request::builder().method(method).uri(path);
    if token.is_empty() { request } else { request.header("authorization", format!("Bearer {token}")) }
}

pub(crate) fn json_request(method: Method, token: &str, path: &str, body: &Value) -> Request<Body> {
    request(method, token, path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap()
}

pub(crate) fn push_request(token: &str, metadata: &Value, source: &[u8]) -> Request<Body> {
    let mut form = Vec::new();
    form.extend_from_slice(
        b"--XX\r\nContent-Disposition: form-data; name=\"metadata\"\r\nContent-Type: application/json\r\n\r\n",
    );
    form.extend_from_slice(metadata.to_string().as_bytes());
    form.extend_from_slice(
        b"\r\n--XX\r\nContent-Disposition: form-data; name=\"source\"; filename=\"s.tar.gz\"\r\nContent-Type: application/gzip\r\n\r\n",
    );
    form.extend_from_slice(source);
    form.extend_from_slice(b"\r\n--XX--\r\n");
    request(Method::POST, token, "/api/v1/templates")
        .header("content-type", "multipart/form-data; boundary=XX")
        .body(Body::from(form))
        .unwrap()
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }

    /// The body of an answer with this status.
    #[track_caller]
    pub(crate) fn expect<T: DeserializeOwned>(&self, status: u16) -> T {
        assert_eq!(self.status, status, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The problem, after everything that is true of every problem was checked.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> api::Problem {
        assert_eq!(
            self.header("content-type"),
            "application/problem+json",
            "{} {}",
            self.status,
            self.text()
        );
        let problem: api::Problem = serde_json::from_slice(&self.body).unwrap();
        assert_eq!((self.status.as_u16(), problem.code.as_str()), (status, code), "{}", self.text());
        assert_eq!(problem.status, status);
        assert_eq!(problem.kind, format!("https://forgeplane.dev/errors/{code}"));
        assert!(!problem.title.is_empty() && !problem.detail.is_empty());
        assert_eq!(problem.request_id, self.header("x-request-id"));
        assert_eq!(self.header("x-content-type-options"), "nosniff");
        assert_eq!(self.header("cache-control"), "no-store");
        problem
    }
}

/// A state document with one output and one secret output.
pub(crate) fn state_document(serial: u64) -> Value {
    json!({
        "version": 4,
        "serial": serial,
        "lineage": "8a2f",
        "outputs": {
            "address": {"value": "10.0.0.1", "type": "string"},
            "password": {"value": "hunter2-in-state", "type": "string", "sensitive": true},
        },
        "resources": [],
    })
}
