//! Every list and lookup as SQL.

use forgeplane_core::model::Kind;
use forgeplane_core::ports::{Lookup, Page, Select};
use rusqlite::types::Value;

use crate::row::table;

/// A query for `version, doc` of records of one kind.
pub(crate) struct Query {
    pub(crate) kind: Kind,
    pub(crate) sql: String,
    pub(crate) values: Vec<Value>,
}

fn text(value: impl ToString) -> Value {
    Value::Text(value.to_string())
}

/// As the database counts; what it cannot count to is in no row.
fn whole(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// The query of a lookup.
pub(crate) fn lookup(lookup: &Lookup) -> Query {
    let (kind, filter, values) = match lookup {
        Lookup::ProjectNamed(name) => (Kind::Project, "name = ?", vec![text(name)]),
        Lookup::TokenHash(hash) => (Kind::Token, "hash = ?", vec![text(hash)]),
        Lookup::TemplateNamed(project, name) => {
            (Kind::Template, "project = ? AND name = ?", vec![text(project), text(name)])
        }
        Lookup::InstanceNamed(project, name) => {
            (Kind::Instance, "project = ? AND name = ?", vec![text(project), text(name)])
        }
        Lookup::SecretNamed(project, name) => {
            (Kind::Secret, "project = ? AND name = ?", vec![text(project), text(name)])
        }
        Lookup::WorkerNamed(name) => (Kind::Worker, "name = ?", vec![text(name)]),
        Lookup::WorkerSession(hash) => (Kind::Worker, "session = ?", vec![text(hash)]),
        Lookup::EnrollmentHash(hash) => (Kind::Enrollment, "hash = ?", vec![text(hash)]),
        Lookup::AttemptFence(fence) => (Kind::Attempt, "fence = ?", vec![Value::Integer(whole(fence.0))]),
    };
    Query { kind, sql: format!("SELECT version, doc FROM {} WHERE {filter}", table(kind)), values }
}

/// How a list is ordered, and what its cursor is.
enum Order {
    /// By id, upwards.
    Oldest,
    /// By id, downwards.
    Newest,
    /// By a number, downwards.
    Numbers(&'static str),
    /// As the scheduler takes them; not pageable.
    Queue,
}

/// The query of a list; `None` if the cursor is after nothing.
pub(crate) fn select(select: &Select, page: &Page) -> Option<Query> {
    use Order::{Newest, Numbers, Oldest, Queue};
    let (kind, mut filters, mut values, order) = match select {
        Select::Runs { project, status, instance } => {
            let (mut filters, mut values) = (vec!["project = ?"], vec![text(project)]);
            if let Some(status) = status {
                filters.push("status = ?");
                values.push(text(status));
            }
            if let Some(instance) = instance {
                filters.push("instance = ?");
                values.push(text(instance));
            }
            (Kind::Run, filters, values, Newest)
        }
        Select::QueuedRuns => (Kind::Run, vec!["status = 'queued'"], vec![], Queue),
        Select::RunsPendingApproval => (Kind::Run, vec!["status = 'pending_approval'"], vec![], Oldest),
        Select::Attempts(run) => (Kind::Attempt, vec!["run = ?"], vec![text(run)], Oldest),
        Select::OpenAttempts => (Kind::Attempt, vec!["state <> 'closed'"], vec![], Oldest),
        Select::OpenAttemptsOf(worker) => {
            (Kind::Attempt, vec!["state <> 'closed'", "worker = ?"], vec![text(worker)], Oldest)
        }
        Select::Projects => (Kind::Project, vec![], vec![], Oldest),
        Select::Tokens(project) => (Kind::Token, vec!["project = ?"], vec![text(project)], Oldest),
        Select::Templates(project) => (Kind::Template, vec!["project = ?"], vec![text(project)], Oldest),
        Select::TemplateVersions(template) => {
            (Kind::TemplateVersion, vec!["template = ?"], vec![text(template)], Numbers("number"))
        }
        Select::Instances(project) => (Kind::Instance, vec!["project = ?"], vec![text(project)], Oldest),
        Select::Approvals { project, status } => {
            let (mut filters, mut values) = (vec!["project = ?"], vec![text(project)]);
            if let Some(status) = status {
                filters.push("status = ?");
                values.push(text(status.as_str()));
            }
            (Kind::Approval, filters, values, Newest)
        }
        Select::Workers => (Kind::Worker, vec![], vec![], Oldest),
        Select::WorkerContacts => (Kind::WorkerContact, vec![], vec![], Oldest),
        Select::WorkerKeys(worker) => (Kind::WorkerKey, vec!["worker = ?"], vec![text(worker)], Oldest),
        Select::Generations(object) => {
            (Kind::StateGeneration, vec!["object = ?"], vec![text(object)], Numbers("generation"))
        }
        Select::OrphanStates(object) => (Kind::OrphanState, vec!["object = ?"], vec![text(object)], Oldest),
        Select::Artifacts(run) => (Kind::Artifact, vec!["run = ?"], vec![text(run)], Oldest),
        Select::Secrets(project) => (Kind::Secret, vec!["project = ?"], vec![text(project)], Oldest),
        Select::LateEvidence(run) => (Kind::LateEvidence, vec!["run = ?"], vec![text(run)], Oldest),
    };
    let order_by = match order {
        Oldest => {
            if let Some(after) = &page.after {
                filters.push("id > ?");
                values.push(text(after));
            }
            "id".to_owned()
        }
        Newest => {
            if let Some(after) = &page.after {
                filters.push("id < ?");
                values.push(text(after));
            }
            "id DESC".to_owned()
        }
        Numbers(column) => {
            if let Some(after) = &page.after {
                filters.push(if column == "number" { "number < ?" } else { "generation < ?" });
                values.push(Value::Integer(after.parse().ok()?));
            }
            format!("{column} DESC")
        }
        Queue => "priority DESC, queued_at, id".to_owned(),
    };
    let filter = if filters.is_empty() { String::new() } else { format!(" WHERE {}", filters.join(" AND ")) };
    values.push(Value::Integer(whole(page.limit)));
    Some(Query {
        kind,
        sql: format!("SELECT version, doc FROM {}{filter} ORDER BY {order_by} LIMIT ?", table(kind)),
        values,
    })
}
