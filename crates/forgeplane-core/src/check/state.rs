//! I11: state grows by one generation per accepted write, by ever newer fences.

use super::{Findings, Report, TRIES};
use crate::id::{ProjectId, StateObjectId};
use crate::model::*;
use crate::ports::{Page, Select, Store, StoreError, StoreExt as _};

pub(super) async fn check(
    store: &dyn Store,
    project: ProjectId,
    report: &mut Report,
) -> Result<(), StoreError> {
    let instances = store.list_as::<Instance>(&Select::Instances(project), &Page::all()).await?;
    for (instance, object) in instances.iter().filter_map(|i| Some((i, i.state_object?))) {
        let subject = format!("state {object}");
        let mut findings = Findings::default();
        match read(store, object).await? {
            None => findings.expect(false, "I11", &subject, "vanished, or changes without end"),
            Some((state, generations)) => {
                report.generations += generations.len() as u64;
                let own = (state.project, state.instance) == (project, instance.id);
                findings.expect(own, "I16", &subject, format!("is not the one of instance {}", instance.id));
                generations_in_order(&state, &generations, &subject, &mut findings);
            }
        }
        report.violations.append(&mut findings.0);
    }
    Ok(())
}

/// The object and its generations, oldest first, read while it stood still.
async fn read(
    store: &dyn Store,
    id: StateObjectId,
) -> Result<Option<(StateObject, Vec<StateGeneration>)>, StoreError> {
    for _ in 0..TRIES {
        let Some(before) = store.get_as::<StateObject>(id).await? else { return Ok(None) };
        let generations = store.list_as::<StateGeneration>(&Select::Generations(id), &Page::all()).await?;
        let after = store.get_as::<StateObject>(id).await?;
        if after.is_some_and(|after| after.version == before.version) {
            let oldest_first = generations.into_iter().rev().map(|g| g.value).collect();
            return Ok(Some((before.value, oldest_first)));
        }
    }
    Ok(None)
}

fn generations_in_order(
    state: &StateObject,
    generations: &[StateGeneration],
    subject: &str,
    findings: &mut Findings,
) {
    let numbers = generations.iter().map(|g| g.generation);
    let contiguous = numbers.eq(1..=state.head);
    findings.expect(contiguous, "I11", subject, format!("has not the generations 1 to {}", state.head));
    let head = generations.last();
    let same = state.digest == head.map(|g| g.digest) && state.serial == head.map_or(0, |g| g.serial);
    findings.expect(same, "I11", subject, "the head is not its newest generation");
    let fences: Vec<Fence> = generations.iter().filter_map(|g| g.writer.fence).collect();
    findings.expect(fences.is_sorted(), "I11", subject, "an older fence wrote after a newer one");
    let within = fences.iter().all(|fence| *fence <= state.high_water);
    findings.expect(within, "I11", subject, "a fence above the high-water mark wrote");
    let tenants = generations.iter().all(|g| g.project == state.project);
    findings.expect(tenants, "I16", subject, "a generation is another project's");
}
