//! The constraints of attempts: what keeps a run from being executed twice, even if every rule failed.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Conflict, Constraint, Store};

use super::*;
use crate::fixtures::Fixtures;

/// Two runs on two instances, a worker, and an attempt that is stored and open.
struct Scene {
    make: Fixtures,
    run: Run,
    other_run: Run,
    worker: Worker,
    attempt: Attempt,
}

async fn scene(store: &dyn Store) -> Scene {
    let make = Fixtures::new();
    let template = make.template(&make.project());
    let (instance, other) = (make.instance(&template), make.instance(&template));
    let (run, other_run, worker) = (make.run(&instance), make.run(&other), make.worker());
    let attempt = Attempt { exclusive: Some(instance.id), ..make.attempt(&run, &worker) };
    commit(store, insert(attempt.clone())).await;
    Scene { make, run, other_run, worker, attempt }
}

impl Scene {
    /// An attempt that collides with the stored one in nothing.
    fn elsewhere(&self) -> Attempt {
        self.make.attempt(&self.other_run, &self.make.worker())
    }

    /// Requires that the store refuses `clash` while the stored attempt is in any open state.
    async fn refused_while_open(&self, store: &dyn Store, constraint: Constraint, clash: &Attempt) {
        let open = [AttemptState::Offered, AttemptState::Claimed, AttemptState::Unresolved];
        for (state, version) in open.into_iter().zip(1..) {
            let attempt = Attempt { state, ..self.attempt.clone() };
            commit(store, update(version, attempt)).await;
            self.refused(store, constraint, clash).await;
        }
    }

    /// Closes the stored attempt after [`Self::refused_while_open`].
    async fn close(&self, store: &dyn Store) {
        commit(store, update(4, self.make.closed(&self.attempt))).await;
    }

    async fn refused(&self, store: &dyn Store, constraint: Constraint, clash: &Attempt) {
        for changes in [insert(clash.clone()), upsert(clash.clone())] {
            let refused = try_commit(store, changes).await;
            assert_eq!(refused, Err(Conflict::Constraint(constraint)));
        }
        is_absent(store, clash.clone()).await;
    }
}

/// A run has one open attempt; the next may open when it is closed.
pub async fn open_attempt_per_run(store: &dyn Store) {
    let scene = scene(store).await;
    let next = Attempt { run: scene.run.id, number: 2, ..scene.elsewhere() };
    scene.refused_while_open(store, Constraint::OpenAttemptPerRun, &next).await;
    scene.close(store).await;
    commit(store, insert(next.clone())).await;
    // The closed one cannot open again beside it.
    let reopened = try_commit(store, update(5, Attempt { slot: 3, exclusive: None, ..scene.attempt })).await;
    assert_eq!(reopened, Err(Conflict::Constraint(Constraint::OpenAttemptPerRun)));
}

/// A worker's slot holds one open attempt; other slots and other workers are free.
pub async fn open_attempt_per_slot(store: &dyn Store) {
    let scene = scene(store).await;
    let same_slot = Attempt { worker: scene.worker.id, slot: 0, ..scene.elsewhere() };
    scene.refused_while_open(store, Constraint::OpenAttemptPerSlot, &same_slot).await;
    let other_slot = Attempt { slot: 1, ..same_slot.clone() };
    commit(store, insert(other_slot.clone())).await;
    commit(store, update(1, scene.make.closed(&other_slot))).await;
    scene.close(store).await;
    let next = Attempt { id: scene.make.id(), fence: scene.make.fence(), number: 2, ..same_slot };
    commit(store, insert(next)).await;
}

/// An instance is changed by one open attempt, whichever run and worker it belongs to.
pub async fn exclusive_instance(store: &dyn Store) {
    let scene = scene(store).await;
    let exclusive = Attempt { exclusive: scene.attempt.exclusive, ..scene.elsewhere() };
    scene.refused_while_open(store, Constraint::ExclusiveInstance, &exclusive).await;
    // Attempts that change nothing do not wait.
    let reading = scene.make.run(&scene.make.instance(&scene.make.template(&scene.make.project())));
    commit(store, insert(scene.make.attempt(&reading, &scene.make.worker()))).await;
    scene.close(store).await;
    commit(store, insert(exclusive)).await;
}

/// A fence is never used twice, not even when its attempt is closed.
pub async fn fence(store: &dyn Store) {
    let scene = scene(store).await;
    let reused = Attempt { fence: scene.attempt.fence, ..scene.elsewhere() };
    scene.refused_while_open(store, Constraint::Fence, &reused).await;
    scene.close(store).await;
    scene.refused(store, Constraint::Fence, &reused).await;
    scene.refused(store, Constraint::Fence, &scene.make.closed(&reused)).await;
    commit(store, insert(scene.elsewhere())).await;
}

/// A run never has two attempts of the same number, not even closed ones; another run counts for itself.
pub async fn attempt_number(store: &dyn Store) {
    let scene = scene(store).await;
    let closed = scene.make.closed(&scene.elsewhere());
    let again = Attempt { run: scene.run.id, number: 1, ..closed };
    scene.refused_while_open(store, Constraint::AttemptNumber, &again).await;
    scene.close(store).await;
    scene.refused(store, Constraint::AttemptNumber, &again).await;
    commit(store, insert(Attempt { number: 2, ..again })).await;
    commit(store, insert(Attempt { number: 1, ..scene.elsewhere() })).await;
}

/// One changeset closes an attempt and opens the next in its place.
pub async fn a_changeset_may_close_one_attempt_and_open_the_next(store: &dyn Store) {
    let scene = scene(store).await;
    let next = Attempt {
        number: 2,
        exclusive: scene.attempt.exclusive,
        ..scene.make.attempt(&scene.run, &scene.worker)
    };
    let mut changes = update(1, scene.make.closed(&scene.attempt));
    changes.insert(next.clone());
    commit(store, changes).await;
    is_stored(store, next, 1).await;
}

/// The first of two changesets of a batch that want the same slot gets it.
pub async fn a_batch_does_not_give_a_slot_twice(store: &dyn Store) {
    let scene = scene(store).await;
    let first = scene.elsewhere();
    let third_run = scene.make.run(&scene.make.instance(&scene.make.template(&scene.make.project())));
    let second =
        Attempt { worker: first.worker, slot: first.slot, ..scene.make.attempt(&third_run, &scene.worker) };
    let results = commit_batch(store, vec![insert(first.clone()), insert(second.clone())]).await;
    assert!(results[0].is_ok(), "{results:?}");
    assert_eq!(results[1], Err(Conflict::Constraint(Constraint::OpenAttemptPerSlot)));
    is_stored(store, first, 1).await;
    is_absent(store, second).await;
}
