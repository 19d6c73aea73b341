//! The worker's side of the coordinator, and its in-process adapter.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use ed25519_dalek::{Signature, VerifyingKey};
use secrecy::SecretString;
use subtle::ConstantTimeEq as _;

use super::credentials::hash;
use super::transact::Step;
use super::{Coordinator, CoordinatorError, Result};
use crate::digest::Digest;
use crate::evidence::{
    BundleManifest, Envelope, EvidenceError, KeyRotation, StateRef, key_id, public_key_from_hex,
    registration_message,
};
use crate::failpoint::{self, Failpoint};
use crate::id::{AttemptId, WorkerId};
use crate::model::*;
use crate::ports::*;
use crate::refusal::{Code, Refusal};
use crate::rules::lifecycle::after;
use crate::rules::{claim, registration, rotation, state};
use crate::seal::VaultError;

/// How long a challenge may be answered.
const CHALLENGE_TTL: Duration = Duration::from_secs(60);
/// How long a worker waits for new orders before it asks again.
const ORDERS_WAIT: Duration = Duration::from_secs(20);
/// What a challenge is sealed for.
const CHALLENGE_CONTEXT: &str = "worker-challenge";

/// A [`ControlPlane`] that calls the coordinator in the same process.
#[derive(Debug, Clone)]
pub struct InProcess(Coordinator);

impl Coordinator {
    /// The control plane for workers in this process.
    #[must_use]
    pub fn in_process(&self) -> InProcess {
        InProcess(self.clone())
    }

    /// A challenge is the sealed time: any coordinator with the same keys can check it, nobody can make one.
    fn issue_challenge(&self) -> Result<Challenge> {
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

    async fn register_worker(&self, registration: Registration) -> Result<Registered> {
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

    async fn take_heartbeat(&self, session: &Session, heartbeat: Heartbeat) -> Result<Orders> {
        let worker = self.session(session).await?;
        let now = self.now();
        let was_connected = self
            .store()
            .get_as::<WorkerContact>(worker.id)
            .await?
            .is_some_and(|c| crate::rules::capacity::is_connected(Some(&c), self.settings(), now));
        let mut changes = Changeset::new();
        changes.upsert(WorkerContact {
            worker: worker.id,
            incarnation: worker.incarnation,
            last_seen: now,
            draining: heartbeat.draining,
            held: heartbeat
                .holding
                .into_iter()
                .map(|h| Held { fence: h.fence, nonce: h.nonce, at: now })
                .collect(),
        });
        let half = self.settings().session_ttl / 2;
        if after(now, half) >= worker.session_expires_at {
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

    async fn orders_for(&self, worker: &Worker) -> Result<Orders> {
        let open = self.store().list_as::<Attempt>(&Select::OpenAttemptsOf(worker.id), &Page::all()).await?;
        let stops = open
            .iter()
            .filter(|a| a.claim.is_some())
            .filter_map(|a| Some(StopOrder { fence: a.fence, cause: a.stop? }))
            .collect();
        Ok(Orders { stops, drain: worker.draining, rotate_key: worker.rotate_key.then_some(worker.key) })
    }

    async fn take_rotation(&self, session: &Session, envelope: &Envelope) -> Result<()> {
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

    async fn wait_for_orders(&self, session: &Session, known: &Orders) -> Result<Orders> {
        let deadline = tokio::time::Instant::now() + ORDERS_WAIT;
        let mut events = self.inner.signals.events();
        loop {
            let worker = self.session(session).await?;
            let orders = self.orders_for(&worker).await?;
            if orders != *known {
                return Ok(orders);
            }
            match tokio::time::timeout_at(deadline, events.changed()).await {
                Ok(Ok(())) => {}
                _ => return Ok(orders),
            }
        }
    }

    /// The attempt, leased to the session's worker under this fence.
    async fn own_attempt(&self, worker: &Worker, of: AttemptRef) -> Result<Versioned<Attempt>> {
        let attempt = self.load::<Attempt>("attempt", of.attempt).await?;
        claim::own(&attempt, worker.id, of.fence)?;
        Ok(attempt)
    }

    async fn make_bundle(&self, session: &Session, of: AttemptRef) -> Result<Bundle> {
        let worker = self.session(session).await?;
        let attempt = self.own_attempt(&worker, of).await?;
        if !attempt.is_open() {
            return Err(Refusal::new(Code::AttemptClosed, format!("attempt {} is closed", attempt.id)).into());
        }
        match self.open_bundle(&attempt).await.map_err(never_to_be_had) {
            Err(CoordinatorError::Refused(refusal)) if attempt.state == AttemptState::Offered => {
                // Offered to whomever, it could never start.
                self.fail_to_start(attempt.id, &refusal).await?;
                Err(refusal.into())
            }
            other => other,
        }
    }

    /// Ends the run of an offered attempt that cannot start.
    async fn fail_to_start(&self, attempt: AttemptId, refusal: &Refusal) -> Result<()> {
        self.transact(|| async move {
            let attempt = self.load::<Attempt>("attempt", attempt).await?;
            if attempt.state != AttemptState::Offered {
                return Ok(Step::Done(()));
            }
            let run = self.load::<Run>("run", attempt.run).await?;
            Ok(Step::Commit(claim::fail_to_start(&attempt, &run, refusal, self.now())?, ()))
        })
        .await
    }

    async fn open_bundle(&self, attempt: &Attempt) -> Result<Bundle> {
        let snapshot = self.load::<Snapshot>("snapshot", attempt.run).await?;
        let (manifest, envelope) = self.manifest(attempt, &snapshot).await?;
        let content = |area: &'static str, digest: Option<Digest>| async move {
            match digest {
                Some(digest) => self.content(area, digest).await.map(Some),
                None => Ok(None),
            }
        };
        Ok(Bundle {
            manifest: envelope,
            snapshot: snapshot.to_bytes().into(),
            source: self.content("source", snapshot.source).await?,
            state: content("state", manifest.state.and_then(|s| s.digest)).await?,
            plan: content("artifact", manifest.plan).await?,
            lock_file: content("artifact", manifest.lock_file).await?,
        })
    }

    /// The signed manifest of an attempt; the same every time it is made.
    pub(super) async fn manifest(
        &self,
        attempt: &Attempt,
        snapshot: &Snapshot,
    ) -> Result<(BundleManifest, Envelope)> {
        let state = match attempt.state_object {
            None => None,
            Some(object) => {
                let generation = attempt.base_generation;
                let stored = self.store().get_as::<StateGeneration>(format!("{object}/{generation}")).await?;
                Some(StateRef { object, generation, digest: stored.map(|g| g.digest) })
            }
        };
        let lock_file = match &snapshot.plan {
            Some(plan) => self.store().get_as::<PlanArtifact>(plan.run).await?.and_then(|p| p.lock_file),
            None => None,
        };
        let manifest = BundleManifest {
            project: attempt.project,
            run: attempt.run,
            attempt: attempt.id,
            number: attempt.number,
            fence: attempt.fence,
            worker: attempt.worker,
            snapshot: attempt.snapshot,
            source: snapshot.source,
            state,
            plan: attempt.plan,
            lock_file,
        };
        let envelope = Envelope::sign(&manifest, &self.inner.signing_key)?;
        Ok((manifest, envelope))
    }

    async fn take_claim(&self, session: &Session, request: ClaimRequest) -> Result<ClaimGrant> {
        let granted = self
            .transact(|| async move {
                let worker = self.session(session).await?;
                let attempt = self.own_attempt(&worker, request.attempt).await?;
                let run = self.load::<Run>("run", attempt.run).await?;
                let snapshot = self.load::<Snapshot>("snapshot", attempt.run).await?;
                let state = self.state_of(attempt.state_object).await?;
                let approval = match run.approval {
                    Some(id) => self.store().get_as::<Approval>(id).await?,
                    None => None,
                };
                let context = claim::Context {
                    worker: &worker,
                    attempt: &attempt,
                    run: &run,
                    snapshot: &snapshot,
                    state: state.as_ref(),
                    approval: approval.as_deref(),
                };
                let (changes, again) = match claim::claim(&context, &request, self.now())? {
                    claim::Decision::Again => (Changeset::new(), true),
                    claim::Decision::Grant(changes) => (changes, false),
                    claim::Decision::FailRun(changes, refusal) => {
                        return Ok(Step::Commit(changes, Err(refusal)));
                    }
                };
                // Before the commit: a worker that is refused must not hold the claim.
                match self.open_secrets(&snapshot).await.map_err(never_to_be_had) {
                    Ok(secrets) => {
                        let execution_timeout = snapshot.execution_timeout();
                        let grant = ClaimGrant { nonce: request.nonce, execution_timeout, secrets };
                        Ok(Step::Commit(changes, Ok(grant)))
                    }
                    Err(CoordinatorError::Refused(refusal)) if !again => {
                        let changes = claim::fail_to_start(&attempt, &run, &refusal, self.now())?;
                        Ok(Step::Commit(changes, Err(refusal)))
                    }
                    Err(error) => Err(error),
                }
            })
            .await?;
        failpoint::reach(Failpoint::ClaimCommitted);
        Ok(granted?)
    }

    async fn open_secrets(&self, snapshot: &Snapshot) -> Result<Vec<GrantedSecret>> {
        let mut secrets = Vec::with_capacity(snapshot.secrets.len());
        for binding in &snapshot.secrets {
            let payload = self.inner.vault.get(&binding.payload).await?.ok_or_else(|| {
                Refusal::new(
                    Code::SecretUnavailable,
                    format!("version {} of secret `{}` is gone", binding.version, binding.name),
                )
            })?;
            let value = String::from_utf8(payload.to_vec()).map_err(|_| {
                Refusal::new(Code::SecretUnavailable, format!("secret `{}` is not text", binding.name))
            })?;
            secrets.push(GrantedSecret { path: binding.path.clone(), value: SecretString::from(value) });
        }
        Ok(secrets)
    }

    async fn take_state(&self, session: &Session, write: StateWrite) -> Result<u64> {
        self.check_size("state document", write.document.len(), self.settings().max_state_bytes)?;
        check_digest(write.digest, &write.document)?;
        let document = state::StateDocument::parse(&write.document)?;
        // Before any decision: even a refused document may be the only record of created resources.
        let worker = self.session(session).await?;
        self.own_attempt(&worker, AttemptRef { attempt: write.claim.attempt, fence: write.claim.fence })
            .await?;
        self.inner.vault.put_content("state", &write.document).await?;
        let (write, document) = (&write, &document);
        let result = self
            .transact(|| async move {
                let worker = self.session(session).await?;
                let attempt = self.load::<Attempt>("attempt", write.claim.attempt).await?;
                let run = self.load::<Run>("run", attempt.run).await?;
                let Some(state) = self.state_of(attempt.state_object).await? else {
                    return Err(Refusal::new(Code::InvalidState, "this run has no managed state").into());
                };
                let kept = self
                    .store()
                    .get_as::<OrphanState>(format!("{}/{}", state.id, document.digest))
                    .await?
                    .is_some();
                let next = write.expected_generation.saturating_add(1);
                let next = self.store().get_as::<StateGeneration>(format!("{}/{next}", state.id)).await?;
                let context = state::Context {
                    worker: worker.id,
                    attempt: &attempt,
                    run: &run,
                    state: &state,
                    next: next.as_deref(),
                    kept_aside: kept,
                };
                match state::write(&context, write.claim, write.expected_generation, document, self.now())? {
                    state::Decision::Again(generation) => Ok(Step::Done(Ok(generation))),
                    state::Decision::Accept(changes, generation) => Ok(Step::Commit(changes, Ok(generation))),
                    state::Decision::KeepAside(changes, refusal) => Ok(Step::Commit(changes, Err(refusal))),
                }
            })
            .await?;
        failpoint::reach(Failpoint::StateCommitted);
        Ok(result?)
    }

    async fn take_artifact(&self, session: &Session, upload: ArtifactUpload) -> Result<()> {
        let worker = self.session(session).await?;
        self.check_size("artifact", upload.bytes.len(), self.settings().max_artifact_bytes)?;
        check_digest(upload.digest, &upload.bytes)?;
        let attempt = self.load::<Attempt>("attempt", upload.claim.attempt).await?;
        claim::own_claim(&attempt, worker.id, upload.claim)?;
        self.inner.vault.put_content("artifact", &upload.bytes).await?;
        let artifact = Artifact {
            attempt: attempt.id,
            run: attempt.run,
            project: attempt.project,
            kind: upload.kind,
            digest: upload.digest,
            bytes: upload.bytes.len() as u64,
            at: self.now(),
        };
        let (artifact, worker, upload_claim) = (&artifact, worker.id, upload.claim);
        self.transact(|| async move {
            match self.store().get_as::<Artifact>(artifact.key()).await? {
                Some(there) if there.digest == artifact.digest => Ok(Step::Done(())),
                Some(_) => Err(Refusal::new(
                    Code::DigestMismatch,
                    format!("the attempt has already published another `{}`", artifact.kind.as_str()),
                )
                .into()),
                None => {
                    // Again, and checked by the commit: a closed attempt publishes nothing more.
                    let attempt = self.load::<Attempt>("attempt", artifact.attempt).await?;
                    claim::own_claim(&attempt, worker, upload_claim)?;
                    let mut changes = Changeset::new();
                    changes.check(&attempt).insert(artifact.clone());
                    Ok(Step::Commit(changes, ()))
                }
            }
        })
        .await
    }

    fn check_size(&self, what: &str, size: usize, max: usize) -> Result<()> {
        if size > max {
            return Err(Refusal::new(
                Code::TooLarge,
                format!("the {what} has {size} bytes; at most {max} are allowed"),
            )
            .into());
        }
        Ok(())
    }
}

/// Content that was changed at rest is as lost as content that is gone: trying again does not help.
fn never_to_be_had(error: CoordinatorError) -> CoordinatorError {
    match error {
        CoordinatorError::Vault(error @ VaultError::Corrupt(_)) => {
            Refusal::new(Code::ArtifactMissing, error.to_string()).into()
        }
        other => other,
    }
}

impl InProcess {
    /// Whether a session is still the one of its worker: what an open stream asks again and again.
    ///
    /// # Errors
    /// A dead session; a store that cannot answer.
    pub async fn authenticate(&self, session: &Session) -> std::result::Result<(), ControlError> {
        self.0.session(session).await?;
        Ok(())
    }
}

fn check_digest(expected: Digest, bytes: &Bytes) -> Result<()> {
    if Digest::of(bytes) == expected {
        Ok(())
    } else {
        Err(Refusal::new(Code::DigestMismatch, "the bytes do not have the digest they were sent with").into())
    }
}

#[async_trait]
impl ControlPlane for InProcess {
    async fn challenge(&self) -> std::result::Result<Challenge, ControlError> {
        Ok(self.0.issue_challenge()?)
    }

    async fn register(&self, registration: Registration) -> std::result::Result<Registered, ControlError> {
        Ok(self.0.register_worker(registration).await?)
    }

    async fn heartbeat(
        &self,
        session: &Session,
        heartbeat: Heartbeat,
    ) -> std::result::Result<Orders, ControlError> {
        Ok(self.0.take_heartbeat(session, heartbeat).await?)
    }

    async fn orders(&self, session: &Session, known: &Orders) -> std::result::Result<Orders, ControlError> {
        Ok(self.0.wait_for_orders(session, known).await?)
    }

    async fn bundle(
        &self,
        session: &Session,
        attempt: AttemptRef,
    ) -> std::result::Result<Bundle, ControlError> {
        Ok(self.0.make_bundle(session, attempt).await?)
    }

    async fn claim(
        &self,
        session: &Session,
        request: ClaimRequest,
    ) -> std::result::Result<ClaimGrant, ControlError> {
        Ok(self.0.take_claim(session, request).await?)
    }

    async fn append_log(
        &self,
        session: &Session,
        append: LogAppend,
    ) -> std::result::Result<u64, ControlError> {
        let worker = self.0.session(session).await?;
        Ok(self.0.store_log(worker.id, append).await?)
    }

    async fn put_state(
        &self,
        session: &Session,
        write: StateWrite,
    ) -> std::result::Result<u64, ControlError> {
        Ok(self.0.take_state(session, write).await?)
    }

    async fn put_artifact(
        &self,
        session: &Session,
        upload: ArtifactUpload,
    ) -> std::result::Result<(), ControlError> {
        Ok(self.0.take_artifact(session, upload).await?)
    }

    async fn rotate_key(
        &self,
        session: &Session,
        rotation: Envelope,
    ) -> std::result::Result<(), ControlError> {
        Ok(self.0.take_rotation(session, &rotation).await?)
    }

    async fn conclude(
        &self,
        session: &Session,
        envelope: Envelope,
    ) -> std::result::Result<ReceiptAnswer, ControlError> {
        Ok(self.0.take_conclusion(session, envelope).await?)
    }
}
