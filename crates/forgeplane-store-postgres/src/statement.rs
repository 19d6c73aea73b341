//! Statements that treat any number of rows as one: their text depends on the table alone, so that each is
//! prepared once, and rows travel as one array per column.

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Arguments as _, AssertSqlSafe, Postgres};

use crate::row::{Row, Value};

/// A query with its text and arguments; `persistent` keeps it prepared on its connection.
pub(crate) fn query(
    sql: String,
    arguments: PgArguments,
    persistent: bool,
) -> Query<'static, Postgres, PgArguments> {
    sqlx::query_with(AssertSqlSafe(sql), arguments).persistent(persistent)
}

/// The arguments of plain values.
pub(crate) fn values(values: Vec<Value>) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = PgArguments::default();
    for value in values {
        match value {
            Value::Text(it) => arguments.add(it),
            Value::Number(it) => arguments.add(it),
            Value::Flag(it) => arguments.add(it),
            Value::Bytes(it) => arguments.add(it),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

/// Rows of one table as one array per column.
pub(crate) struct Columns {
    names: Vec<&'static str>,
    types: Vec<&'static str>,
    pub(crate) arguments: PgArguments,
    pub(crate) rows: usize,
}

/// One column of many rows.
enum Array {
    Text(Vec<Option<String>>),
    Number(Vec<Option<i64>>),
    Flag(Vec<bool>),
    Bytes(Vec<Vec<u8>>),
}

impl Array {
    fn like(value: &Value) -> Self {
        match value {
            Value::Text(_) => Self::Text(Vec::new()),
            Value::Number(_) => Self::Number(Vec::new()),
            Value::Flag(_) => Self::Flag(Vec::new()),
            Value::Bytes(_) => Self::Bytes(Vec::new()),
        }
    }

    fn push(&mut self, value: Value) {
        match (self, value) {
            (Self::Text(array), Value::Text(it)) => array.push(it),
            (Self::Number(array), Value::Number(it)) => array.push(it),
            (Self::Flag(array), Value::Flag(it)) => array.push(it),
            (Self::Bytes(array), Value::Bytes(it)) => array.push(it),
            // The rows of one table are made by one function, so a column has one type.
            (_, other) => debug_assert!(false, "a column has one type, not also that of {other:?}"),
        }
    }

    const fn sql_type(&self) -> &'static str {
        match self {
            Self::Text(_) => "text[]",
            Self::Number(_) => "bigint[]",
            Self::Flag(_) => "boolean[]",
            Self::Bytes(_) => "bytea[]",
        }
    }
}

impl Columns {
    /// Turns rows round. `id` is a column where `with_id`.
    pub(crate) fn of(rows: Vec<Row>, with_id: bool) -> Result<Self, sqlx::Error> {
        let count = rows.len();
        let mut ids = Vec::with_capacity(if with_id { count } else { 0 });
        let mut names: Vec<&'static str> = Vec::new();
        let mut arrays: Vec<Array> = Vec::new();
        for row in rows {
            if arrays.is_empty() {
                names.extend(row.columns.iter().map(|(name, _)| *name));
                arrays.extend(row.columns.iter().map(|(_, value)| Array::like(value)));
            }
            if with_id {
                ids.push(Some(row.id));
            }
            for (array, (_, value)) in arrays.iter_mut().zip(row.columns) {
                array.push(value);
            }
        }
        if with_id {
            names.insert(0, "id");
            arrays.insert(0, Array::Text(ids));
        }
        let types = arrays.iter().map(Array::sql_type).collect();
        let mut arguments = PgArguments::default();
        for array in arrays {
            match array {
                Array::Text(it) => arguments.add(it),
                Array::Number(it) => arguments.add(it),
                Array::Flag(it) => arguments.add(it),
                Array::Bytes(it) => arguments.add(it),
            }
            .map_err(sqlx::Error::Encode)?;
        }
        Ok(Self { names, types, arguments, rows: count })
    }

    /// `unnest(…) AS u (…)`, with places from `$1` on.
    fn unnest(&self, more: &[(&str, &str)]) -> String {
        let types = self.types.iter().copied().chain(more.iter().map(|(_, sql_type)| *sql_type));
        let places: Vec<_> = types.enumerate().map(|(n, it)| format!("${}::{it}", n + 1)).collect();
        let names: Vec<_> = self.names.iter().copied().chain(more.iter().map(|(name, _)| *name)).collect();
        format!("unnest({}) AS u ({})", places.join(", "), names.join(", "))
    }

    fn listed(&self) -> String {
        self.names.join(", ")
    }

    fn assignments(&self, source: &str) -> String {
        let sets = self.names.iter().filter(|name| **name != "id");
        sets.map(|name| format!("{name} = {source}.{name}")).collect::<Vec<_>>().join(", ")
    }

    /// Inserts the rows, each with version 1 if the table has versions.
    pub(crate) fn insert(&self, table: &str, versions: bool) -> String {
        let (column, first) = if versions { (", version", ", 1") } else { ("", "") };
        let names = self.listed();
        format!("INSERT INTO {table} ({names}{column}) SELECT {names}{first} FROM {}", self.unnest(&[]))
    }

    /// Inserts the rows or replaces those that are there.
    pub(crate) fn upsert(&self, table: &str, versions: bool) -> String {
        let next = if versions { format!(", version = {table}.version + 1") } else { String::new() };
        format!(
            "{} ON CONFLICT (id) DO UPDATE SET {}{next}",
            self.insert(table, versions),
            self.assignments("excluded")
        )
    }

    /// Replaces the rows, whose expected versions are one more array after the columns.
    pub(crate) fn update(&self, table: &str) -> String {
        format!(
            "UPDATE {table} AS t SET {}, version = t.version + 1 FROM {} WHERE t.id = u.id AND t.version = u.expected",
            self.assignments("u"),
            self.unnest(&[("expected", "bigint[]")])
        )
    }
}
