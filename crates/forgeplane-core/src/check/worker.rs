//! I15 as far as records show it: an identity has one key in force.

use super::{Findings, Report, TRIES};
use crate::id::WorkerId;
use crate::model::*;
use crate::ports::{Page, Select, Store, StoreError, StoreExt as _};

pub(super) async fn check(store: &dyn Store, report: &mut Report) -> Result<(), StoreError> {
    for worker in store.list_as::<Worker>(&Select::Workers, &Page::all()).await? {
        report.workers += 1;
        let subject = format!("worker {}", worker.id);
        let mut findings = Findings::default();
        match read(store, worker.id).await? {
            None => findings.expect(false, "I15", &subject, "vanished, or changes without end"),
            Some((worker, keys)) => {
                let active: Vec<_> =
                    keys.iter().filter(|k| k.status == KeyStatus::Active).map(|k| k.id).collect();
                let distrusted = worker.disconnected && active.is_empty();
                let one = active == [worker.key] || distrusted;
                findings.expect(one, "I15", &subject, format!("its keys in force are {active:?}"));
            }
        }
        report.violations.append(&mut findings.0);
    }
    Ok(())
}

/// The worker and its keys, read while it stood still.
async fn read(store: &dyn Store, id: WorkerId) -> Result<Option<(Worker, Vec<WorkerKey>)>, StoreError> {
    for _ in 0..TRIES {
        let Some(before) = store.get_as::<Worker>(id).await? else { return Ok(None) };
        let keys = store.list_as::<WorkerKey>(&Select::WorkerKeys(id), &Page::all()).await?;
        let after = store.get_as::<Worker>(id).await?;
        if after.is_some_and(|after| after.version == before.version) {
            return Ok(Some((before.value, keys.into_iter().map(|k| k.value).collect())));
        }
    }
    Ok(None)
}
