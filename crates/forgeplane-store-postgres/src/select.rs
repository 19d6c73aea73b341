//! Every list and lookup as SQL.

use forgeplane_core::model::Kind;
use forgeplane_core::ports::{Lookup, Page, Select};

use crate::row::{Value, table};

/// A query for `version, doc` of records of one kind.
pub(crate) struct Query {
    pub(crate) kind: Kind,
    pub(crate) sql: String,
    pub(crate) values: Vec<Value>,
}

fn text(value: impl ToString) -> Value {
    Value::Text(Some(value.to_string()))
}

/// As the database counts; what it cannot count to is in no row.
fn whole(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// The query of a lookup.
pub(crate) fn lookup(lookup: &Lookup) -> Query {
    let (kind, filter, values) = match lookup {
        Lookup::ProjectNamed(name) => (Kind::Project, "name = $1", vec![text(name)]),
        Lookup::TokenHash(hash) => (Kind::Token, "hash = $1", vec![text(hash)]),
        Lookup::TemplateNamed(project, name) => {
            (Kind::Template, "project = $1 AND name = $2", vec![text(project), text(name)])
        }
        Lookup::InstanceNamed(project, name) => {
            (Kind::Instance, "project = $1 AND name = $2", vec![text(project), text(name)])
        }
        Lookup::SecretNamed(project, name) => {
            (Kind::Secret, "project = $1 AND name = $2", vec![text(project), text(name)])
        }
        Lookup::WorkerNamed(name) => (Kind::Worker, "name = $1", vec![text(name)]),
        Lookup::WorkerSession(hash) => (Kind::Worker, "session = $1", vec![text(hash)]),
        Lookup::EnrollmentHash(hash) => (Kind::Enrollment, "hash = $1", vec![text(hash)]),
        Lookup::AttemptFence(fence) => {
            (Kind::Attempt, "fence = $1", vec![Value::Number(Some(whole(fence.0)))])
        }
    };
    Query { kind, sql: format!("SELECT version, doc FROM {} WHERE {filter}", table(kind)), values }
}

/// The query of one record.
pub(crate) fn one(kind: Kind, id: &str) -> Query {
    Query {
        kind,
        sql: format!("SELECT version, doc FROM {} WHERE id = $1", table(kind)),
        values: vec![text(id)],
    }
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

/// A query under construction.
struct Draft {
    from: &'static str,
    filters: Vec<String>,
    values: Vec<Value>,
}

impl Draft {
    fn of(kind: Kind) -> Self {
        Self { from: table(kind), filters: Vec::new(), values: Vec::new() }
    }

    /// Runs, found by what changes of them.
    fn of_run_status() -> Self {
        Self { from: "run_status s JOIN run USING (id)", filters: Vec::new(), values: Vec::new() }
    }

    fn with(mut self, condition: &str, value: Value) -> Self {
        self.values.push(value);
        self.filters.push(format!("{condition} ${}", self.values.len()));
        self
    }

    /// A condition without a value: it must be the very predicate of a partial index.
    fn fixed(mut self, condition: &str) -> Self {
        self.filters.push(condition.to_owned());
        self
    }
}

/// The query of a list; `None` if the cursor is after nothing.
pub(crate) fn select(select: &Select, page: &Page) -> Option<Query> {
    use Order::{Newest, Numbers, Oldest, Queue};
    let by_project = |kind, project: &_| (kind, Draft::of(kind).with("project =", text(project)), Oldest);
    let (kind, mut draft, order) = match select {
        Select::Runs { project, status: None, instance } => {
            let mut draft = Draft::of(Kind::Run).with("project =", text(project));
            if let Some(instance) = instance {
                draft = draft.with("instance =", text(instance));
            }
            (Kind::Run, draft, Newest)
        }
        Select::Runs { project, status: Some(status), instance } => {
            let mut draft =
                Draft::of_run_status().with("s.project =", text(project)).with("s.status =", text(status));
            if let Some(instance) = instance {
                draft = draft.with("instance =", text(instance));
            }
            (Kind::Run, draft, Newest)
        }
        Select::QueuedRuns => (Kind::Run, Draft::of_run_status().fixed("s.status = 'queued'"), Queue),
        Select::RunsPendingApproval => {
            (Kind::Run, Draft::of_run_status().fixed("s.status = 'pending_approval'"), Oldest)
        }
        Select::Attempts(run) => (Kind::Attempt, Draft::of(Kind::Attempt).with("run =", text(run)), Oldest),
        Select::OpenAttempts => (Kind::Attempt, Draft::of(Kind::Attempt).fixed("open"), Oldest),
        Select::OpenAttemptsOf(worker) => {
            (Kind::Attempt, Draft::of(Kind::Attempt).fixed("open").with("worker =", text(worker)), Oldest)
        }
        Select::Projects => (Kind::Project, Draft::of(Kind::Project), Oldest),
        Select::Tokens(project) => by_project(Kind::Token, project),
        Select::Templates(project) => by_project(Kind::Template, project),
        Select::TemplateVersions(template) => {
            let draft = Draft::of(Kind::TemplateVersion).with("template =", text(template));
            (Kind::TemplateVersion, draft, Numbers("number"))
        }
        Select::Instances(project) => by_project(Kind::Instance, project),
        Select::Approvals { project, status } => {
            let mut draft = Draft::of(Kind::Approval).with("project =", text(project));
            if let Some(status) = status {
                draft = draft.with("status =", text(status.as_str()));
            }
            (Kind::Approval, draft, Newest)
        }
        Select::Workers => (Kind::Worker, Draft::of(Kind::Worker), Oldest),
        Select::WorkerContacts => (Kind::WorkerContact, Draft::of(Kind::WorkerContact), Oldest),
        Select::WorkerKeys(worker) => {
            (Kind::WorkerKey, Draft::of(Kind::WorkerKey).with("worker =", text(worker)), Oldest)
        }
        Select::Generations(object) => {
            let draft = Draft::of(Kind::StateGeneration).with("object =", text(object));
            (Kind::StateGeneration, draft, Numbers("generation"))
        }
        Select::OrphanStates(object) => {
            (Kind::OrphanState, Draft::of(Kind::OrphanState).with("object =", text(object)), Oldest)
        }
        Select::Artifacts(run) => {
            (Kind::Artifact, Draft::of(Kind::Artifact).with("run =", text(run)), Oldest)
        }
        Select::Secrets(project) => by_project(Kind::Secret, project),
        Select::LateEvidence(run) => {
            (Kind::LateEvidence, Draft::of(Kind::LateEvidence).with("run =", text(run)), Oldest)
        }
    };
    let order_by = match order {
        Oldest => {
            if let Some(after) = &page.after {
                draft = draft.with("id >", text(after));
            }
            "id".to_owned()
        }
        Newest => {
            if let Some(after) = &page.after {
                draft = draft.with("id <", text(after));
            }
            "id DESC".to_owned()
        }
        Numbers(column) => {
            if let Some(after) = &page.after {
                draft = draft.with(&format!("{column} <"), Value::Number(Some(after.parse().ok()?)));
            }
            format!("{column} DESC")
        }
        Queue => "s.priority DESC, s.queued_at, id".to_owned(),
    };
    let filter = if draft.filters.is_empty() {
        String::new()
    } else {
        format!(" WHERE {}", draft.filters.join(" AND "))
    };
    draft.values.push(Value::Number(Some(whole(page.limit))));
    let limit = draft.values.len();
    Some(Query {
        kind,
        sql: format!("SELECT version, doc FROM {}{filter} ORDER BY {order_by} LIMIT ${limit}", draft.from),
        values: draft.values,
    })
}
