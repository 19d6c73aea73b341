//! The invariants of `protocol.md` 1.12: those that a store shows are looked for by
//! [`forgeplane_core::check`], those that are about changes are here.

use std::collections::BTreeMap;

use forgeplane_core::check;
use forgeplane_core::digest::Digest;
use forgeplane_core::id::{AttemptId, RunId, StateObjectId};
use forgeplane_core::model::*;
use forgeplane_core::ports::{Page, Select, Store as _, StoreExt as _};

use crate::world::{Command, World};

/// What the last check saw.
#[derive(Debug, Default)]
pub struct Seen {
    statuses: BTreeMap<RunId, RunStatus>,
    attempts: BTreeMap<AttemptId, Attempt>,
    receipts: BTreeMap<AttemptId, Digest>,
    heads: BTreeMap<StateObjectId, u64>,
}

pub async fn check(world: &mut World, command: &Command) {
    let report = check::check(&*world.store).await.unwrap();
    assert_eq!(report.violations, [], "after {command:?}");
    let mut now = Seen::default();
    for run in world.runs().await {
        for attempt in world.attempts(run.id).await {
            if let Some(before) = world.before.attempts.get(&attempt.id) {
                attempt_step(before, &attempt);
            }
            if let Some(receipt) = world.store.get_as::<Receipt>(attempt.id).await.unwrap() {
                if let Some(before) = world.before.receipts.get(&attempt.id) {
                    assert_eq!(*before, receipt.envelope_digest, "I5: a receipt changed");
                }
                now.receipts.insert(attempt.id, receipt.envelope_digest);
            }
            now.attempts.insert(attempt.id, attempt);
        }
        if let Some(before) = world.before.statuses.get(&run.id)
            && before.is_terminal()
            && *before != run.status
        {
            assert!(
                matches!(command, Command::Requeue(_)),
                "I13: {before} became {} by {command:?}",
                run.status
            );
            assert_eq!(run.status, RunStatus::Queued);
        }
        now.statuses.insert(run.id, run.status);
    }
    for (fence, nonces) in &world.granted {
        assert!(nonces.len() <= 1, "I1: fence {fence} was granted to {nonces:?}");
    }
    states(world, &mut now).await;
    publications(world, &now).await;
    world.before = now;
}

fn attempt_step(before: &Attempt, after: &Attempt) {
    use AttemptState as S;
    let allowed = match before.state {
        S::Offered => true,
        S::Claimed | S::Unresolved => after.state != S::Offered,
        S::Closed => after.state == S::Closed,
    };
    assert!(allowed, "I9: {:?} became {:?}", before.state, after.state);
    if before.claim.is_some() {
        assert_eq!(before.claim, after.claim, "a claim changed");
    }
    if before.state == S::Closed {
        assert_eq!(before, after, "a closed attempt changed");
    }
}

/// The outbox announces nothing that was not recorded.
async fn publications(world: &World, now: &Seen) {
    for message in world.store.outbox(usize::MAX).await.unwrap() {
        let attempt = &now.attempts[&message.job.attempt];
        assert!(
            (1..=attempt.publications).contains(&message.job.publication),
            "a publication nobody recorded"
        );
    }
}

/// I11: the head grows by one per accepted write.
async fn states(world: &World, now: &mut Seen) {
    let instances = Select::Instances(world.alice.project);
    for instance in world.store.list_as::<Instance>(&instances, &Page::all()).await.unwrap() {
        let Some(id) = instance.state_object else { continue };
        let state = world.store.get_as::<StateObject>(id).await.unwrap().unwrap();
        let before = world.before.heads.get(&id).copied().unwrap_or(0);
        assert!(
            state.head == before || state.head == before + 1,
            "I11: the head jumped from {before} to {}",
            state.head
        );
        now.heads.insert(id, state.head);
    }
}
