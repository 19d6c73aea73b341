//! Paging: a reader that follows the cursor sees every record once, whatever is written meanwhile.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Page, Select, Store};

use super::*;
use crate::fixtures::Fixtures;

/// The cursor after a record: its id, or its number where the list is one of numbers.
fn cursor(record: &Record) -> String {
    match record {
        Record::TemplateVersion(it) => it.version.to_string(),
        Record::StateGeneration(it) => it.generation.to_string(),
        other => other.key().id,
    }
}

/// A page of at most `limit` records after `seen`.
async fn page_after(store: &dyn Store, select: &Select, seen: Option<&Record>, limit: usize) -> Vec<Record> {
    listed(store, select, &Page { after: seen.map(cursor), limit }).await
}

/// Requires that pages of every size together are the whole list, and that limits and cursors at its ends hold.
async fn pages_are_the_list(store: &dyn Store, select: Select) {
    let all = listed(store, &select, &Page::all()).await;
    assert!(all.len() >= 3, "{select:?} has too few records to be paged");
    for limit in 1..=all.len() + 1 {
        let mut read: Vec<Record> = vec![];
        loop {
            let page = page_after(store, &select, read.last(), limit).await;
            assert!(page.len() <= limit, "{select:?} gave {} for {limit}", page.len());
            if page.is_empty() {
                break;
            }
            read.extend(page);
            assert!(read.len() <= all.len(), "{select:?} repeats records");
        }
        assert_eq!(read, all, "{select:?} in pages of {limit}");
    }
    assert_eq!(listed(store, &select, &Page::first(2)).await, all[..2], "{select:?}");
    assert_eq!(listed(store, &select, &Page::first(0)).await, [], "{select:?}");
}

/// Every pageable list can be read in pages.
pub async fn every_list_can_be_read_in_pages(store: &dyn Store) {
    let make = Fixtures::new();
    let (project, worker) = (make.project(), make.worker());
    let template = make.template(&project);
    let instance = make.instance(&template);
    let object = make.state_object(&instance);
    let (run, run_of_attempts) = (make.run(&instance), make.run(&instance));
    let attempt = make.attempt(&run, &make.worker());
    let mut records: Vec<Record> =
        vec![project.clone().into(), template.clone().into(), instance.clone().into(), run.clone().into()];
    for number in 1..=11 {
        let open = make.attempt(&make.run(&instance), &make.worker());
        let of_run = make.closed(&Attempt { number, ..make.attempt(&run_of_attempts, &worker) });
        records.extend::<[Record; 17]>([
            make.run(&instance).into(),
            Run { status: RunStatus::PendingApproval, ..make.run(&instance) }.into(),
            open.into(),
            of_run.into(),
            make.project().into(),
            make.token(&project).into(),
            make.template(&project).into(),
            make.template_version(&template, number).into(),
            make.instance(&template).into(),
            make.approval(&run).into(),
            make.worker().into(),
            make.contact(&make.worker()).into(),
            make.worker_key(&worker).into(),
            make.generation(&object, number.into()).into(),
            make.orphan_state(&object).into(),
            make.secret(&project).into(),
            make.late_evidence(&attempt).into(),
        ]);
    }
    let kinds = [
        ArtifactKind::Plan,
        ArtifactKind::PlanJson,
        ArtifactKind::PlanText,
        ArtifactKind::LockFile,
        ArtifactKind::ErroredState,
    ];
    records.extend(kinds.map(|kind| make.artifact(&attempt, kind).into()));
    commit(store, inserting(records)).await;

    let project = project.id;
    for select in [
        Select::Runs { project, status: None, instance: None },
        Select::Runs { project, status: Some(RunStatus::Queued), instance: None },
        Select::Runs { project, status: None, instance: Some(instance.id) },
        Select::Runs { project, status: Some(RunStatus::PendingApproval), instance: Some(instance.id) },
        Select::RunsPendingApproval,
        Select::Attempts(run_of_attempts.id),
        Select::OpenAttempts,
        Select::Projects,
        Select::Tokens(project),
        Select::Templates(project),
        Select::TemplateVersions(template.id),
        Select::Instances(project),
        Select::Approvals { project, status: None },
        Select::Approvals { project, status: Some(ApprovalStatus::Pending) },
        Select::Workers,
        Select::WorkerContacts,
        Select::WorkerKeys(worker.id),
        Select::Generations(object.id),
        Select::OrphanStates(object.id),
        Select::Artifacts(run.id),
        Select::Secrets(project),
        Select::LateEvidence(run.id),
    ] {
        pages_are_the_list(store, select).await;
    }
}

/// New runs come before the first page; a reader in the middle neither misses nor repeats one.
pub async fn a_cursor_is_stable_while_newer_records_arrive(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let old: Vec<Run> = (0..6).map(|_| make.run(&instance)).collect();
    commit(store, inserting(old.clone())).await;
    let select = Select::Runs { project: instance.project, status: None, instance: None };
    let mut read: Vec<Record> = vec![];
    while read.len() < old.len() {
        read.extend(page_after(store, &select, read.last(), 2).await);
        commit(store, insert(make.run(&instance))).await;
    }
    let expected: Vec<Record> = old.into_iter().rev().map(Into::into).collect();
    assert_eq!(read, expected);
    assert_eq!(page_after(store, &select, read.last(), 2).await, []);
}

/// In a list from old to new, a reader that goes on finds what arrived after its last page.
pub async fn a_reader_of_an_ascending_list_finds_what_arrived_later(store: &dyn Store) {
    let make = Fixtures::new();
    let project = make.project();
    let first: Vec<Token> = (0..3).map(|_| make.token(&project)).collect();
    commit(store, inserting(first)).await;
    let select = Select::Tokens(project.id);
    let page = page_after(store, &select, None, 10).await;
    assert_eq!(page_after(store, &select, page.last(), 10).await, []);
    let late = make.token(&project);
    commit(store, insert(late.clone())).await;
    assert_eq!(page_after(store, &select, page.last(), 10).await, [late.into()]);
}

/// A cursor is a place, not a record: the record itself may have left the list.
pub async fn a_cursor_holds_after_its_record_left_the_list(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let runs: Vec<Run> = (0..4).map(|_| make.run(&instance)).collect();
    commit(store, inserting(runs.clone())).await;
    let select = Select::Runs { project: instance.project, status: Some(RunStatus::Queued), instance: None };
    let page = page_after(store, &select, None, 2).await;
    commit(store, update(1, Run { status: RunStatus::Running, ..runs[2].clone() })).await;
    let rest = page_after(store, &select, page.last(), 2).await;
    assert_eq!(rest, [runs[1].clone().into(), runs[0].clone().into()]);
}

/// A cursor that is no number is after nothing in a list of numbers, and no error.
pub async fn a_cursor_that_is_no_number_is_after_nothing(store: &dyn Store) {
    let make = Fixtures::new();
    let template = make.template(&make.project());
    commit(store, insert(make.template_version(&template, 1))).await;
    for after in ["", "one", "1; DROP TABLE template_version", "-"] {
        let page = Page { after: Some(after.to_owned()), limit: 10 };
        assert_eq!(listed(store, &Select::TemplateVersions(template.id), &page).await, [], "{after:?}");
    }
}
