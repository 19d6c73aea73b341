//! The engine: load → rule → commit → outbox, and the loops that keep runs moving.
//!
//! A [`Coordinator`] is built from ports and owns no state of its own that matters: everything is in the
//! store, any number of coordinators may work on one store, and each may be killed at any time.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use forgeplane_core::coordinator::Coordinator;
//! use forgeplane_core::memory::{MemoryBlobs, MemoryQueue, MemoryStore};
//! use forgeplane_core::ports::StaticKey;
//!
//! let coordinator = Coordinator::builder()
//!     .store(MemoryStore::default())
//!     .queue(MemoryQueue::default())
//!     .blobs(MemoryBlobs::default())
//!     .keys(StaticKey::new("k1", [7; 32]))
//!     .signing_key([9; 32])
//!     .build()
//!     .await
//!     .unwrap();
//! let project = coordinator.ensure_project(&"default".parse().unwrap()).await.unwrap();
//! assert_eq!(project.name.as_str(), "default");
//! # });
//! ```

mod approvals;
mod attempts;
mod builder;
mod commit;
mod conclude;
mod control;
mod credentials;
mod error;
mod evidence;
mod figures;
mod instances;
mod logs;
mod loops;
mod outbox_queue;
mod resolve;
mod runs;
mod secrets;
mod sessions;
mod signals;
mod state;
mod templates;
mod transact;
mod workers;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ed25519_dalek::SigningKey;
use jiff::Timestamp;

use crate::id::AttemptId;
use crate::model::Caller;
use crate::ports::{
    Clock, Entropy, EntropyExt as _, EventSink, JobQueue, Page, Permission, Policy, Select, Store,
};
use crate::refusal::{Code, Refusal};
use crate::rules::Settings;
use crate::seal::Vault;

pub use attempts::AttemptView;
pub use builder::{Builder, SourceCheck};
pub use control::InProcess;
pub use error::CoordinatorError;
pub use figures::Figures;
pub use instances::{InstanceView, NewInstance};
pub use logs::LogSlice;
pub use loops::Loops;
pub use outbox_queue::OutboxQueue;
pub use runs::{Explanation, NewRun, RunView};
pub use signals::{Listener, Signals};
pub use state::Output;
pub use templates::{PushTemplate, TemplateView};
pub use workers::WorkerView;

use commit::Committer;

/// The result of a coordinator's method.
pub type Result<T> = std::result::Result<T, CoordinatorError>;

/// The coordinator: every command and query of Forgeplane. Cheap to clone.
#[derive(Clone)]
pub struct Coordinator {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    committer: Committer,
    queue: Arc<dyn JobQueue>,
    /// Whether jobs are published to the queue; not if it reads the outbox itself.
    dispatches: bool,
    vault: Vault,
    policy: Arc<dyn Policy>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    signing_key: SigningKey,
    settings: Settings,
    source_check: SourceCheck,
    sinks: Vec<Arc<dyn EventSink>>,
    signals: Signals,
    /// Ends of the logs this coordinator appended to; only to save reads.
    log_ends: Mutex<BTreeMap<AttemptId, u64>>,
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

impl Coordinator {
    /// Starts assembling a coordinator.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The settings it works with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Wake-ups for followers of events and logs.
    #[must_use]
    pub fn signals(&self) -> &Signals {
        &self.inner.signals
    }

    /// The queue it publishes to; an in-process worker subscribes here.
    #[must_use]
    pub fn queue(&self) -> Arc<dyn JobQueue> {
        Arc::clone(&self.inner.queue)
    }

    /// The public key that verifies bundle manifests.
    #[must_use]
    pub fn public_key(&self) -> [u8; 32] {
        self.inner.signing_key.verifying_key().to_bytes()
    }

    /// Now, by the coordinator's clock: what expiry times are counted from.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// Whether the store answers, for readiness probes.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ready(&self) -> Result<()> {
        self.store().list(&Select::Projects, &Page::first(1)).await?;
        Ok(())
    }

    fn store(&self) -> &dyn Store {
        &*self.inner.store
    }

    /// Randomness for one id.
    fn random(&self) -> [u8; 10] {
        self.inner.entropy.bytes()
    }

    /// The one place where a caller's permission is checked.
    fn authorize(&self, caller: &Caller, permission: Permission) -> Result<()> {
        if self.inner.policy.permits(caller, permission) {
            return Ok(());
        }
        Err(Refusal::new(
            Code::Forbidden,
            format!(
                "{} ({}) may not do this: it needs the permission `{}`",
                caller.name,
                caller.role.as_str(),
                permission.as_str()
            ),
        )
        .way_out("ask an administrator of the project for a role that includes it")
        .into())
    }
}
