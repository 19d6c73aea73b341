//! What operators do about an unresolved execution (`protocol.md` 1.11).

use jiff::Timestamp;

use super::transact::Step;
use super::{Coordinator, Result};
use crate::evidence::{Conclusion, Envelope};
use crate::id::AttemptId;
use crate::model::*;
use crate::ports::{Permission, ReceiptAnswer, StoreExt as _};
use crate::refusal::{Code, Refusal};
use crate::rules::resolve::{self, Resolution};

impl Coordinator {
    /// Ends an unresolved execution by one person's decision, or proposes to call it a success, which a second person
    /// confirms by [`Coordinator::confirm_resolution`].
    ///
    /// # Errors
    /// Without the permission; everything [`resolve::resolve`] refuses.
    pub async fn resolve_attempt(
        &self,
        caller: &Caller,
        id: AttemptId,
        resolution: &Resolution,
    ) -> Result<Run> {
        self.decide(caller, id, |context, by, now| {
            Ok(match resolve::resolve(context, resolution, by, now)? {
                resolve::Decision::Decide(changes) | resolve::Decision::Propose(changes) => changes,
            })
        })
        .await
    }

    /// Confirms, as a second person, that an unresolved execution succeeded.
    ///
    /// # Errors
    /// Without the permission; everything [`resolve::confirm`] refuses.
    pub async fn confirm_resolution(&self, caller: &Caller, id: AttemptId) -> Result<Run> {
        self.decide(caller, id, resolve::confirm).await
    }

    async fn decide(
        &self,
        caller: &Caller,
        id: AttemptId,
        rule: impl Fn(&resolve::Context<'_>, &Actor, Timestamp) -> std::result::Result<Changeset, Refusal> + Sync,
    ) -> Result<Run> {
        self.authorize(caller, Permission::RunResolve)?;
        let (actor, rule) = (&caller.actor(), &rule);
        let run = self
            .transact(|| async move {
                let attempt = self.own_attempt_of(caller, id).await?;
                let run = self.load::<Run>("run", attempt.run).await?;
                let worker = self.load::<Worker>("worker", attempt.worker).await?;
                let state = self.state_of(attempt.state_object).await?;
                let context = resolve::Context {
                    attempt: &attempt,
                    run: &run,
                    worker: &worker,
                    state: state.as_ref(),
                    fence: self.store().allocate_fence().await?,
                };
                Ok(Step::Commit(rule(&context, actor, self.now())?, run.id))
            })
            .await?;
        Ok(self.own_run(caller, run).await?.value)
    }

    /// Delivers an outcome that was found on a worker's disk. The signature is what counts: it is verified and
    /// applied as if the worker had sent it, also for a disconnected worker.
    ///
    /// # Errors
    /// Without the permission; an attempt of another project; an envelope of another attempt, or one that does not
    /// verify.
    pub async fn submit_outcome(
        &self,
        caller: &Caller,
        id: AttemptId,
        envelope: Envelope,
    ) -> Result<ReceiptAnswer> {
        self.authorize(caller, Permission::RunResolve)?;
        self.own_attempt_of(caller, id).await?;
        let about = Conclusion::peek(&envelope)?.attempt();
        if about != id {
            return Err(
                Refusal::new(Code::InvalidEvidence, format!("the outcome is of attempt {about}")).into()
            );
        }
        self.accept_conclusion(envelope).await
    }

    pub(super) async fn own_attempt_of(&self, caller: &Caller, id: AttemptId) -> Result<Versioned<Attempt>> {
        match self.store().get_as::<Attempt>(id).await? {
            Some(attempt) if attempt.project == caller.project => Ok(attempt),
            _ => Err(Refusal::not_found("attempt", id).into()),
        }
    }
}
