//! Attempts as operators look at them, above all those whose worker is missing.

use jiff::Timestamp;

use super::{Coordinator, Result};
use crate::id::AttemptId;
use crate::model::*;
use crate::ports::{Page, Permission, Select, StoreExt as _};
use crate::rules::capacity;

/// An attempt with everything that is known about its execution.
#[derive(Debug, Clone)]
pub struct AttemptView {
    /// The attempt.
    pub attempt: Attempt,
    /// Its run.
    pub run: Run,
    /// Its worker.
    pub worker: Worker,
    /// Where the worker is.
    pub worker_status: WorkerStatus,
    /// When the worker was last heard of.
    pub last_contact: Option<Timestamp>,
    /// When the worker last named this very claim.
    pub last_named: Option<Timestamp>,
    /// How much of its log has arrived, bytes.
    pub log_bytes: u64,
    /// The state generations it wrote, newest first.
    pub generations: Vec<StateGeneration>,
    /// The receipt that closed it.
    pub receipt: Option<Receipt>,
    /// The decision that closed it.
    pub decision: Option<OperatorDecision>,
    /// Statements that came too late to change anything, or contradict what was decided.
    pub late: Vec<LateEvidence>,
}

impl Coordinator {
    /// The project's attempts that are not closed, oldest first; only those whose worker is missing if `unresolved`.
    ///
    /// # Errors
    /// Without the permission; when the store cannot answer.
    pub async fn open_attempts(&self, caller: &Caller, unresolved: bool) -> Result<Vec<Attempt>> {
        self.authorize(caller, Permission::Read)?;
        let open = self.store().list_as::<Attempt>(&Select::OpenAttempts, &Page::all()).await?;
        Ok(open
            .into_iter()
            .map(|attempt| attempt.value)
            .filter(|a| a.project == caller.project && (!unresolved || a.state == AttemptState::Unresolved))
            .collect())
    }

    /// An attempt with everything that is known about its execution.
    ///
    /// # Errors
    /// Without the permission; an attempt of another project; when the store cannot answer.
    pub async fn attempt(&self, caller: &Caller, id: AttemptId) -> Result<AttemptView> {
        self.authorize(caller, Permission::Read)?;
        let store = self.store();
        let attempt = self.own_attempt_of(caller, id).await?.value;
        let run = self.load::<Run>("run", attempt.run).await?.value;
        let worker = self.load::<Worker>("worker", attempt.worker).await?.value;
        let contact = store.get_as::<WorkerContact>(worker.id).await?;
        let open = store.list_as::<Attempt>(&Select::OpenAttemptsOf(worker.id), &Page::all()).await?;
        let generations = match attempt.state_object {
            Some(object) => store
                .list_as::<StateGeneration>(&Select::Generations(object), &Page::all())
                .await?
                .into_iter()
                .map(|generation| generation.value)
                .filter(|generation| generation.writer.attempt == Some(id))
                .collect(),
            None => Vec::new(),
        };
        let late = store.list_as::<LateEvidence>(&Select::LateEvidence(run.id), &Page::all()).await?;
        let contact = contact.as_deref();
        let named = contact.and_then(|c| c.held.iter().find(|held| held.fence == attempt.fence));
        Ok(AttemptView {
            worker_status: capacity::status(&worker, contact, open.len(), self.settings(), self.now()),
            last_contact: contact.map(|c| c.last_seen),
            last_named: named.map(|held| held.at),
            log_bytes: store.log_end(id).await?,
            generations,
            receipt: store.get_as::<Receipt>(id).await?.map(|receipt| receipt.value),
            decision: store.get_as::<OperatorDecision>(id).await?.map(|decision| decision.value),
            late: late.into_iter().map(|it| it.value).filter(|it| it.attempt == id).collect(),
            attempt,
            run,
            worker,
        })
    }
}
