//! Assembling a coordinator.

use std::sync::{Arc, Mutex};

use ed25519_dalek::SigningKey;
use secrecy::{ExposeSecret as _, SecretBox};

use super::commit::Committer;
use super::outbox_queue::OutboxQueue;
use super::signals::Signals;
use super::{Coordinator, CoordinatorError, Inner, Result};
use crate::ports::{
    BlobStore, Clock, DefaultPolicy, Entropy, EventSink, JobQueue, KeyProvider, Policy, Store, SystemClock,
    SystemEntropy,
};
use crate::refusal::{Code, Refusal};
use crate::rules::Settings;
use crate::seal::Vault;

/// Checks a source bundle before it is stored.
pub type SourceCheck = Arc<dyn Fn(&[u8]) -> std::result::Result<(), Refusal> + Send + Sync>;

/// Assembles a [`Coordinator`] from ports. Store, queue, blob store, sealing keys and signing key have no
/// default: what runs in production is chosen, not assumed.
#[derive(Default)]
pub struct Builder {
    store: Option<Arc<dyn Store>>,
    queue: Option<Arc<dyn JobQueue>>,
    outbox_queue: bool,
    blobs: Option<Arc<dyn BlobStore>>,
    keys: Option<Arc<dyn KeyProvider>>,
    signing_key: Option<SecretBox<[u8; 32]>>,
    policy: Option<Arc<dyn Policy>>,
    clock: Option<Arc<dyn Clock>>,
    entropy: Option<Arc<dyn Entropy>>,
    settings: Settings,
    source_check: Option<SourceCheck>,
    sinks: Vec<Arc<dyn EventSink>>,
}

impl Builder {
    /// Where records live.
    #[must_use]
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// How workers learn of jobs.
    #[must_use]
    pub fn queue(mut self, queue: impl JobQueue) -> Self {
        self.queue = Some(Arc::new(queue));
        self
    }

    /// Workers get their jobs from the store's outbox itself: an [`OutboxQueue`], for coordinators without a broker.
    /// Any coordinator on the store can then serve any worker.
    #[must_use]
    pub const fn outbox_queue(mut self) -> Self {
        self.outbox_queue = true;
        self
    }

    /// Where sealed bytes live.
    #[must_use]
    pub fn blobs(mut self, blobs: impl BlobStore) -> Self {
        self.blobs = Some(Arc::new(blobs));
        self
    }

    /// Where sealing keys come from.
    #[must_use]
    pub fn keys(mut self, keys: impl KeyProvider) -> Self {
        self.keys = Some(Arc::new(keys));
        self
    }

    /// The Ed25519 seed that signs bundle manifests; the same on every replica.
    #[must_use]
    pub fn signing_key(mut self, seed: [u8; 32]) -> Self {
        self.signing_key = Some(SecretBox::new(Box::new(seed)));
        self
    }

    /// Who may do what and what needs approval; [`DefaultPolicy`] unless set.
    #[must_use]
    pub fn policy(mut self, policy: impl Policy) -> Self {
        self.policy = Some(Arc::new(policy));
        self
    }

    /// Where time comes from; the machine's clock unless set.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Where randomness comes from; the operating system unless set.
    #[must_use]
    pub fn entropy(mut self, entropy: impl Entropy) -> Self {
        self.entropy = Some(Arc::new(entropy));
        self
    }

    /// System settings.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Checks source bundles before they are stored; unless set, only that they are gzip.
    #[must_use]
    pub fn source_check(
        mut self,
        check: impl Fn(&[u8]) -> std::result::Result<(), Refusal> + Send + Sync + 'static,
    ) -> Self {
        self.source_check = Some(Arc::new(check));
        self
    }

    /// Adds a receiver of every event.
    #[must_use]
    pub fn event_sink(mut self, sink: impl EventSink) -> Self {
        self.sinks.push(Arc::new(sink));
        self
    }

    /// Builds the coordinator and starts its group-commit actor. Nothing else runs until
    /// [`Coordinator::start`] or a step of [`super::Loops`].
    ///
    /// # Errors
    /// [`CoordinatorError::Assembly`] naming what is missing.
    pub async fn build(self) -> Result<Coordinator> {
        let missing = |what: &str| CoordinatorError::Assembly(format!("no {what} was given").into());
        let store = self.store.ok_or_else(|| missing("store"))?;
        let entropy = self.entropy.unwrap_or_else(|| Arc::new(SystemEntropy));
        let vault = Vault::new(
            self.blobs.ok_or_else(|| missing("blob store"))?,
            self.keys.ok_or_else(|| missing("sealing key provider"))?,
            Arc::clone(&entropy),
        );
        let seed = self.signing_key.ok_or_else(|| missing("signing key"))?;
        let signals = Signals::default();
        let queue: Option<Arc<dyn JobQueue>> = if self.outbox_queue {
            Some(Arc::new(OutboxQueue::of_coordinator(Arc::clone(&store), signals.clone())))
        } else {
            self.queue
        };
        Ok(Coordinator {
            inner: Arc::new(Inner {
                committer: Committer::start(Arc::clone(&store), signals.clone()),
                store,
                queue: queue.ok_or_else(|| missing("job queue"))?,
                dispatches: !self.outbox_queue,
                vault,
                policy: self.policy.unwrap_or_else(|| Arc::new(DefaultPolicy)),
                clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock)),
                entropy,
                signing_key: SigningKey::from_bytes(seed.expose_secret()),
                settings: self.settings,
                source_check: self.source_check.unwrap_or_else(|| Arc::new(is_gzip)),
                sinks: self.sinks,
                signals,
                log_ends: Mutex::default(),
            }),
        })
    }
}

fn is_gzip(source: &[u8]) -> std::result::Result<(), Refusal> {
    if source.starts_with(&[0x1f, 0x8b]) {
        Ok(())
    } else {
        Err(Refusal::new(Code::InvalidBundle, "the source is not a tar.gz archive").field("source"))
    }
}
