//! More lists: what belongs to a project, a worker, a state object or a run.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Page, Select, Store};

use super::*;
use crate::fixtures::Fixtures;

/// Inserts records in an order that is not the list's, beside one that is not in the list, and requires that
/// the list is exactly this.
async fn lists(
    store: &dyn Store,
    select: Select,
    expected: Vec<impl Into<Record> + Clone>,
    elsewhere: Vec<impl Into<Record> + Clone>,
) {
    let expected: Vec<Record> = expected.into_iter().map(Into::into).collect();
    assert_eq!(listed(store, &select, &Page::all()).await, [], "{select:?}");
    let mut insertion: Vec<Record> = expected.clone();
    insertion.rotate_left(1);
    insertion.extend(elsewhere.into_iter().map(Into::into));
    commit(store, inserting(insertion)).await;
    assert_eq!(listed(store, &select, &Page::all()).await, expected, "{select:?}");
}

/// No records that the list must not contain.
const NOTHING_ELSE: Vec<Record> = vec![];

/// Every project, by id.
pub async fn projects_by_id(store: &dyn Store) {
    let make = Fixtures::new();
    let projects = (0..4).map(|_| make.project()).collect();
    lists(store, Select::Projects, projects, NOTHING_ELSE).await;
}

/// A project's tokens, by id, revoked ones too.
pub async fn tokens_of_a_project(store: &dyn Store) {
    let make = Fixtures::new();
    let project = make.project();
    let mut tokens: Vec<_> = (0..4).map(|_| make.token(&project)).collect();
    tokens[2].revoked_at = Some(make.now());
    lists(store, Select::Tokens(project.id), tokens, vec![make.token(&make.project())]).await;
}

/// A project's templates, by id.
pub async fn templates_of_a_project(store: &dyn Store) {
    let make = Fixtures::new();
    let project = make.project();
    let templates = (0..4).map(|_| make.template(&project)).collect();
    lists(store, Select::Templates(project.id), templates, vec![make.template(&make.project())]).await;
}

/// A template's versions, highest number first: 10 comes before 9.
pub async fn template_versions_newest_first(store: &dyn Store) {
    let make = Fixtures::new();
    let (template, other) = (make.template(&make.project()), make.template(&make.project()));
    let versions = (1..=12).rev().map(|version| make.template_version(&template, version)).collect();
    let foreign = vec![make.template_version(&other, 5)];
    lists(store, Select::TemplateVersions(template.id), versions, foreign).await;
}

/// A project's instances, by id, those that are torn down too.
pub async fn instances_of_a_project(store: &dyn Store) {
    let make = Fixtures::new();
    let template = make.template(&make.project());
    let mut instances: Vec<_> = (0..4).map(|_| make.instance(&template)).collect();
    instances[1].torn_down_by = Some(make.id());
    let foreign = vec![make.instance(&make.template(&make.project()))];
    lists(store, Select::Instances(template.project), instances, foreign).await;
}

/// A project's secrets, by id.
pub async fn secrets_of_a_project(store: &dyn Store) {
    let make = Fixtures::new();
    let project = make.project();
    let secrets = (0..4).map(|_| make.secret(&project)).collect();
    lists(store, Select::Secrets(project.id), secrets, vec![make.secret(&make.project())]).await;
}

/// Every worker, by id, whatever its condition.
pub async fn workers_by_id(store: &dyn Store) {
    let make = Fixtures::new();
    let mut workers: Vec<_> = (0..4).map(|_| make.worker()).collect();
    workers[0].disconnected = true;
    workers[3].draining = true;
    lists(store, Select::Workers, workers, NOTHING_ELSE).await;
}

/// Every worker's contact, by worker id.
pub async fn worker_contacts_by_worker(store: &dyn Store) {
    let make = Fixtures::new();
    let contacts = (0..4).map(|_| make.contact(&make.worker())).collect();
    lists(store, Select::WorkerContacts, contacts, NOTHING_ELSE).await;
}

/// A worker's keys, by id.
pub async fn keys_of_a_worker(store: &dyn Store) {
    let make = Fixtures::new();
    let worker = make.worker();
    let mut keys: Vec<_> = (0..4).map(|_| make.worker_key(&worker)).collect();
    keys[0].status = KeyStatus::Compromised;
    keys.sort_by_key(|it| it.id.to_string());
    lists(store, Select::WorkerKeys(worker.id), keys, vec![make.worker_key(&make.worker())]).await;
}

/// A state object's generations, highest first: 10 comes before 9.
pub async fn generations_newest_first(store: &dyn Store) {
    let make = Fixtures::new();
    let [object, other] = [0, 1].map(|_| make.state_object(&make.instance(&make.template(&make.project()))));
    let generations = (1..=12).rev().map(|generation| make.generation(&object, generation)).collect();
    lists(store, Select::Generations(object.id), generations, vec![make.generation(&other, 7)]).await;
}

/// A state object's orphans, by key.
pub async fn orphan_states_by_key(store: &dyn Store) {
    let make = Fixtures::new();
    let [object, other] = [0, 1].map(|_| make.state_object(&make.instance(&make.template(&make.project()))));
    let mut orphans: Vec<_> = (0..4).map(|_| make.orphan_state(&object)).collect();
    orphans.sort_by_key(Entity::key);
    lists(store, Select::OrphanStates(object.id), orphans, vec![make.orphan_state(&other)]).await;
}

/// A run's artifacts of all its attempts, by key.
pub async fn artifacts_of_a_run(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let (run, other) = (make.run(&instance), make.run(&instance));
    let attempts = [0, 1].map(|_| make.attempt(&run, &make.worker()));
    let kinds = [ArtifactKind::Plan, ArtifactKind::LockFile, ArtifactKind::PlanJson, ArtifactKind::PlanText];
    let mut artifacts: Vec<_> = kinds.map(|kind| make.artifact(&attempts[0], kind)).into();
    artifacts.push(make.artifact(&attempts[1], ArtifactKind::ErroredState));
    artifacts.sort_by_key(Entity::key);
    let foreign = vec![make.artifact(&make.attempt(&other, &make.worker()), ArtifactKind::Plan)];
    lists(store, Select::Artifacts(run.id), artifacts, foreign).await;
}

/// A run's late evidence, by id.
pub async fn late_evidence_of_a_run(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let (run, other) = (make.run(&instance), make.run(&instance));
    let attempt = make.attempt(&run, &make.worker());
    let evidence = (0..4).map(|_| make.late_evidence(&attempt)).collect();
    let foreign = vec![make.late_evidence(&make.attempt(&other, &make.worker()))];
    lists(store, Select::LateEvidence(run.id), evidence, foreign).await;
}
