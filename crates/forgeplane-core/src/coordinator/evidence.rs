//! Exporting what a third party verifies offline.

use super::{Coordinator, Result};
use crate::evidence::{Envelope, Evidence};
use crate::id::RunId;
use crate::model::*;
use crate::ports::{Permission, StoreExt as _};
use crate::refusal::{Code, Refusal};

impl Coordinator {
    /// The evidence of how a run's newest (or a numbered) attempt ended.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`] while there is no receipt.
    pub async fn evidence(&self, caller: &Caller, run: RunId, number: Option<u32>) -> Result<Evidence> {
        self.authorize(caller, Permission::Read)?;
        let run = self.own_run(caller, run).await?;
        let attempts = self.attempts_of(run.id).await?;
        let attempt = match number {
            None => attempts.into_iter().next_back(),
            Some(number) => attempts.into_iter().find(|a| a.number == number),
        };
        let none = || {
            Refusal::not_found("signed outcome of run", run.id)
                .way_out("a run has one when its attempt has ended")
        };
        let attempt = attempt.ok_or_else(none)?;
        let receipt = self.store().get_as::<Receipt>(attempt.id).await?.ok_or_else(none)?;
        let key = self.load::<WorkerKey>("worker key", receipt.key).await?;
        let snapshot = self.load::<Snapshot>("snapshot", run.id).await?;
        let approval = match run.approval {
            Some(id) => self.store().get_as::<Approval>(id).await?.map(|a| a.value),
            None => None,
        };
        Ok(Evidence {
            outcome: Envelope::from_json(&receipt.envelope)?,
            worker_key: key.public_key.clone(),
            bundle: self.manifest(&attempt, &snapshot).await?.1,
            coordinator_key: hex::encode(self.public_key()),
            snapshot: String::from_utf8(snapshot.to_bytes())
                .map_err(|e| Refusal::new(Code::InvalidEvidence, format!("the snapshot is not text: {e}")))?,
            approval,
        })
    }
}
