//! Signed statements: verified, then held against what is stored.

use super::transact::Step;
use super::{Coordinator, Result};
use crate::digest::Digest;
use crate::evidence::{Conclusion, Envelope};
use crate::failpoint::{self, Failpoint};
use crate::id::{AttemptId, EvidenceId};
use crate::model::*;
use crate::ports::{Page, ReceiptAnswer, Select, Session, StoreExt as _};
use crate::refusal::{Code, Refusal};
use crate::rules::outcome;

impl Coordinator {
    pub(super) async fn take_conclusion(
        &self,
        session: &Session,
        envelope: Envelope,
    ) -> Result<ReceiptAnswer> {
        self.session(session).await?;
        self.accept_conclusion(envelope).await
    }

    /// Verifies and applies a signed statement. The signature is what counts, not who delivers it.
    pub(super) async fn accept_conclusion(&self, envelope: Envelope) -> Result<ReceiptAnswer> {
        let about: AttemptId = Conclusion::peek(&envelope)?.attempt();
        let attempt = self.load::<Attempt>("attempt", about).await?;
        let key = self.load::<WorkerKey>("worker key", envelope.signer()?).await?;
        let public_key = crate::evidence::public_key_from_hex(&key.public_key)
            .map_err(|e| Refusal::new(Code::InvalidEvidence, e.to_string()))?;
        let conclusion = Conclusion::verify(&envelope, &public_key)?;
        let text = envelope.to_json();
        let digest = Digest::of(text.as_bytes());
        let evidence = EvidenceId::new(self.now(), self.random());
        let (text, conclusion, run, signer) = (&text, &conclusion, attempt.run, key.id);
        let applied = self
            .transact(|| async move {
                let attempt = self.load::<Attempt>("attempt", about).await?;
                let run = self.load::<Run>("run", run).await?;
                let snapshot = self.load::<Snapshot>("snapshot", run.id).await?;
                let worker = self.load::<Worker>("worker", attempt.worker).await?;
                // Again, and checked by the commit: it may be found compromised at any time.
                let key = self.load::<WorkerKey>("worker key", signer).await?;
                let receipt = self.store().get_as::<Receipt>(about).await?;
                let late = Select::LateEvidence(run.id);
                let kept = self.store().list_as::<LateEvidence>(&late, &Page::all()).await?;
                let artifacts: Vec<Artifact> = self
                    .store()
                    .list_as::<Artifact>(&Select::Artifacts(run.id), &Page::all())
                    .await?
                    .into_iter()
                    .map(|a| a.value)
                    .filter(|a| a.attempt == about)
                    .collect();
                let state = self.state_of(attempt.state_object).await?;
                let instance = self.load::<Instance>("instance", run.instance).await?;
                let context = outcome::Context {
                    attempt: &attempt,
                    run: &run,
                    snapshot: &snapshot,
                    key: &key,
                    worker: &worker,
                    receipt: receipt.as_deref(),
                    kept: kept.iter().any(|e| e.attempt == about && e.envelope_digest == digest),
                    artifacts: &artifacts,
                    state: state.as_ref(),
                    instance: &instance,
                    settings: self.settings(),
                };
                let signed = outcome::Signed { conclusion, envelope: text, digest };
                match outcome::conclude(&context, &signed, evidence, self.now())? {
                    outcome::Decision::Apply(mut changes) => {
                        changes.check(&key);
                        Ok(Step::Commit(changes, true))
                    }
                    outcome::Decision::Again => Ok(Step::Done(true)),
                    outcome::Decision::Ignore => Ok(Step::Done(false)),
                    outcome::Decision::Keep(changes) => Ok(Step::Commit(changes, false)),
                }
            })
            .await?;
        failpoint::reach(Failpoint::ReceiptCommitted);
        self.forget_log_end(about);
        Ok(ReceiptAnswer { attempt: about, envelope_digest: digest, applied })
    }
}
