//! An operator's decision on an unresolved execution.

use super::transact::Step;
use super::{Coordinator, Result};
use crate::id::AttemptId;
use crate::model::*;
use crate::ports::{Permission, StoreExt as _};
use crate::refusal::Refusal;
use crate::rules::resolve::{self, Resolution};

impl Coordinator {
    /// Ends an unresolved execution by decision (`protocol.md` 1.11).
    ///
    /// # Errors
    /// Without the permission; everything [`resolve::resolve`] refuses.
    pub async fn resolve_attempt(
        &self,
        caller: &Caller,
        id: AttemptId,
        resolution: &Resolution,
    ) -> Result<Run> {
        self.authorize(caller, Permission::RunResolve)?;
        let actor = &caller.actor();
        let run = self
            .transact(|| async move {
                let attempt = match self.store().get_as::<Attempt>(id).await? {
                    Some(attempt) if attempt.project == caller.project => attempt,
                    _ => return Err(Refusal::not_found("attempt", id).into()),
                };
                let run = self.load::<Run>("run", attempt.run).await?;
                let worker = self.load::<Worker>("worker", attempt.worker).await?;
                let changes = resolve::resolve(&attempt, &run, &worker, resolution, actor, self.now())?;
                Ok(Step::Commit(changes, run.id))
            })
            .await?;
        Ok(self.own_run(caller, run).await?.value)
    }
}
