//! Records as rows and back.

use bytes::Bytes;
use forgeplane_core::Timestamp;
use forgeplane_core::model::*;
use forgeplane_core::ports::StoreError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

/// A column's value.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Text(Option<String>),
    Number(Option<i64>),
    Flag(bool),
    Bytes(Vec<u8>),
}

/// A record as a row: its id and every other column but `version`.
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) columns: Vec<(&'static str, Value)>,
}

/// The table of a kind.
pub(crate) const fn table(kind: Kind) -> &'static str {
    match kind {
        Kind::Project => "project",
        Kind::Token => "token",
        Kind::Template => "template",
        Kind::TemplateVersion => "template_version",
        Kind::Instance => "instance",
        Kind::Run => "run",
        Kind::Snapshot => "snapshot",
        Kind::Attempt => "attempt",
        Kind::Approval => "approval",
        Kind::Worker => "worker",
        Kind::WorkerContact => "worker_contact",
        Kind::WorkerKey => "worker_key",
        Kind::Enrollment => "enrollment",
        Kind::StateObject => "state_object",
        Kind::StateGeneration => "state_generation",
        Kind::OrphanState => "orphan_state",
        Kind::Artifact => "artifact",
        Kind::PlanArtifact => "plan_artifact",
        Kind::Secret => "secret",
        Kind::Receipt => "receipt",
        Kind::LateEvidence => "late_evidence",
        Kind::OperatorDecision => "operator_decision",
        Kind::Idempotency => "idempotency",
        Kind::LogChunk => "log_chunk",
    }
}

/// A record that cannot be stored or read back.
pub(crate) fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Unusable(Box::new(error))
}

fn text(value: impl ToString) -> Value {
    Value::Text(Some(value.to_string()))
}

fn optional(value: Option<impl ToString>) -> Value {
    Value::Text(value.map(|v| v.to_string()))
}

fn number(value: u64) -> Result<Value, StoreError> {
    i64::try_from(value).map(|n| Value::Number(Some(n))).map_err(unusable)
}

fn document<T: Serialize>(record: &T) -> Result<Value, StoreError> {
    serde_json::to_string(record).map(|doc| Value::Text(Some(doc))).map_err(unusable)
}

/// The row of a record in the table of its kind.
pub(crate) fn row(record: &Record) -> Result<Row, StoreError> {
    let (mut columns, doc) = match record {
        Record::Project(it) => (vec![("name", text(&it.name))], document(it)?),
        Record::Token(it) => (vec![("project", text(it.project)), ("hash", text(it.hash))], document(it)?),
        Record::Template(it) => {
            (vec![("project", text(it.project)), ("name", text(&it.name))], document(it)?)
        }
        Record::TemplateVersion(it) => {
            (vec![("template", text(it.template)), ("number", number(it.version.into())?)], document(it)?)
        }
        Record::Instance(it) => {
            (vec![("project", text(it.project)), ("name", text(&it.name))], document(it)?)
        }
        Record::Run(it) => {
            (vec![("project", text(it.project)), ("instance", text(it.instance))], document(it)?)
        }
        Record::Attempt(it) => (
            vec![
                ("run", text(it.run)),
                ("number", number(it.number.into())?),
                ("fence", number(it.fence.0)?),
                ("worker", text(it.worker)),
                ("slot", number(it.slot.into())?),
                ("open", Value::Flag(it.is_open())),
                ("exclusive", optional(it.exclusive)),
            ],
            document(it)?,
        ),
        Record::Approval(it) => {
            (vec![("project", text(it.project)), ("status", text(it.status.as_str()))], document(it)?)
        }
        Record::Worker(it) => (vec![("name", text(&it.name)), ("session", text(it.session))], document(it)?),
        Record::WorkerKey(it) => (vec![("worker", text(it.worker))], document(it)?),
        Record::Enrollment(it) => (vec![("hash", text(it.hash))], document(it)?),
        Record::StateObject(it) => (vec![("instance", text(it.instance))], document(it)?),
        Record::StateGeneration(it) => {
            (vec![("object", text(it.object)), ("generation", number(it.generation)?)], document(it)?)
        }
        Record::OrphanState(it) => (vec![("object", text(it.object))], document(it)?),
        Record::Artifact(it) => (vec![("run", text(it.run))], document(it)?),
        Record::Secret(it) => (vec![("project", text(it.project)), ("name", text(&it.name))], document(it)?),
        Record::LateEvidence(it) => (vec![("run", text(it.run))], document(it)?),
        Record::Snapshot(it) => (vec![], document(it)?),
        Record::WorkerContact(it) => (vec![], document(it)?),
        Record::PlanArtifact(it) => (vec![], document(it)?),
        Record::Receipt(it) => (vec![], document(it)?),
        Record::OperatorDecision(it) => (vec![], document(it)?),
        Record::Idempotency(it) => (vec![], document(it)?),
        Record::LogChunk(it) => return log_row(it),
    };
    columns.push(("doc", doc));
    Ok(Row { id: record.key().id, columns })
}

/// A log chunk has no document, and its id is in two columns.
fn log_row(chunk: &LogChunk) -> Result<Row, StoreError> {
    Ok(Row {
        id: format!("{}/{}", chunk.attempt, chunk.offset),
        columns: vec![
            ("attempt", text(chunk.attempt)),
            ("start", number(chunk.offset)?),
            ("run", text(chunk.run)),
            ("project", text(chunk.project)),
            ("stream", text(chunk.frame.stream.as_str())),
            ("at", Value::Number(Some(chunk.frame.at.as_microsecond()))),
            ("bytes", Value::Bytes(chunk.frame.bytes.to_vec())),
        ],
    })
}

/// The row of a run in `run_status`.
pub(crate) fn status_row(run: &Run) -> Row {
    Row {
        id: run.id.to_string(),
        columns: vec![
            ("project", text(run.project)),
            ("status", text(run.status)),
            ("priority", Value::Number(Some(run.priority.into()))),
            ("queued_at", Value::Number(run.queued_at.map(Timestamp::as_microsecond))),
            ("plan_run", optional(run.plan.as_ref().map(|p| p.run))),
        ],
    }
}

/// The record of a document.
pub(crate) fn record(kind: Kind, doc: &str) -> Result<Record, StoreError> {
    fn read<T: DeserializeOwned + Into<Record>>(doc: &str) -> Result<Record, StoreError> {
        serde_json::from_str::<T>(doc).map(Into::into).map_err(unusable)
    }
    match kind {
        Kind::Project => read::<Project>(doc),
        Kind::Token => read::<Token>(doc),
        Kind::Template => read::<Template>(doc),
        Kind::TemplateVersion => read::<TemplateVersion>(doc),
        Kind::Instance => read::<Instance>(doc),
        Kind::Run => read::<Run>(doc),
        Kind::Snapshot => read::<Snapshot>(doc),
        Kind::Attempt => read::<Attempt>(doc),
        Kind::Approval => read::<Approval>(doc),
        Kind::Worker => read::<Worker>(doc),
        Kind::WorkerContact => read::<WorkerContact>(doc),
        Kind::WorkerKey => read::<WorkerKey>(doc),
        Kind::Enrollment => read::<Enrollment>(doc),
        Kind::StateObject => read::<StateObject>(doc),
        Kind::StateGeneration => read::<StateGeneration>(doc),
        Kind::OrphanState => read::<OrphanState>(doc),
        Kind::Artifact => read::<Artifact>(doc),
        Kind::PlanArtifact => read::<PlanArtifact>(doc),
        Kind::Secret => read::<Secret>(doc),
        Kind::Receipt => read::<Receipt>(doc),
        Kind::LateEvidence => read::<LateEvidence>(doc),
        Kind::OperatorDecision => read::<OperatorDecision>(doc),
        Kind::Idempotency => read::<Idempotency>(doc),
        Kind::LogChunk => read::<LogChunk>(doc),
    }
}

/// The columns of a log chunk, as read by [`log_chunk`].
pub(crate) const LOG_COLUMNS: &str = "attempt, start, run, project, stream, at, bytes";

/// Reads a log chunk.
pub(crate) fn log_chunk(row: &PgRow) -> Result<LogChunk, StoreError> {
    let get = |index: usize| row.try_get::<String, _>(index).map_err(unusable);
    let stream = match get(4)?.as_str() {
        "stdout" => LogStream::Stdout,
        "stderr" => LogStream::Stderr,
        _ => LogStream::Worker,
    };
    Ok(LogChunk {
        attempt: get(0)?.parse().map_err(unusable)?,
        offset: u64::try_from(row.try_get::<i64, _>(1).map_err(unusable)?).map_err(unusable)?,
        run: get(2)?.parse().map_err(unusable)?,
        project: get(3)?.parse().map_err(unusable)?,
        frame: LogFrame {
            stream,
            at: Timestamp::from_microsecond(row.try_get(5).map_err(unusable)?).map_err(unusable)?,
            bytes: Bytes::from(row.try_get::<Vec<u8>, _>(6).map_err(unusable)?),
        },
    })
}
