//! What each [`Lookup`] and [`Select`] means.

use std::cmp::Reverse;

use super::store::Content;
use crate::model::*;
use crate::ports::{Lookup, Page, Select};

type Found = Versioned<Record>;

pub(super) fn find(content: &Content, lookup: &Lookup) -> Option<Found> {
    let first = |kind, wanted: &dyn Fn(&Record) -> bool| {
        content.of_kind(kind).map(|(_, it)| it).find(|it| wanted(&it.value)).cloned()
    };
    match lookup {
        Lookup::ProjectNamed(name) => {
            first(Kind::Project, &|it| matches!(it, Record::Project(it) if it.name == *name))
        }
        Lookup::TokenHash(hash) => {
            first(Kind::Token, &|it| matches!(it, Record::Token(it) if it.hash == *hash))
        }
        Lookup::TemplateNamed(project, name) => first(
            Kind::Template,
            &|it| matches!(it, Record::Template(it) if it.project == *project && it.name == *name),
        ),
        Lookup::InstanceNamed(project, name) => first(
            Kind::Instance,
            &|it| matches!(it, Record::Instance(it) if it.project == *project && it.name == *name),
        ),
        Lookup::SecretNamed(project, name) => first(
            Kind::Secret,
            &|it| matches!(it, Record::Secret(it) if it.project == *project && it.name == *name),
        ),
        Lookup::WorkerNamed(name) => {
            first(Kind::Worker, &|it| matches!(it, Record::Worker(it) if it.name == *name))
        }
        Lookup::WorkerSession(session) => {
            first(Kind::Worker, &|it| matches!(it, Record::Worker(it) if it.session == *session))
        }
        Lookup::EnrollmentHash(hash) => {
            first(Kind::Enrollment, &|it| matches!(it, Record::Enrollment(it) if it.hash == *hash))
        }
        Lookup::AttemptFence(fence) => {
            first(Kind::Attempt, &|it| matches!(it, Record::Attempt(it) if it.fence == *fence))
        }
    }
}

pub(super) fn list(content: &Content, select: &Select, page: &Page) -> Vec<Found> {
    let List { kind, wanted, order } = meaning(select);
    let records = content.of_kind(kind).filter(|(_, it)| wanted(&it.value));
    let after = page.after.as_deref();
    match order {
        Order::Oldest => records
            .filter(|(id, _)| after.is_none_or(|after| *id > after))
            .take(page.limit)
            .map(take)
            .collect(),
        Order::Newest => records
            .rev()
            .filter(|(id, _)| after.is_none_or(|after| *id < after))
            .take(page.limit)
            .map(take)
            .collect(),
        Order::Numbers(number) => {
            // A cursor that is not a number is after nothing.
            let Ok(below) = after.map(str::parse).transpose() else { return vec![] };
            let mut found: Vec<_> = records
                .filter(|(_, it)| below.is_none_or(|below: u64| number(&it.value) < below))
                .map(take)
                .collect();
            found.sort_by_key(|it| Reverse(number(&it.value)));
            found.truncate(page.limit);
            found
        }
        Order::Queue => {
            let mut found: Vec<_> = records.map(take).collect();
            found.sort_by_key(|it| place_in_queue(&it.value));
            found.truncate(page.limit);
            found
        }
    }
}

fn take((_, record): (&str, &Found)) -> Found {
    record.clone()
}

/// A list: the records of one kind that are wanted, in some order.
struct List<'a> {
    kind: Kind,
    wanted: Box<dyn Fn(&Record) -> bool + 'a>,
    order: Order,
}

enum Order {
    /// By key, upwards.
    Oldest,
    /// By key, downwards.
    Newest,
    /// By a number in the record, downwards; it is also the cursor.
    Numbers(fn(&Record) -> u64),
    /// As the scheduler takes them. Not pageable.
    Queue,
}

fn meaning(select: &Select) -> List<'_> {
    fn list<'a>(kind: Kind, order: Order, wanted: impl Fn(&Record) -> bool + 'a) -> List<'a> {
        List { kind, order, wanted: Box::new(wanted) }
    }
    match select {
        Select::Runs { project, status, instance } => list(Kind::Run, Order::Newest, move |it| {
            matches!(it, Record::Run(it) if it.project == *project
                && status.is_none_or(|status| it.status == status)
                && instance.is_none_or(|instance| it.instance == instance))
        }),
        Select::QueuedRuns => list(
            Kind::Run,
            Order::Queue,
            |it| matches!(it, Record::Run(it) if it.status == RunStatus::Queued),
        ),
        Select::RunsPendingApproval => list(
            Kind::Run,
            Order::Oldest,
            |it| matches!(it, Record::Run(it) if it.status == RunStatus::PendingApproval),
        ),
        Select::Attempts(run) => {
            list(Kind::Attempt, Order::Oldest, move |it| matches!(it, Record::Attempt(it) if it.run == *run))
        }
        Select::OpenAttempts => {
            list(Kind::Attempt, Order::Oldest, |it| matches!(it, Record::Attempt(it) if it.is_open()))
        }
        Select::OpenAttemptsOf(worker) => list(
            Kind::Attempt,
            Order::Oldest,
            move |it| matches!(it, Record::Attempt(it) if it.is_open() && it.worker == *worker),
        ),
        Select::Projects => list(Kind::Project, Order::Oldest, |_| true),
        Select::Tokens(project) => list(
            Kind::Token,
            Order::Oldest,
            move |it| matches!(it, Record::Token(it) if it.project == *project),
        ),
        Select::Templates(project) => list(
            Kind::Template,
            Order::Oldest,
            move |it| matches!(it, Record::Template(it) if it.project == *project),
        ),
        Select::TemplateVersions(template) => list(
            Kind::TemplateVersion,
            Order::Numbers(number),
            move |it| matches!(it, Record::TemplateVersion(it) if it.template == *template),
        ),
        Select::Instances(project) => list(
            Kind::Instance,
            Order::Oldest,
            move |it| matches!(it, Record::Instance(it) if it.project == *project),
        ),
        Select::Approvals { project, status } => list(Kind::Approval, Order::Newest, move |it| {
            matches!(it, Record::Approval(it) if it.project == *project
                && status.is_none_or(|status| it.status == status))
        }),
        Select::Workers => list(Kind::Worker, Order::Oldest, |_| true),
        Select::WorkerContacts => list(Kind::WorkerContact, Order::Oldest, |_| true),
        Select::WorkerKeys(worker) => list(
            Kind::WorkerKey,
            Order::Oldest,
            move |it| matches!(it, Record::WorkerKey(it) if it.worker == *worker),
        ),
        Select::Generations(object) => list(
            Kind::StateGeneration,
            Order::Numbers(number),
            move |it| matches!(it, Record::StateGeneration(it) if it.object == *object),
        ),
        Select::OrphanStates(object) => list(
            Kind::OrphanState,
            Order::Oldest,
            move |it| matches!(it, Record::OrphanState(it) if it.object == *object),
        ),
        Select::Artifacts(run) => list(
            Kind::Artifact,
            Order::Oldest,
            move |it| matches!(it, Record::Artifact(it) if it.run == *run),
        ),
        Select::Secrets(project) => list(
            Kind::Secret,
            Order::Oldest,
            move |it| matches!(it, Record::Secret(it) if it.project == *project),
        ),
        Select::LateEvidence(run) => list(
            Kind::LateEvidence,
            Order::Oldest,
            move |it| matches!(it, Record::LateEvidence(it) if it.run == *run),
        ),
    }
}

fn number(record: &Record) -> u64 {
    match record {
        Record::TemplateVersion(it) => u64::from(it.version),
        Record::StateGeneration(it) => it.generation,
        _ => 0,
    }
}

/// Highest priority, then longest waiting (to the microsecond, which every database can keep), then lowest id.
fn place_in_queue(record: &Record) -> impl Ord + use<> {
    match record {
        Record::Run(it) => (Reverse(it.priority), it.queued_at.map(|at| at.as_microsecond()), Some(it.id)),
        _ => (Reverse(i32::MIN), None, None),
    }
}
