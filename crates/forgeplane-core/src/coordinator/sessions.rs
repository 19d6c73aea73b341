//! Who a worker is and whether it lives: registration, sessions, keys, heartbeats and the orders that answer them.

use std::collections::BTreeSet;
use std::time::Duration;

use ed25519_dalek::{Signature, VerifyingKey};
use subtle::ConstantTimeEq as _;

use super::credentials::hash;
use super::transact::Step;
use super::{Coordinator, Result};
use crate::evidence::{
    Envelope, EvidenceError, KeyRotation, key_id, public_key_from_hex, registration_message,
};
use crate::id::WorkerId;
use crate::model::*;
use crate::ports::*;
use crate::refusal::{Code, Refusal};
use crate::rules::lifecycle::after;
use crate::rules::{registration, regression, rotation};

/// How long a challenge may be answered.
const CHALLENGE_TTL: Duration = Duration::from_secs(60);
/// How long a worker waits for new orders before it asks again.
const ORDERS_WAIT: Duration = Duration::from_secs(20);
/// What a challenge is sealed for.
const CHALLENGE_CONTEXT: &str = "worker-challenge";

impl Coordinator {
    /// A challenge is the sealed time: any coordinator with the same keys can check it, nobody can make one.
    pub(super) fn issue_challenge(&self) -> Result<Challenge> {
        let sealed =
            self.inner.vault.seal(CHALLENGE_CONTEXT, self.now().as_millisecond().to_string().as_bytes())?;
        Ok(Challenge(hex::encode(sealed)))
    }

    fn check_challenge(&self, challenge: &Challenge) -> Result<()> {
        let issued = hex::decode(&challenge.0)
            .ok()
            .and_then(|sealed| self.inner.vault.open(CHALLENGE_CONTEXT, &sealed).ok())
            .and_then(|text| String::from_utf8(text).ok())
            .and_then(|text| text.parse().ok())
            .and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
        match issued {
            Some(issued) if self.now() <= after(issued, CHALLENGE_TTL) => Ok(()),
            _ => Err(Refusal::new(Code::Unauthenticated, "the registration challenge is not valid any more")
                .way_out("ask for a new challenge")
                .into()),
        }
    }

    pub(super) async fn register_worker(&self, registration: Registration) -> Result<Registered> {
        self.check_challenge(&registration.challenge)?;
        let message = registration_message(
            &registration.challenge.0,
            registration.name.as_str(),
            registration.pool.as_str(),
        );
        VerifyingKey::from_bytes(&registration.public_key)
            .and_then(|key| key.verify_strict(&message, &Signature::from_bytes(&registration.proof)))
            .map_err(|_| {
                Refusal::new(Code::Unauthenticated, "the registration is not signed by the key it names")
            })?;
        let token = self.random_credential("fps");
        let proven = registration::Proven {
            name: registration.name,
            pool: registration.pool,
            capabilities: registration.capabilities,
            max_jobs: registration.max_jobs,
            unsafe_no_isolation: registration.unsafe_no_isolation,
            public_key: hex::encode(registration.public_key),
            key: key_id(&registration.public_key),
            session: hash(&token),
            certificate: registration.certificate,
        };
        let fresh = WorkerId::new(self.now(), self.random());
        let enrollment_hash = registration.enrollment_token.as_ref().map(hash);
        let proven = &proven;
        let worker = self
            .transact(|| async move {
                let key = self.store().get_as::<WorkerKey>(proven.key).await?;
                let known = match &key {
                    Some(key) => Some(self.load::<Worker>("worker", key.worker).await?),
                    None => None,
                };
                let enrollment = match enrollment_hash {
                    Some(hash) => self.store().find_as::<Enrollment>(&Lookup::EnrollmentHash(hash)).await?,
                    None => None,
                };
                let named = self.store().find_as::<Worker>(&Lookup::WorkerNamed(proven.name.clone())).await?;
                let context = registration::Context {
                    known: known.as_ref().zip(key.as_deref()),
                    enrollment: enrollment.as_ref(),
                    named: named.as_deref(),
                    settings: self.settings(),
                };
                let (changes, worker) = registration::register(&context, proven, fresh, self.now())?;
                Ok(Step::Commit(changes, worker))
            })
            .await?;
        Ok(Registered {
            session: Session { worker: worker.id, incarnation: worker.incarnation, token, certificate: None },
            coordinator_key: self.public_key(),
            heartbeat: self.settings().heartbeat,
        })
    }

    /// The worker of a session: checked on every call.
    pub(super) async fn session(&self, session: &Session) -> Result<Versioned<Worker>> {
        let refused = || {
            Refusal::new(Code::Unauthenticated, "the worker session is not valid any more")
                .way_out("register again")
        };
        let worker = self.store().get_as::<Worker>(session.worker).await?.ok_or_else(refused)?;
        let matches: bool = worker.session.as_bytes().ct_eq(hash(&session.token).as_bytes()).into();
        // A stolen credential is worth nothing over another connection than the certificate's owner's.
        let bound = worker.session_certificate.is_none_or(|bound| session.certificate == Some(bound));
        let current = worker.incarnation == session.incarnation && worker.session_expires_at > self.now();
        if !(matches && bound && current) {
            return Err(refused().into());
        }
        if worker.disconnected {
            return Err(Refusal::new(Code::WorkerDisabled, "this worker was disconnected")
                .way_out("enroll it again under another name with a new enrollment token and a new key")
                .into());
        }
        Ok(worker)
    }

    pub(super) async fn take_heartbeat(&self, session: &Session, heartbeat: Heartbeat) -> Result<Orders> {
        let worker = self.session(session).await?;
        let now = self.now();
        let before = self.store().get_as::<WorkerContact>(worker.id).await?;
        let was_connected = before
            .as_ref()
            .is_some_and(|c| crate::rules::capacity::is_connected(Some(c), self.settings(), now));
        let known = before.map_or(Fence::default(), |c| c.newest);
        let missing = self.missing_commits(&worker, known, &heartbeat).await?;
        let marks = missing.is_some();
        let mut changes = missing.unwrap_or_default();
        changes.upsert(WorkerContact {
            newest: known.max(heartbeat.newest),
            worker: worker.id,
            incarnation: worker.incarnation,
            last_seen: now,
            draining: heartbeat.draining,
            short_of: heartbeat.short_of.map(|text| shortened(&text)),
            held: heartbeat
                .holding
                .into_iter()
                .map(|h| Held { fence: h.fence, nonce: h.nonce, at: now })
                .collect(),
        });
        let half = self.settings().session_ttl / 2;
        if !marks && after(now, half) >= worker.session_expires_at {
            let renewed = Worker {
                session_expires_at: after(now, self.settings().session_ttl),
                ..worker.value.clone()
            };
            changes.update(worker.version, renewed);
        }
        // A conflict means that somebody changed the worker; the next heartbeat is soon.
        let _ = self.commit(changes).await?;
        if !was_connected {
            self.inner.signals.schedule.notify_one();
        }
        self.orders_for(&worker).await
    }

    /// The mark on a worker that names an attempt which this store should know and does not; if it is a new one.
    async fn missing_commits(
        &self,
        worker: &Versioned<Worker>,
        known: Fence,
        heartbeat: &Heartbeat,
    ) -> Result<Option<Changeset>> {
        // The newest is mostly one of those held: each is looked for once.
        let fences = heartbeat.holding.iter().map(|h| h.fence).chain([heartbeat.newest]);
        let news: BTreeSet<Fence> = fences.filter(|fence| *fence > known).collect();
        let mut named = Vec::with_capacity(news.len());
        for fence in news {
            let attempt = self.store().find_as::<Attempt>(&Lookup::AttemptFence(fence)).await?;
            named.push((fence, attempt.map(|a| a.value)));
        }
        let Some(fence) = regression::unknown(worker.id, known, &named) else { return Ok(None) };
        let Some(changes) = regression::mark(worker, fence, self.now()) else { return Ok(None) };
        tracing::error!(
            worker = %worker.name, %fence,
            "a worker holds an attempt that the store does not know: the store has lost commits; nothing is scheduled until an administrator accepts the loss"
        );
        metrics::counter!("forgeplane_store_commits_lost_total").increment(1);
        Ok(Some(changes))
    }

    async fn orders_for(&self, worker: &Worker) -> Result<Orders> {
        let open = self.store().list_as::<Attempt>(&Select::OpenAttemptsOf(worker.id), &Page::all()).await?;
        let stops = open
            .iter()
            .filter(|a| a.claim.is_some())
            .filter_map(|a| Some(StopOrder { fence: a.fence, cause: a.stop? }))
            .collect();
        Ok(Orders { stops, drain: worker.draining, rotate_key: worker.rotate_key.then_some(worker.key) })
    }

    pub(super) async fn take_rotation(&self, session: &Session, envelope: &Envelope) -> Result<()> {
        let worker = self.session(session).await?;
        let said: KeyRotation = envelope.peek()?;
        if said.worker != worker.id {
            return Err(Refusal::new(Code::InvalidEvidence, "the rotation is of another worker").into());
        }
        let old = self.load::<WorkerKey>("worker key", said.old_key).await?;
        let [old_public, new_public] = [&old.public_key, &said.new_key].map(|key| public_key_from_hex(key));
        let unreadable = |e: EvidenceError| Refusal::new(Code::InvalidEvidence, e.to_string());
        let (old_public, new_public) = (old_public.map_err(unreadable)?, new_public.map_err(unreadable)?);
        let said: KeyRotation = envelope.verify_all(&[old_public, new_public])?;
        let proven = rotation::Proven {
            old_key: said.old_key,
            new_key: key_id(&new_public),
            public_key: said.new_key,
        };
        let proven = &proven;
        self.transact(|| async move {
            let worker = self.session(session).await?;
            let old = self.load::<WorkerKey>("worker key", proven.old_key).await?;
            let new = self.store().get_as::<WorkerKey>(proven.new_key).await?;
            match rotation::rotate(&worker, &old, new.as_deref(), proven, self.now())? {
                rotation::Decision::Again => Ok(Step::Done(())),
                rotation::Decision::Rotate(changes) => Ok(Step::Commit(changes, ())),
            }
        })
        .await
    }

    pub(super) async fn wait_for_orders(&self, session: &Session, known: &Orders) -> Result<Orders> {
        let deadline = tokio::time::Instant::now() + ORDERS_WAIT;
        let mut events = self.inner.signals.events();
        loop {
            let worker = self.session(session).await?;
            let orders = self.orders_for(&worker).await?;
            if orders != *known {
                return Ok(orders);
            }
            match tokio::time::timeout_at(deadline, events.changed()).await {
                Ok(()) => {}
                _ => return Ok(orders),
            }
        }
    }
}

/// What a worker says of itself is shown to people, and is not to be longer than a line.
fn shortened(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(200).collect()
}
