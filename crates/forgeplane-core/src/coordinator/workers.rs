//! Workers as administrators see them.

use serde_json::json;

use super::transact::Step;
use super::{Coordinator, Result};
use crate::id::WorkerId;
use crate::model::*;
use crate::ports::{Page, Permission, Select, StoreExt as _};
use crate::refusal::{Code, Refusal};
use crate::rules::schedule::{Candidate, View};
use crate::rules::{Settings, capacity, object, regression, rotation};

/// A worker with what is computed about it.
#[derive(Debug, Clone)]
pub struct WorkerView {
    /// The worker.
    pub worker: Worker,
    /// Where it is.
    pub status: WorkerStatus,
    /// When it was last heard of.
    pub last_seen: Option<jiff::Timestamp>,
    /// What it is short of; it takes nothing new until it has it.
    pub short_of: Option<String>,
    /// How many jobs it may run at once.
    pub capacity: u32,
    /// Its open attempts.
    pub attempts: Vec<Attempt>,
}

/// What the scheduler's rule looks at, loaded.
pub(super) struct ScheduleView {
    pub(super) queued: Vec<Versioned<Run>>,
    pub(super) workers: Vec<Candidate>,
    pub(super) open: Vec<Versioned<Attempt>>,
    /// At most this many queued runs were read.
    window: usize,
}

/// How many queued runs a scheduler pass looks at first.
const QUEUE_WINDOW: usize = 1_000;

impl ScheduleView {
    pub(super) fn as_view<'a>(&'a self, settings: &'a Settings, now: jiff::Timestamp) -> View<'a> {
        View { queued: &self.queued, workers: &self.workers, open: &self.open, settings, now }
    }
}

impl Coordinator {
    pub(super) async fn schedule_view(&self) -> Result<ScheduleView> {
        Ok(ScheduleView {
            queued: self.store().list_as::<Run>(&Select::QueuedRuns, &Page::first(QUEUE_WINDOW)).await?,
            workers: self.candidates().await?,
            open: self.store().list_as::<Attempt>(&Select::OpenAttempts, &Page::all()).await?,
            window: QUEUE_WINDOW,
        })
    }

    /// Reads more of the queue if there may be runs behind those that were read and a worker for them: runs
    /// that wait for something else must not keep the others waiting.
    pub(super) async fn look_further(&self, view: &mut ScheduleView) -> Result<bool> {
        let idle = |candidate: &Candidate| {
            let open = view.open.iter().filter(|a| a.worker == candidate.worker.id).count();
            let (worker, contact) = (&candidate.worker, candidate.contact.as_ref());
            capacity::status(worker, contact, open, self.settings(), self.now()) == WorkerStatus::Idle
        };
        if view.queued.len() < view.window || !view.workers.iter().any(idle) {
            return Ok(false);
        }
        view.window = view.window.saturating_mul(4);
        view.queued = self.store().list_as::<Run>(&Select::QueuedRuns, &Page::first(view.window)).await?;
        Ok(true)
    }

    /// As [`Coordinator::schedule_view`], but far enough into the queue that the run is in it.
    pub(super) async fn schedule_view_with(&self, run: &Run) -> Result<ScheduleView> {
        let mut view = self.schedule_view().await?;
        while run.status == RunStatus::Queued
            && view.queued.len() >= view.window
            && !view.queued.iter().any(|queued| queued.id == run.id)
        {
            view.window = view.window.saturating_mul(4);
            view.queued = self.store().list_as::<Run>(&Select::QueuedRuns, &Page::first(view.window)).await?;
        }
        Ok(view)
    }

    pub(super) async fn candidates(&self) -> Result<Vec<Candidate>> {
        let contacts = self.store().list_as::<WorkerContact>(&Select::WorkerContacts, &Page::all()).await?;
        let contact_of = |id: WorkerId| contacts.iter().find(|c| c.worker == id).map(|c| c.value.clone());
        let workers = self.store().list_as::<Worker>(&Select::Workers, &Page::all()).await?;
        Ok(workers.into_iter().map(|worker| Candidate { contact: contact_of(worker.id), worker }).collect())
    }

    /// Every worker.
    ///
    /// # Errors
    /// Without the permission; when the store cannot answer.
    pub async fn workers(&self, caller: &Caller) -> Result<Vec<WorkerView>> {
        self.authorize(caller, Permission::Read)?;
        let open = self.store().list_as::<Attempt>(&Select::OpenAttempts, &Page::all()).await?;
        let now = self.now();
        Ok(self
            .candidates()
            .await?
            .into_iter()
            .map(|Candidate { worker, contact }| {
                // Attempts of other projects count towards the worker's load but are not shown.
                let on_worker: Vec<_> = open.iter().filter(|a| a.worker == worker.id).collect();
                WorkerView {
                    status: capacity::status(
                        &worker,
                        contact.as_ref(),
                        on_worker.len(),
                        self.settings(),
                        now,
                    ),
                    last_seen: contact.as_ref().map(|c| c.last_seen),
                    short_of: contact.and_then(|c| c.short_of),
                    capacity: capacity::effective(&worker, self.settings()),
                    attempts: on_worker
                        .into_iter()
                        .filter(|a| a.project == caller.project)
                        .map(|a| a.value.clone())
                        .collect(),
                    worker: worker.value,
                }
            })
            .collect())
    }

    /// Lets a worker finish its work and take nothing new.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn drain_worker(&self, caller: &Caller, name_or_id: &str) -> Result<Worker> {
        self.change_worker(caller, name_or_id, EventKind::WorkerDraining, |worker| Worker {
            draining: true,
            ..worker
        })
        .await
    }

    /// Lets a worker take work again: ends draining and quarantine.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn reactivate_worker(&self, caller: &Caller, name_or_id: &str) -> Result<Worker> {
        self.change_worker(caller, name_or_id, EventKind::WorkerReactivated, |worker| Worker {
            draining: false,
            quarantined: None,
            ..worker
        })
        .await
    }

    /// Kills a worker's credential at once. Its keys stay valid for outcomes of attempts pinned to them.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn disconnect_worker(&self, caller: &Caller, name_or_id: &str) -> Result<Worker> {
        self.change_worker(caller, name_or_id, EventKind::WorkerDisconnected, |worker| Worker {
            disconnected: true,
            ..worker
        })
        .await
    }

    /// Asks a worker to replace its key; it does so once nothing depends on the old one.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn rotate_worker_key(&self, caller: &Caller, name_or_id: &str) -> Result<Worker> {
        self.change_worker(caller, name_or_id, EventKind::WorkerKeyRotationRequested, |worker| Worker {
            rotate_key: true,
            ..worker
        })
        .await
    }

    /// As [`Coordinator::disconnect_worker`], for a worker whose keys may be in the wrong hands: they count for
    /// nothing any more, also for attempts that are pinned to them. Such outcomes are kept as evidence.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`].
    pub async fn distrust_worker(&self, caller: &Caller, name_or_id: &str) -> Result<Worker> {
        self.authorize(caller, Permission::WorkerAdmin)?;
        self.transact(|| async move {
            let worker = self.find_worker(name_or_id).await?;
            let keys: Vec<_> =
                self.store().list_as::<WorkerKey>(&Select::WorkerKeys(worker.id), &Page::all()).await?;
            let changes = rotation::distrust(&worker, &keys, &caller.actor(), self.now());
            let next = Worker { disconnected: true, ..worker.value };
            Ok(if changes.puts.is_empty() { Step::Done(next) } else { Step::Commit(changes, next) })
        })
        .await
    }

    /// Accepts that the store has lost the attempts which a worker names and the store does not know
    /// ([`regression`]). Fences go on above them; scheduling goes on.
    ///
    /// # Errors
    /// Without the permission; [`Code::NotFound`]; everything [`regression::accept`] refuses.
    pub async fn accept_loss(&self, caller: &Caller, name_or_id: &str, reason: &str) -> Result<Worker> {
        self.authorize(caller, Permission::WorkerAdmin)?;
        let lost = regression::lost(&*self.find_worker(name_or_id).await?)?;
        // Before anything is scheduled: a fence that the worker has journaled must not be given to another attempt.
        let mut allocated = self.store().allocate_fence().await?;
        regression::is_plausible(lost, allocated)?;
        while allocated <= lost {
            allocated = self.store().allocate_fence().await?;
        }
        self.transact(|| async move {
            let worker = self.find_worker(name_or_id).await?;
            let changes = regression::accept(&worker, reason, &caller.actor(), self.now())?;
            Ok(Step::Commit(changes, Worker { lost: None, ..worker.value }))
        })
        .await
    }

    async fn change_worker(
        &self,
        caller: &Caller,
        name_or_id: &str,
        kind: EventKind,
        change: impl Fn(Worker) -> Worker + Sync,
    ) -> Result<Worker> {
        self.authorize(caller, Permission::WorkerAdmin)?;
        let change = &change;
        self.transact(|| async move {
            let worker = self.find_worker(name_or_id).await?;
            let next = change(worker.value.clone());
            if next == worker.value {
                return Ok(Step::Done(next));
            }
            let mut changes = Changeset::new();
            changes.update(worker.version, next.clone());
            changes.events.push(Event::beside_runs(
                None,
                kind,
                caller.actor(),
                self.now(),
                object([("worker", json!(worker.id)), ("name", json!(worker.name))]),
            ));
            Ok(Step::Commit(changes, next))
        })
        .await
    }

    async fn find_worker(&self, name_or_id: &str) -> Result<Versioned<Worker>> {
        let found = match (name_or_id.parse::<WorkerId>(), name_or_id.parse::<Name>()) {
            (Ok(id), _) => self.store().get_as::<Worker>(id).await?,
            (_, Ok(name)) => self.store().find_as::<Worker>(&crate::ports::Lookup::WorkerNamed(name)).await?,
            _ => None,
        };
        found.ok_or_else(|| Refusal::new(Code::NotFound, format!("there is no worker `{name_or_id}`")).into())
    }
}
