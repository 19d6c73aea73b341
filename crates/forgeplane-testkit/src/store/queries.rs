//! Lookups: records found by something unique other than their key.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Lookup, Store, StoreExt as _};

use super::*;
use crate::fixtures::Fixtures;

/// Requires that the lookup finds exactly this record at this version.
async fn finds(store: &dyn Store, lookup: Lookup, record: impl Into<Record>, version: u64) {
    let found = store.find(&lookup).await.expect("the store answers");
    assert_eq!(found.map(|it| (it.value, it.version)), Some((record.into(), version)), "{lookup:?}");
}

/// Requires that the lookup finds nothing.
async fn finds_nothing(store: &dyn Store, lookup: Lookup) {
    assert_eq!(store.find(&lookup).await.expect("the store answers"), None, "{lookup:?}");
}

/// A project is found by its name.
pub async fn a_project_is_found_by_name(store: &dyn Store) {
    let make = Fixtures::new();
    let (project, other) = (make.project(), make.project());
    finds_nothing(store, Lookup::ProjectNamed(project.name.clone())).await;
    commit(store, inserting([project.clone(), other.clone()])).await;
    finds(store, Lookup::ProjectNamed(project.name.clone()), project, 1).await;
    finds(store, Lookup::ProjectNamed(other.name.clone()), other, 1).await;
}

/// A lookup finds the record as it is now, at its version, and not under its former name.
pub async fn a_lookup_sees_the_latest_version(store: &dyn Store) {
    let make = Fixtures::new();
    let project = make.project();
    let renamed = Project { name: make.name("renamed"), ..project.clone() };
    commit(store, insert(project.clone())).await;
    commit(store, update(1, renamed.clone())).await;
    finds_nothing(store, Lookup::ProjectNamed(project.name)).await;
    finds(store, Lookup::ProjectNamed(renamed.name.clone()), renamed, 2).await;
}

/// A name is found whole: no prefix, no pattern.
pub async fn a_name_is_found_whole(store: &dyn Store) {
    let make = Fixtures::new();
    let project = Project { name: "a_b".parse().unwrap(), ..make.project() };
    let like = Project { name: "axb".parse().unwrap(), ..make.project() };
    commit(store, inserting([project.clone(), like.clone()])).await;
    finds(store, Lookup::ProjectNamed("a_b".parse().unwrap()), project, 1).await;
    finds(store, Lookup::ProjectNamed("axb".parse().unwrap()), like, 1).await;
    for other in ["a", "a_", "a_b_", "a__b"] {
        finds_nothing(store, Lookup::ProjectNamed(other.parse().unwrap())).await;
    }
}

/// A token is found by its hash.
pub async fn a_token_is_found_by_hash(store: &dyn Store) {
    let make = Fixtures::new();
    let (token, other) = (make.token(&make.project()), make.token(&make.project()));
    commit(store, inserting([token.clone(), other])).await;
    finds(store, Lookup::TokenHash(token.hash), token, 1).await;
    finds_nothing(store, Lookup::TokenHash(make.digest())).await;
}

/// A template is found by its name in its project, and not in another.
pub async fn a_template_is_found_by_name_in_its_project(store: &dyn Store) {
    let make = Fixtures::new();
    let (project, other) = (make.project(), make.project());
    let template = make.template(&project);
    let named_alike = Template { name: template.name.clone(), ..make.template(&other) };
    commit(store, insert(template.clone())).await;
    finds_nothing(store, Lookup::TemplateNamed(other.id, template.name.clone())).await;
    commit(store, insert(named_alike.clone())).await;
    finds(store, Lookup::TemplateNamed(project.id, template.name.clone()), template.clone(), 1).await;
    finds(store, Lookup::TemplateNamed(other.id, template.name), named_alike, 1).await;
}

/// An instance is found by its name in its project, and not in another.
pub async fn an_instance_is_found_by_name_in_its_project(store: &dyn Store) {
    let make = Fixtures::new();
    let (project, other) = (make.project(), make.project());
    let instance = make.instance(&make.template(&project));
    let named_alike = Instance { name: instance.name.clone(), ..make.instance(&make.template(&other)) };
    commit(store, insert(instance.clone())).await;
    finds_nothing(store, Lookup::InstanceNamed(other.id, instance.name.clone())).await;
    commit(store, insert(named_alike.clone())).await;
    finds(store, Lookup::InstanceNamed(project.id, instance.name.clone()), instance.clone(), 1).await;
    finds(store, Lookup::InstanceNamed(other.id, instance.name), named_alike, 1).await;
}

/// A secret is found by its name in its project, and not in another.
pub async fn a_secret_is_found_by_name_in_its_project(store: &dyn Store) {
    let make = Fixtures::new();
    let (project, other) = (make.project(), make.project());
    let secret = make.secret(&project);
    let named_alike = Secret { name: secret.name.clone(), ..make.secret(&other) };
    commit(store, insert(secret.clone())).await;
    finds_nothing(store, Lookup::SecretNamed(other.id, secret.name.clone())).await;
    commit(store, insert(named_alike.clone())).await;
    finds(store, Lookup::SecretNamed(project.id, secret.name.clone()), secret.clone(), 1).await;
    finds(store, Lookup::SecretNamed(other.id, secret.name), named_alike, 1).await;
}

/// A worker is found by its name, and by its session until it has another one.
pub async fn a_worker_is_found_by_name_and_session(store: &dyn Store) {
    let make = Fixtures::new();
    let (worker, other) = (make.worker(), make.worker());
    commit(store, inserting([worker.clone(), other])).await;
    finds(store, Lookup::WorkerNamed(worker.name.clone()), worker.clone(), 1).await;
    finds(store, Lookup::WorkerSession(worker.session), worker.clone(), 1).await;
    let again = Worker { session: make.digest(), incarnation: 2, ..worker.clone() };
    commit(store, update(1, again.clone())).await;
    finds_nothing(store, Lookup::WorkerSession(worker.session)).await;
    finds(store, Lookup::WorkerSession(again.session), again.clone(), 2).await;
    finds(store, Lookup::WorkerNamed(worker.name), again, 2).await;
}

/// An enrollment token is found by its hash.
pub async fn an_enrollment_is_found_by_hash(store: &dyn Store) {
    let make = Fixtures::new();
    let (enrollment, other) = (make.enrollment(), make.enrollment());
    commit(store, inserting([enrollment.clone(), other])).await;
    finds(store, Lookup::EnrollmentHash(enrollment.hash), enrollment, 1).await;
    finds_nothing(store, Lookup::EnrollmentHash(make.digest())).await;
}

/// An attempt is found by its fence, also after it was closed.
pub async fn an_attempt_is_found_by_fence(store: &dyn Store) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let attempt = make.attempt(&run, &make.worker());
    commit(store, insert(attempt.clone())).await;
    finds(store, Lookup::AttemptFence(attempt.fence), attempt.clone(), 1).await;
    let closed = Attempt { state: AttemptState::Closed, ..attempt.clone() };
    commit(store, update(1, closed.clone())).await;
    finds(store, Lookup::AttemptFence(attempt.fence), closed, 2).await;
    for unknown in [Fence(attempt.fence.0 + 1_000_000), Fence(u64::MAX)] {
        finds_nothing(store, Lookup::AttemptFence(unknown)).await;
    }
}

/// The typed reads give what the untyped ones give.
pub async fn typed_reads_give_the_same_records(store: &dyn Store) {
    let make = Fixtures::new();
    let project = make.project();
    commit(store, insert(project.clone())).await;
    let read = store.get_as::<Project>(project.id).await.unwrap().expect("it was written");
    let found = store.find_as::<Project>(&Lookup::ProjectNamed(project.name.clone())).await.unwrap();
    assert_eq!((read.version, &read.value), (1, &project));
    assert_eq!(found, Some(read));
}
