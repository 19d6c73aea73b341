//! What operators do about an unresolved execution (`protocol.md` 1.11).

use super::transact::Step;
use super::{Coordinator, Result};
use crate::evidence::{Conclusion, Envelope};
use crate::id::AttemptId;
use crate::model::*;
use crate::ports::{Permission, ReceiptAnswer, StoreExt as _};
use crate::refusal::{Code, Refusal};
use crate::rules::resolve::{self, Resolution};

impl Coordinator {
    /// Ends an unresolved execution by one person's decision.
    ///
    /// # Errors
    /// Without the permission; everything [`resolve::resolve`] refuses; a named second person, who has to take
    /// part with their own credential: [`Coordinator::resolve_attempt_together`].
    pub async fn resolve_attempt(
        &self,
        caller: &Caller,
        id: AttemptId,
        resolution: &Resolution,
    ) -> Result<Run> {
        if resolution.confirmed_by.is_some() {
            return Err(Refusal::new(Code::Forbidden, "a second person confirms with their own credential")
                .field("confirmed_by")
                .into());
        }
        self.decide(caller, id, resolution).await
    }

    /// Ends an unresolved execution by the decision of two people, both authenticated; only they can decide
    /// `succeeded`. [`Resolution::confirmed_by`] is taken from `second`.
    ///
    /// # Errors
    /// Without the permission of both in one project; everything [`resolve::resolve`] refuses.
    pub async fn resolve_attempt_together(
        &self,
        caller: &Caller,
        second: &Caller,
        id: AttemptId,
        resolution: &Resolution,
    ) -> Result<Run> {
        self.authorize(second, Permission::RunResolve)?;
        if second.project != caller.project || second.principal == caller.principal {
            return Err(Refusal::new(
                Code::Forbidden,
                "the confirmation has to come from a second person of the same project",
            )
            .field("confirmed_by")
            .into());
        }
        let resolution = Resolution { confirmed_by: Some(second.actor()), ..resolution.clone() };
        self.decide(caller, id, &resolution).await
    }

    async fn decide(&self, caller: &Caller, id: AttemptId, resolution: &Resolution) -> Result<Run> {
        self.authorize(caller, Permission::RunResolve)?;
        let actor = &caller.actor();
        let run = self
            .transact(|| async move {
                let attempt = self.own_attempt_of(caller, id).await?;
                let run = self.load::<Run>("run", attempt.run).await?;
                let worker = self.load::<Worker>("worker", attempt.worker).await?;
                let changes = resolve::resolve(&attempt, &run, &worker, resolution, actor, self.now())?;
                Ok(Step::Commit(changes, run.id))
            })
            .await?;
        Ok(self.own_run(caller, run).await?.value)
    }

    /// Delivers an outcome that was found on a worker's disk. The signature is what counts: it is verified and
    /// applied as if the worker had sent it, also for a disconnected worker.
    ///
    /// # Errors
    /// Without the permission; an attempt of another project; an envelope that does not verify.
    pub async fn submit_outcome(&self, caller: &Caller, envelope: Envelope) -> Result<ReceiptAnswer> {
        self.authorize(caller, Permission::RunResolve)?;
        self.own_attempt_of(caller, Conclusion::peek(&envelope)?.attempt()).await?;
        self.accept_conclusion(envelope).await
    }

    async fn own_attempt_of(&self, caller: &Caller, id: AttemptId) -> Result<Versioned<Attempt>> {
        match self.store().get_as::<Attempt>(id).await? {
            Some(attempt) if attempt.project == caller.project => Ok(attempt),
            _ => Err(Refusal::not_found("attempt", id).into()),
        }
    }
}
