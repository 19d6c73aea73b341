//! What a worker asks about its attempts, and the in-process adapter of everything it may ask.

use async_trait::async_trait;
use bytes::Bytes;
use secrecy::SecretString;

use super::transact::Step;
use super::{Coordinator, CoordinatorError, Result};
use crate::digest::Digest;
use crate::evidence::{BundleManifest, Envelope, StateRef};
use crate::failpoint::{self, Failpoint};
use crate::id::AttemptId;
use crate::model::*;
use crate::ports::*;
use crate::refusal::{Code, Refusal};
use crate::rules::{claim, state};
use crate::seal::VaultError;

/// A [`ControlPlane`] that calls the coordinator in the same process.
#[derive(Debug, Clone)]
pub struct InProcess(Coordinator);

impl Coordinator {
    /// The control plane for workers in this process.
    #[must_use]
    pub fn in_process(&self) -> InProcess {
        InProcess(self.clone())
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
                    claim::Decision::Refuse(changes, refusal) => {
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
