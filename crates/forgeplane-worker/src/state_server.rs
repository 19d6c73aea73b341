//! A worker-local Terraform `http` backend: every document the tool saves becomes a state generation at once.
//!
//! The tool gets address and credentials by environment only, so they are in neither configuration nor plan.
//! A save is answered after the generation is committed; if the coordinator is away, the tool waits. A save
//! goes on when the tool is killed meanwhile: the document may be the only record of what was created.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard, PoisonError};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use forgeplane_core::Refusal;
use forgeplane_core::digest::Digest;
use forgeplane_core::ports::{ClaimRef, ControlError, EntropyExt as _, StateWrite};
use md5::Digest as _;
use serde_json::Value;
use subtle::ConstantTimeEq as _;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{WorkerError, at};
use crate::host::{Host, Service};
use crate::link::Link;
use crate::retry::while_unavailable;
use crate::unsaved::Unsaved;

/// The largest state document, bytes; the coordinator has a limit of its own.
const MAX_BYTES: usize = 512 << 20;
/// The largest lock description, bytes.
const MAX_LOCK_BYTES: usize = 64 * 1024;
const USER: &str = "forgeplane";

/// What became of the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateResult {
    /// The last generation written.
    pub(crate) generation: Option<u64>,
    /// Its document's digest.
    pub(crate) digest: Option<Digest>,
    /// Why a document was refused.
    pub(crate) refused: Option<Refusal>,
    /// The last document the tool saved could not be delivered; it is kept on this worker.
    pub(crate) undelivered: bool,
}

/// A running state server of one attempt.
pub(crate) struct StateServer {
    service: Service,
    password: String,
    shared: Arc<Shared>,
}

struct Shared {
    link: Arc<Link>,
    claim: ClaimRef,
    writable: bool,
    authorization: String,
    /// Saves under way; not bound to the connections they came by.
    saves: TaskTracker,
    /// Ends waiting for the coordinator.
    give_up: CancellationToken,
    /// The newest document that is not stored yet.
    pending: std::sync::Mutex<Option<Bytes>>,
    held: Mutex<Held>,
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Option<Bytes>> {
        // Only ever replaced whole.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A document was stored, or refused (and then kept by the coordinator).
    fn settle(&self, digest: Digest) {
        self.pending().take_if(|newest| Digest::of(newest) == digest);
    }
}

struct Held {
    document: Option<Bytes>,
    generation: u64,
    lock: Option<(String, Bytes)>,
    unlocked: BTreeSet<String>,
    result: StateResult,
}

impl StateServer {
    /// Starts serving the tools of this host.
    pub(crate) async fn start(
        host: &dyn Host,
        link: Arc<Link>,
        claim: ClaimRef,
        generation: u64,
        document: Option<Bytes>,
        writable: bool,
    ) -> Result<Self, WorkerError> {
        let password = URL_SAFE_NO_PAD.encode(host.entropy().bytes::<32>());
        let shared = Arc::new(Shared {
            link,
            claim,
            writable,
            authorization: format!("Basic {}", STANDARD.encode(format!("{USER}:{password}"))),
            saves: TaskTracker::new(),
            give_up: CancellationToken::new(),
            pending: std::sync::Mutex::default(),
            held: Mutex::new(Held {
                document,
                generation,
                lock: None,
                unlocked: BTreeSet::new(),
                result: StateResult::default(),
            }),
        });
        let router = Router::new().fallback(serve).with_state(Arc::clone(&shared));
        let service = host.serve(router).await.map_err(at("the state server's port"))?;
        Ok(Self { service, password, shared })
    }

    /// The environment that makes the tool use this server.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let url = format!("{}/state", self.service.url);
        vec![
            ("TF_HTTP_ADDRESS", url.clone()),
            ("TF_HTTP_LOCK_ADDRESS", url.clone()),
            ("TF_HTTP_UNLOCK_ADDRESS", url),
            ("TF_HTTP_USERNAME", USER.to_owned()),
            ("TF_HTTP_PASSWORD", self.password.clone()),
        ]
    }

    /// Stops serving, brings saves that are under way to their end, and tells what became of the state.
    /// `waiting` ends waiting for the coordinator; the document is then kept on this worker.
    pub(crate) async fn finish(
        self,
        unsaved: &Unsaved,
        waiting: &CancellationToken,
    ) -> Result<StateResult, WorkerError> {
        let Self { shared, service, .. } = self;
        // The tool is gone, so no connection is worth waiting for.
        drop(service);
        shared.saves.close();
        let pending = shared.pending().clone();
        if let Some(document) = pending {
            // On disk before waiting: this worker may end, too.
            unsaved.keep(shared.claim.fence, &document)?;
            tokio::select! {
                biased;
                () = shared.saves.wait() => {}
                () = waiting.cancelled() => {
                    shared.give_up.cancel();
                    shared.saves.wait().await;
                }
            }
        }
        let mut result = shared.held.lock().await.result.clone();
        result.undelivered = shared.pending().is_some();
        if !result.undelivered {
            unsaved.forget(shared.claim.fence)?;
        }
        Ok(result)
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if !authorized(request.headers(), &shared.authorization) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if request.uri().path() != "/state" {
        return StatusCode::NOT_FOUND.into_response();
    }
    match request.method().as_str() {
        "GET" => get(&shared).await,
        "POST" => post(shared, request).await,
        "LOCK" => lock(&shared, request).await,
        "UNLOCK" => unlock(&shared, request).await,
        // The state of an instance is retired by a teardown, not by deleting it.
        "DELETE" => (StatusCode::CONFLICT, "managed state cannot be deleted").into_response(),
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

fn authorized(headers: &HeaderMap, expected: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).map_or(&b""[..], |v| v.as_bytes());
    given.ct_eq(expected.as_bytes()).into()
}

async fn get(shared: &Shared) -> Response {
    match &shared.held.lock().await.document {
        Some(document) => ([(header::CONTENT_TYPE, "application/json")], document.clone()).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn post(shared: Arc<Shared>, request: Request) -> Response {
    let lock_id = query_value(request.uri().query().unwrap_or_default(), "ID");
    let expected_md5 = request.headers().get("content-md5").map(|v| STANDARD.decode(v.as_bytes()));
    let Ok(document) = to_bytes(request.into_body(), MAX_BYTES).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    match expected_md5 {
        Some(Ok(expected)) if expected == md5::Md5::digest(&document).as_slice() => {}
        None => {}
        Some(_) => {
            return (StatusCode::BAD_REQUEST, "the body does not have its Content-MD5").into_response();
        }
    }
    if !shared.writable {
        return (StatusCode::FORBIDDEN, "this run does not write state").into_response();
    }
    // A task of its own: it goes on when the tool and with it the connection is gone.
    let saving = Arc::clone(&shared);
    match shared.saves.spawn(async move { save(&saving, lock_id, document).await }).await {
        Ok(answer) => answer,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn save(shared: &Shared, lock_id: Option<String>, document: Bytes) -> Response {
    // Held over the write: saves of one attempt form a chain.
    let mut held = shared.held.lock().await;
    if let Some((holder, description)) = &held.lock
        && lock_id.as_deref() != Some(holder)
    {
        return (StatusCode::LOCKED, description.clone()).into_response();
    }
    let digest = Digest::of(&document);
    if held.document.as_ref().is_some_and(|current| Digest::of(current) == digest) {
        // The client repeats a save whose answer was lost, or saves what is there already.
        return StatusCode::OK.into_response();
    }
    *shared.pending() = Some(document.clone());
    let write = StateWrite {
        claim: shared.claim,
        expected_generation: held.generation,
        digest,
        document: document.clone(),
    };
    match while_unavailable(shared.link.pause(), "save state", &shared.give_up, || {
        shared.link.put_state(write.clone())
    })
    .await
    {
        Ok(generation) => {
            shared.settle(digest);
            held.generation = generation;
            held.document = Some(document);
            held.result.generation = Some(generation);
            held.result.digest = Some(digest);
            StatusCode::OK.into_response()
        }
        Err(ControlError::Refused(refusal)) => {
            shared.settle(digest);
            let answer = (StatusCode::CONFLICT, refusal.to_string()).into_response();
            held.result.refused.get_or_insert(refusal);
            answer
        }
        Err(ControlError::Unavailable(error)) => {
            (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response()
        }
    }
}

async fn lock(shared: &Shared, request: Request) -> Response {
    let Ok(description) = to_bytes(request.into_body(), MAX_LOCK_BYTES).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let Some(id) = lock_id(&description) else {
        return (StatusCode::BAD_REQUEST, "the lock has no ID").into_response();
    };
    let mut held = shared.held.lock().await;
    match &held.lock {
        Some((holder, theirs)) if *holder != id => (StatusCode::LOCKED, theirs.clone()).into_response(),
        _ => {
            held.lock = Some((id, description));
            StatusCode::OK.into_response()
        }
    }
}

async fn unlock(shared: &Shared, request: Request) -> Response {
    let Ok(description) = to_bytes(request.into_body(), MAX_LOCK_BYTES).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let id = lock_id(&description);
    let mut held = shared.held.lock().await;
    let matches = match (&held.lock, &id) {
        // `force-unlock` of Terraform sends no body.
        (Some(_), None) => true,
        (Some((holder, _)), Some(id)) => holder == id,
        // The client repeats an unlock whose answer was lost.
        (None, Some(id)) => held.unlocked.contains(id),
        (None, None) => false,
    };
    if !matches {
        return StatusCode::CONFLICT.into_response();
    }
    if let Some((holder, _)) = held.lock.take() {
        held.unlocked.insert(holder);
    }
    StatusCode::OK.into_response()
}

fn lock_id(description: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(description).ok()?;
    value.get("ID")?.as_str().filter(|id| !id.is_empty()).map(str::to_owned)
}

fn query_value(query: &str, name: &str) -> Option<String> {
    query
        .split('&')
        .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name).map(|(_, v)| v.to_owned()))
}
