//! One batch as one transaction.
//!
//! 1. Every row that the batch reads or replaces is locked, kind by kind and in the order of ids, so that
//!    concurrent batches wait for each other instead of deadlocking. Versions cannot change from here on.
//! 2. Changesets are decided in order against those versions. Runs of changesets that touch different records
//!    are applied together: one statement per kind, whatever their number.
//! 3. Events get their numbers last, because that row is shared by everybody.
//!
//! A guard that fails fails a whole statement. Then the transaction is rolled back and done again
//! [carefully](Mode::Careful): one changeset after the other, each under a savepoint. Guards are rarely the first
//! to notice, so the second way costs little.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use forgeplane_core::model::*;
use forgeplane_core::ports::{Committed, Conflict, Constraint, StoreError};
use sqlx::postgres::PgArguments;
use sqlx::{Arguments as _, PgConnection, Row as _};

use crate::row::{Row, Value, row, status_row, table, unusable};
use crate::statement::{Columns, query};

/// What became of each changeset.
pub(crate) type Decided = Vec<Result<Committed, Conflict>>;

/// How a batch is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Many changesets per statement.
    Together,
    /// Each changeset under its own savepoint.
    Careful,
}

/// Why a batch was not applied; the transaction must be rolled back.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A guard failed somewhere in a statement of many changesets.
    Guard,
    /// The database failed.
    Sql(sqlx::Error),
    /// A record cannot be written.
    Store(StoreError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        if violation(&error).is_some() { Self::Guard } else { Self::Sql(error) }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What a unique violation says: `Some(Some(_))` for a guard, `Some(None)` for a primary key.
fn violation(error: &sqlx::Error) -> Option<Option<Constraint>> {
    let error = error.as_database_error().filter(|e| e.is_unique_violation())?;
    Some(error.constraint().and_then(|name| Constraint::ALL.into_iter().find(|c| c.name() == name)))
}

/// Applies a batch within a transaction.
pub(crate) async fn apply(
    connection: &mut PgConnection,
    batch: &[Changeset],
    mode: Mode,
    persistent: bool,
) -> Result<Decided, Failure> {
    let mut writer = Writer { connection, persistent, versions: HashMap::new() };
    writer.lock(batch).await?;
    let mut decided: Vec<Result<(), Conflict>> = Vec::with_capacity(batch.len());
    match mode {
        Mode::Together => {
            for group in groups(batch) {
                writer.apply_together(group, &mut decided).await?;
            }
        }
        Mode::Careful => {
            for changes in batch {
                let result = writer.apply_alone(changes).await?;
                decided.push(result);
            }
        }
    }
    writer.append(batch, decided).await
}

/// Splits a batch where a changeset depends on one before it.
fn groups(batch: &[Changeset]) -> Vec<&[Changeset]> {
    let mut groups = Vec::new();
    let mut start = 0;
    let mut touched = HashSet::new();
    let mut replaced = HashSet::new();
    let mut promoted = false;
    for (index, changes) in batch.iter().enumerate() {
        let puts: Vec<Key> = changes.puts.iter().map(|put| put.record.key()).collect();
        // Two updates of promoted runs could trade places under the guard of one live promotion.
        let promotes = changes
            .puts
            .iter()
            .any(|put| matches!((&put.record, put.expect), (Record::Run(run), Expect::Version(_)) if run.plan.is_some()));
        let depends = puts.iter().any(|key| touched.contains(key))
            || changes.checks.iter().any(|(key, _)| replaced.contains(key))
            || (promotes && promoted);
        if index > start && (depends || in_order(changes) || in_order(&batch[index - 1])) {
            groups.push(&batch[start..index]);
            start = index;
            touched.clear();
            replaced.clear();
            promoted = false;
        }
        touched.extend(changes.checks.iter().map(|(key, _)| key.clone()));
        touched.extend(puts.iter().cloned());
        replaced.extend(puts);
        promoted |= promotes;
    }
    groups.push(&batch[start..]);
    groups
}

/// Whether a changeset's own puts must happen in their order: one that closes an attempt and opens another would
/// run into a guard the other way round, and one record may be put twice.
fn in_order(changes: &Changeset) -> bool {
    let mut kinds: HashMap<Kind, bool> = HashMap::new();
    let mut keys = HashSet::new();
    changes.puts.iter().any(|put| {
        let key = put.record.key();
        let inserts = put.expect == Expect::Absent;
        let mixed = *kinds.entry(key.kind).or_insert(inserts) != inserts;
        mixed || !keys.insert(key)
    })
}

struct Writer<'c> {
    connection: &'c mut PgConnection,
    persistent: bool,
    /// Versions of the records that the batch touches and that exist, as they are within the transaction.
    versions: HashMap<Key, u64>,
}

impl Writer<'_> {
    async fn execute(&mut self, sql: String, arguments: PgArguments) -> Result<u64, sqlx::Error> {
        Ok(query(sql, arguments, self.persistent).execute(&mut *self.connection).await?.rows_affected())
    }

    /// Locks every record that the batch touches and learns its version.
    async fn lock(&mut self, batch: &[Changeset]) -> Result<(), Failure> {
        let mut wanted: BTreeMap<Kind, BTreeSet<String>> = BTreeMap::new();
        for changes in batch {
            for key in changes.checks.iter().map(|(key, _)| key.clone()) {
                wanted.entry(key.kind).or_default().insert(key.id);
            }
            for put in &changes.puts {
                let key = put.record.key();
                // A chunk is only ever inserted, and its primary key says the rest.
                if key.kind != Kind::LogChunk {
                    wanted.entry(key.kind).or_default().insert(key.id);
                }
            }
        }
        for (kind, ids) in wanted {
            // What is never replaced need not be locked.
            let lock = if kind.is_immutable() { "" } else { " ORDER BY id FOR NO KEY UPDATE" };
            let sql = if kind == Kind::LogChunk {
                "SELECT attempt || '/' || start, 1::bigint FROM log_chunk WHERE attempt || '/' || start = ANY($1)".to_owned()
            } else {
                format!("SELECT id, version FROM {} WHERE id = ANY($1){lock}", table(kind))
            };
            let mut arguments = PgArguments::default();
            arguments.add(ids.into_iter().collect::<Vec<_>>()).map_err(sqlx::Error::Encode)?;
            for found in query(sql, arguments, self.persistent).fetch_all(&mut *self.connection).await? {
                let version = u64::try_from(found.try_get::<i64, _>(1)?).map_err(unusable)?;
                self.versions.insert(Key { kind, id: found.try_get(0)? }, version);
            }
        }
        Ok(())
    }

    /// Whether a changeset's expectations hold now.
    fn expects(&self, changes: &Changeset) -> Result<(), Conflict> {
        let wrong = |key: &Key| Err(Conflict::Version { key: key.clone() });
        for (key, version) in &changes.checks {
            if self.versions.get(key) != Some(version) {
                return wrong(key);
            }
        }
        for put in &changes.puts {
            let key = put.record.key();
            let holds = match put.expect {
                Expect::Absent => !self.versions.contains_key(&key),
                Expect::Version(version) => {
                    self.versions.get(&key) == Some(&version) && !key.kind.is_immutable()
                }
                Expect::Any => !key.kind.is_immutable(),
            };
            if !holds {
                return wrong(&key);
            }
        }
        Ok(())
    }

    fn note(&mut self, put: &Put) {
        let next = match put.expect {
            Expect::Absent => 1,
            Expect::Version(version) => version + 1,
            Expect::Any => self.versions.get(&put.record.key()).map_or(1, |version| version + 1),
        };
        self.versions.insert(put.record.key(), next);
    }

    /// Applies changesets that do not depend on each other.
    async fn apply_together(
        &mut self,
        group: &[Changeset],
        decided: &mut Vec<Result<(), Conflict>>,
    ) -> Result<(), Failure> {
        if let [changes] = group
            && in_order(changes)
        {
            let result = self.apply_in_order(changes).await?;
            decided.push(result);
            return Ok(());
        }
        let mut puts = Vec::new();
        for changes in group {
            let result = self.expects(changes);
            if result.is_ok() {
                puts.extend(&changes.puts);
            }
            decided.push(result);
        }
        self.put_all(&puts).await?;
        for put in puts {
            self.note(put);
        }
        Ok(())
    }

    /// Applies one changeset put by put.
    async fn apply_in_order(&mut self, changes: &Changeset) -> Result<Result<(), Conflict>, Failure> {
        let checks = Changeset { checks: changes.checks.clone(), ..Changeset::default() };
        if let Err(conflict) = self.expects(&checks) {
            return Ok(Err(conflict));
        }
        for (index, put) in changes.puts.iter().enumerate() {
            if let Err(conflict) =
                self.expects(&Changeset { puts: vec![put.clone()], ..Changeset::default() })
            {
                // What was put before it must be undone with it, which takes a savepoint.
                return if index == 0 { Ok(Err(conflict)) } else { Err(Failure::Guard) };
            }
            self.put_all(&[put]).await?;
            self.note(put);
        }
        Ok(Ok(()))
    }

    /// Applies one changeset under a savepoint: what it runs into undoes it and nothing else.
    async fn apply_alone(&mut self, changes: &Changeset) -> Result<Result<(), Conflict>, Failure> {
        self.execute("SAVEPOINT changeset".into(), PgArguments::default()).await?;
        let before = self.versions.clone();
        let conflict = match self.apply_puts(changes).await {
            Ok(()) => {
                self.execute("RELEASE SAVEPOINT changeset".into(), PgArguments::default()).await?;
                return Ok(Ok(()));
            }
            Err(Stop::Conflict(conflict)) => conflict,
            Err(Stop::Failure(failure)) => return Err(failure),
        };
        self.versions = before;
        self.execute("ROLLBACK TO SAVEPOINT changeset".into(), PgArguments::default()).await?;
        Ok(Err(conflict))
    }

    async fn apply_puts(&mut self, changes: &Changeset) -> Result<(), Stop> {
        let checks = Changeset { checks: changes.checks.clone(), ..Changeset::default() };
        self.expects(&checks)?;
        for put in &changes.puts {
            self.expects(&Changeset { puts: vec![put.clone()], ..Changeset::default() })?;
            let rows = Rows::of(&[put])?;
            for (sql, arguments, _) in rows.statements()? {
                match self.execute(sql, arguments).await {
                    Ok(_) => {}
                    Err(error) => match violation(&error) {
                        Some(Some(constraint)) => return Err(Conflict::Constraint(constraint).into()),
                        Some(None) => return Err(Conflict::Version { key: put.record.key() }.into()),
                        None => return Err(Stop::Failure(Failure::Sql(error))),
                    },
                }
            }
            self.note(put);
        }
        Ok(())
    }

    async fn put_all(&mut self, puts: &[&Put]) -> Result<(), Failure> {
        for (sql, arguments, rows) in Rows::of(puts)?.statements()? {
            let affected = self.execute(sql, arguments).await?;
            if affected != rows as u64 {
                // Locked versions cannot change; if they did, nothing may be committed.
                return Err(Failure::Sql(sqlx::Error::RowNotFound));
            }
        }
        Ok(())
    }

    /// Appends the events and the outbox of what was accepted.
    async fn append(
        &mut self,
        batch: &[Changeset],
        decided: Vec<Result<(), Conflict>>,
    ) -> Result<Decided, Failure> {
        let accepted =
            || batch.iter().zip(&decided).filter(|(_, result)| result.is_ok()).map(|(changes, _)| changes);
        let messages: Vec<&OutboxMessage> = accepted().flat_map(|changes| &changes.outbox).collect();
        if !messages.is_empty() {
            let mut rows = Vec::with_capacity(messages.len());
            for message in messages {
                let doc = serde_json::to_string(message).map_err(unusable)?;
                rows.push(Row {
                    id: message.id.to_string(),
                    columns: vec![
                        ("worker", Value::Text(Some(message.job.worker.to_string()))),
                        ("doc", Value::Text(Some(doc))),
                    ],
                });
            }
            let columns = Columns::of(rows, true)?;
            let sql = columns.insert("outbox", false);
            self.execute(sql, columns.arguments).await.map_err(Failure::Sql)?;
        }
        let published: Vec<String> =
            accepted().flat_map(|changes| &changes.published).map(ToString::to_string).collect();
        if !published.is_empty() {
            let mut arguments = PgArguments::default();
            arguments.add(published).map_err(sqlx::Error::Encode)?;
            self.execute("DELETE FROM outbox WHERE id = ANY($1)".into(), arguments).await?;
        }
        let events: Vec<&Event> = accepted().flat_map(|changes| &changes.events).collect();
        let mut next = if events.is_empty() { 0 } else { self.append_events(&events).await? };
        Ok(batch
            .iter()
            .zip(decided)
            .map(|(changes, result)| {
                result.map(|()| {
                    let first = next;
                    next += changes.events.len() as u64;
                    Committed { events: (first..next).collect() }
                })
            })
            .collect())
    }

    /// Appends events; answers with the number of the first.
    async fn append_events(&mut self, events: &[&Event]) -> Result<u64, Failure> {
        let mut projects = Vec::with_capacity(events.len());
        let mut runs = Vec::with_capacity(events.len());
        let mut docs = Vec::with_capacity(events.len());
        for event in events {
            projects.push(event.project.map(|it| it.to_string()));
            runs.push(event.run.map(|it| it.to_string()));
            docs.push(serde_json::to_string(event).map_err(unusable)?);
        }
        let sql = "WITH head AS (UPDATE event_head SET seq = seq + $1 RETURNING seq - $1 AS before),
                        appended AS (INSERT INTO event (seq, project, run, doc)
                            SELECT head.before + u.place, u.project, u.run, u.doc
                            FROM head, unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY
                                AS u (project, run, doc, place))
                   SELECT before + 1 FROM head";
        let mut arguments = PgArguments::default();
        let count = i64::try_from(events.len()).map_err(unusable)?;
        arguments.add(count).map_err(sqlx::Error::Encode)?;
        for texts in [projects, runs] {
            arguments.add(texts).map_err(sqlx::Error::Encode)?;
        }
        arguments.add(docs).map_err(sqlx::Error::Encode)?;
        let found = query(sql.into(), arguments, self.persistent)
            .fetch_one(&mut *self.connection)
            .await
            .map_err(Failure::Sql)?;
        Ok(u64::try_from(found.try_get::<i64, _>(0)?).map_err(unusable)?)
    }
}

/// Why a changeset that is applied alone stops.
enum Stop {
    Conflict(Conflict),
    Failure(Failure),
}

impl From<Conflict> for Stop {
    fn from(conflict: Conflict) -> Self {
        Self::Conflict(conflict)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Rows to put, by table and by what to do.
#[derive(Default)]
struct Rows {
    inserts: BTreeMap<Kind, Vec<Row>>,
    upserts: BTreeMap<Kind, Vec<Row>>,
    updates: BTreeMap<Kind, (Vec<Row>, Vec<i64>)>,
    statuses: Vec<Row>,
}

impl Rows {
    fn of(puts: &[&Put]) -> Result<Self, Failure> {
        let mut rows = Self::default();
        for put in puts {
            let kind = put.record.key().kind;
            let row = row(&put.record)?;
            match put.expect {
                Expect::Absent => rows.inserts.entry(kind).or_default().push(row),
                Expect::Any => rows.upserts.entry(kind).or_default().push(row),
                Expect::Version(version) => {
                    let (updated, expected) = rows.updates.entry(kind).or_default();
                    updated.push(row);
                    expected.push(i64::try_from(version).map_err(unusable)?);
                }
            }
            if let Record::Run(run) = &put.record {
                rows.statuses.push(status_row(run));
            }
        }
        Ok(rows)
    }

    /// Every statement with its arguments and the number of rows it must affect. Inserts come first: what frees a
    /// guard in one changeset must not let an earlier one through that ran into it.
    fn statements(self) -> Result<Vec<(String, PgArguments, usize)>, Failure> {
        let mut statements = Vec::new();
        for (kind, rows) in self.inserts {
            let versions = kind != Kind::LogChunk;
            let columns = Columns::of(rows, versions)?;
            statements.push((columns.insert(table(kind), versions), columns.arguments, columns.rows));
        }
        for (kind, rows) in self.upserts {
            let columns = Columns::of(rows, true)?;
            statements.push((columns.upsert(table(kind), true), columns.arguments, columns.rows));
        }
        for (kind, (rows, expected)) in self.updates {
            let mut columns = Columns::of(rows, true)?;
            columns.arguments.add(expected).map_err(sqlx::Error::Encode)?;
            statements.push((columns.update(table(kind)), columns.arguments, columns.rows));
        }
        if !self.statuses.is_empty() {
            let columns = Columns::of(self.statuses, true)?;
            statements.push((columns.upsert("run_status", false), columns.arguments, columns.rows));
        }
        Ok(statements)
    }
}
