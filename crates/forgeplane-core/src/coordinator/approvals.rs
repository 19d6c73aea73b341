//! Approvals: list, show, decide.

use super::transact::Step;
use super::{Coordinator, Result};
use crate::id::ApprovalId;
use crate::model::*;
use crate::ports::{Page, Permission, Select, StoreExt as _};
use crate::refusal::{Code, Refusal};
use crate::rules::approval;

/// The longest reason, characters.
const MAX_REASON: usize = 2_000;

impl Coordinator {
    /// The project's approval records, newest first.
    ///
    /// # Errors
    /// Without the permission; when the store cannot answer.
    pub async fn approvals(
        &self,
        caller: &Caller,
        status: Option<ApprovalStatus>,
        page: &Page,
    ) -> Result<Vec<Approval>> {
        self.authorize(caller, Permission::Read)?;
        let select = Select::Approvals { project: caller.project, status };
        Ok(self.store().list_as::<Approval>(&select, page).await?.into_iter().map(|a| a.value).collect())
    }

    /// An approval record.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn approval(&self, caller: &Caller, id: ApprovalId) -> Result<Approval> {
        self.authorize(caller, Permission::Read)?;
        Ok(self.own_approval(caller, id).await?.value)
    }

    async fn own_approval(&self, caller: &Caller, id: ApprovalId) -> Result<Versioned<Approval>> {
        match self.store().get_as::<Approval>(id).await? {
            Some(approval) if approval.project == caller.project => Ok(approval),
            _ => Err(Refusal::not_found("approval", id).into()),
        }
    }

    /// Records the caller's verdict.
    ///
    /// # Errors
    /// Without the permission; everything [`approval::review`] refuses.
    pub async fn review(
        &self,
        caller: &Caller,
        id: ApprovalId,
        verdict: Verdict,
        reason: Option<String>,
    ) -> Result<Approval> {
        self.authorize(caller, Permission::ApprovalDecide)?;
        if reason.as_ref().is_some_and(|r| r.chars().count() > MAX_REASON) {
            return Err(Refusal::new(
                Code::InvalidField,
                format!("a reason has at most {MAX_REASON} characters"),
            )
            .field("reason")
            .into());
        }
        let (actor, reason) = (&caller.actor(), &reason);
        self.transact(|| async move {
            let record = self.own_approval(caller, id).await?;
            let run = self.load::<Run>("run", record.run).await?;
            let snapshot = self.load::<Snapshot>("snapshot", record.run).await?;
            let changes =
                approval::review(&record, &run, &snapshot, actor, verdict, reason.clone(), self.now())?;
            Ok(Step::Commit(changes, ()))
        })
        .await?;
        Ok(self.own_approval(caller, id).await?.value)
    }
}
