//! Records as rows and back.

use bytes::Bytes;
use forgeplane_core::Timestamp;
use forgeplane_core::model::*;
use forgeplane_core::ports::StoreError;
use rusqlite::types::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A record as a row: table, key columns first, then the others.
pub(crate) struct Row {
    pub(crate) table: &'static str,
    /// Columns of the primary key with their values.
    pub(crate) key: Vec<(&'static str, Value)>,
    /// All other columns but `version`.
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
    Value::Text(value.to_string())
}

fn optional(value: Option<impl ToString>) -> Value {
    value.map_or(Value::Null, text)
}

fn number(value: u64) -> Result<Value, StoreError> {
    i64::try_from(value).map(Value::Integer).map_err(unusable)
}

/// Times as microseconds.
pub(crate) fn time(at: Timestamp) -> Value {
    Value::Integer(at.as_microsecond())
}

fn document<T: Serialize>(record: &T) -> Result<Value, StoreError> {
    serde_json::to_string(record).map(Value::Text).map_err(unusable)
}

/// The row of a record.
pub(crate) fn row(record: &Record) -> Result<Row, StoreError> {
    if let Record::LogChunk(it) = record {
        return log_row(it);
    }
    let key = record.key();
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
        Record::Run(it) => (
            vec![
                ("project", text(it.project)),
                ("instance", text(it.instance)),
                ("status", text(it.status)),
                ("priority", Value::Integer(it.priority.into())),
                ("queued_at", it.queued_at.map_or(Value::Null, time)),
                ("plan_run", optional(it.plan.as_ref().map(|p| p.run))),
            ],
            document(it)?,
        ),
        Record::Snapshot(it) => (vec![], document(it)?),
        Record::Attempt(it) => (
            vec![
                ("run", text(it.run)),
                ("number", number(it.number.into())?),
                ("fence", number(it.fence.0)?),
                ("worker", text(it.worker)),
                ("slot", number(it.slot.into())?),
                ("state", text(it.state.as_str())),
                ("exclusive", optional(it.exclusive)),
            ],
            document(it)?,
        ),
        Record::Approval(it) => {
            (vec![("project", text(it.project)), ("status", text(it.status.as_str()))], document(it)?)
        }
        Record::Worker(it) => (vec![("name", text(&it.name)), ("session", text(it.session))], document(it)?),
        Record::WorkerContact(it) => (vec![], document(it)?),
        Record::WorkerKey(it) => (vec![("worker", text(it.worker))], document(it)?),
        Record::Enrollment(it) => (vec![("hash", text(it.hash))], document(it)?),
        Record::StateObject(it) => (vec![("instance", text(it.instance))], document(it)?),
        Record::StateGeneration(it) => {
            (vec![("object", text(it.object)), ("generation", number(it.generation)?)], document(it)?)
        }
        Record::OrphanState(it) => (vec![("object", text(it.object))], document(it)?),
        Record::Artifact(it) => (vec![("run", text(it.run))], document(it)?),
        Record::PlanArtifact(it) => (vec![], document(it)?),
        Record::Secret(it) => (vec![("project", text(it.project)), ("name", text(&it.name))], document(it)?),
        Record::Receipt(it) => (vec![], document(it)?),
        Record::LateEvidence(it) => (vec![("run", text(it.run))], document(it)?),
        Record::OperatorDecision(it) => (vec![], document(it)?),
        Record::Idempotency(it) => (vec![], document(it)?),
        Record::LogChunk(it) => return log_row(it),
    };
    columns.push(("doc", doc));
    Ok(Row { table: table(key.kind), key: vec![("id", Value::Text(key.id))], columns })
}

fn log_row(chunk: &LogChunk) -> Result<Row, StoreError> {
    Ok(Row {
        table: table(Kind::LogChunk),
        key: vec![("attempt", text(chunk.attempt)), ("start", number(chunk.offset)?)],
        columns: vec![
            ("run", text(chunk.run)),
            ("project", text(chunk.project)),
            ("stream", text(chunk.frame.stream.as_str())),
            ("at", time(chunk.frame.at)),
            ("bytes", Value::Blob(chunk.frame.bytes.to_vec())),
        ],
    })
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
pub(crate) fn log_chunk(row: &rusqlite::Row<'_>) -> Result<LogChunk, StoreError> {
    let get = |index| row.get::<_, String>(index).map_err(unusable);
    let stream = match get(4)?.as_str() {
        "stdout" => LogStream::Stdout,
        "stderr" => LogStream::Stderr,
        _ => LogStream::Worker,
    };
    Ok(LogChunk {
        attempt: get(0)?.parse().map_err(unusable)?,
        offset: u64::try_from(row.get::<_, i64>(1).map_err(unusable)?).map_err(unusable)?,
        run: get(2)?.parse().map_err(unusable)?,
        project: get(3)?.parse().map_err(unusable)?,
        frame: LogFrame {
            stream,
            at: Timestamp::from_microsecond(row.get(5).map_err(unusable)?).map_err(unusable)?,
            bytes: Bytes::from(row.get::<_, Vec<u8>>(6).map_err(unusable)?),
        },
    })
}
