//! Constraints: what the store itself refuses, whatever the caller checked, and when it lets go.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Conflict, Constraint, Store};

use super::*;
use crate::fixtures::Fixtures;

/// Requires that the store refuses `changes` for this reason and none other, as an insertion and as an upsert,
/// and that it commits `allowed`.
async fn guards(
    store: &dyn Store,
    constraint: Constraint,
    clash: impl Into<Record> + Clone,
    allowed: impl Into<Record> + Clone,
) {
    for changes in [insert(clash.clone()), upsert(clash.clone())] {
        refuses(store, constraint, changes).await;
    }
    is_absent(store, clash).await;
    commit(store, insert(allowed.clone())).await;
    is_stored(store, allowed, 1).await;
}

async fn refuses(store: &dyn Store, constraint: Constraint, changes: Changeset) {
    assert_eq!(try_commit(store, changes).await, Err(Conflict::Constraint(constraint)));
}

/// Two projects never share a name.
pub async fn project_name(store: &dyn Store) {
    let make = Fixtures::new();
    let (first, second) = (make.project(), make.project());
    commit(store, insert(first.clone())).await;
    let clash = Project { name: first.name.clone(), ..second.clone() };
    guards(store, Constraint::ProjectName, clash.clone(), second).await;
    // Nor does a replacement take it.
    refuses(store, Constraint::ProjectName, update(1, clash)).await;
}

/// A name that was given up is free, and keeping one's own name is no violation.
pub async fn a_unique_value_is_free_once_it_was_given_up(store: &dyn Store) {
    let make = Fixtures::new();
    let first = make.project();
    commit(store, insert(first.clone())).await;
    commit(store, update(1, first.clone())).await;
    let renamed = Project { name: make.name("renamed"), ..first.clone() };
    commit(store, update(2, renamed.clone())).await;
    let heir = Project { name: first.name.clone(), ..make.project() };
    commit(store, insert(heir)).await;
    refuses(store, Constraint::ProjectName, update(3, first)).await;
    is_stored(store, renamed, 3).await;
}

/// A changeset may give a name up and take it again for another record.
pub async fn a_changeset_may_hand_a_unique_value_over(store: &dyn Store) {
    let make = Fixtures::new();
    let first = make.project();
    commit(store, insert(first.clone())).await;
    let renamed = Project { name: make.name("renamed"), ..first.clone() };
    let heir = Project { name: first.name, ..make.project() };
    let mut changes = update(1, renamed);
    changes.insert(heir.clone());
    commit(store, changes).await;
    is_stored(store, heir, 1).await;
}

/// Two tokens never share a hash, not even in different projects.
pub async fn token_hash(store: &dyn Store) {
    let make = Fixtures::new();
    let first = make.token(&make.project());
    commit(store, insert(first.clone())).await;
    let other = make.token(&make.project());
    guards(store, Constraint::TokenHash, Token { hash: first.hash, ..other.clone() }, other).await;
}

/// Template names are unique in a project; another project may use them again.
pub async fn template_name(store: &dyn Store) {
    let make = Fixtures::new();
    let (project, other) = (make.project(), make.project());
    let first = make.template(&project);
    commit(store, insert(first.clone())).await;
    let named = |project| Template { name: first.name.clone(), ..make.template(project) };
    guards(store, Constraint::TemplateName, named(&project), named(&other)).await;
}

/// Instance names are unique in a project, whatever the template; another project may use them again.
pub async fn instance_name(store: &dyn Store) {
    let make = Fixtures::new();
    let (project, other) = (make.project(), make.project());
    let first = make.instance(&make.template(&project));
    commit(store, insert(first.clone())).await;
    let named = |project| Instance { name: first.name.clone(), ..make.instance(&make.template(project)) };
    guards(store, Constraint::InstanceName, named(&project), named(&other)).await;
}

/// Secret names are unique in a project; another project may use them again.
pub async fn secret_name(store: &dyn Store) {
    let make = Fixtures::new();
    let (project, other) = (make.project(), make.project());
    let first = make.secret(&project);
    commit(store, insert(first.clone())).await;
    let named = |project| Secret { name: first.name.clone(), ..make.secret(project) };
    guards(store, Constraint::SecretName, named(&project), named(&other)).await;
}

/// Two workers never share a name. They may share a key.
pub async fn worker_name(store: &dyn Store) {
    let make = Fixtures::new();
    let first = make.worker();
    commit(store, insert(first.clone())).await;
    let other = Worker { key: first.key, ..make.worker() };
    guards(store, Constraint::WorkerName, Worker { name: first.name.clone(), ..other.clone() }, other).await;
}

/// Two enrollment tokens never share a hash, used or not.
pub async fn enrollment_hash(store: &dyn Store) {
    let make = Fixtures::new();
    let first = Enrollment { used_at: Some(make.now()), ..make.enrollment() };
    commit(store, insert(first.clone())).await;
    let other = make.enrollment();
    guards(store, Constraint::EnrollmentHash, Enrollment { hash: first.hash, ..other.clone() }, other).await;
}

/// An instance has one state object.
pub async fn state_object_per_instance(store: &dyn Store) {
    let make = Fixtures::new();
    let template = make.template(&make.project());
    let (instance, other) = (make.instance(&template), make.instance(&template));
    commit(store, insert(make.state_object(&instance))).await;
    let second = StateObject { id: make.id(), ..make.state_object(&instance) };
    guards(store, Constraint::StateObjectPerInstance, second, make.state_object(&other)).await;
}

/// A plan has one promoted run that lives; when that one is over, in any terminal status, the plan may be
/// promoted again.
pub async fn live_promotion(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let (plan, other_plan) = (make.run(&instance), make.run(&instance));
    let mut holder = make.promotion(&instance, &plan);
    commit(store, insert(holder.clone())).await;
    commit(store, insert(make.promotion(&instance, &other_plan))).await;
    let mut version = 1;
    for status in RunStatus::ALL {
        holder.status = status;
        commit(store, update(version, holder.clone())).await;
        version += 1;
        let next = make.promotion(&instance, &plan);
        if status.is_terminal() {
            commit(store, insert(next.clone())).await;
            // The old one cannot come back to life beside the new one.
            let revived = Run { status: RunStatus::Queued, ..holder.clone() };
            refuses(store, Constraint::LivePromotion, update(version, revived)).await;
            (holder, version) = (next, 1);
        } else {
            refuses(store, Constraint::LivePromotion, insert(next)).await;
        }
    }
}

/// Runs that promote nothing do not stand in one another's way.
pub async fn runs_without_a_plan_are_not_promotions(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    commit(store, inserting((0..3).map(|_| make.run(&instance)))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constraint_has_a_story() {
        let stories = [include_str!("constraints.rs"), include_str!("attempts.rs")].concat();
        for constraint in Constraint::ALL {
            let told = stories.contains(&format!("Constraint::{constraint:?}"));
            assert!(told, "no story breaks {constraint:?}");
        }
    }
}
