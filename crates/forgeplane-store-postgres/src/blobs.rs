//! [`PostgresBlobs`]: sealed bytes in the database itself.

use async_trait::async_trait;
use bytes::Bytes;
use forgeplane_core::ports::{BlobError, BlobStore};
use sqlx::Row as _;

use crate::read::Reader;
use crate::row::Value;

/// The most bytes of one blob, kept below what a PostgreSQL field can hold (1 GB).
const LARGEST: usize = 900 << 20;

/// Sealed bytes in the database: coordinators on several machines then share nothing but the database. Installations
/// with many large states and plans use an object store instead.
#[derive(Debug, Clone)]
pub struct PostgresBlobs {
    reader: Reader,
}

impl PostgresBlobs {
    pub(crate) const fn new(reader: Reader) -> Self {
        Self { reader }
    }

    async fn rows(&self, sql: &str, values: Vec<Value>) -> Result<Vec<sqlx::postgres::PgRow>, BlobError> {
        self.reader.rows(sql, &values).await.map_err(|e| BlobError(Box::new(e)))
    }
}

fn text(name: &str) -> Value {
    Value::Text(Some(name.to_owned()))
}

#[async_trait]
impl BlobStore for PostgresBlobs {
    async fn put(&self, name: &str, bytes: Bytes) -> Result<(), BlobError> {
        if bytes.len() > LARGEST {
            return Err(BlobError(
                format!("{} bytes are more than a blob can have here", bytes.len()).into(),
            ));
        }
        // Done twice it is the same, so an answer that was lost is no problem.
        let sql = "INSERT INTO blob (name, bytes) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET bytes = excluded.bytes";
        self.rows(sql, vec![text(name), Value::Bytes(bytes.to_vec())]).await?;
        Ok(())
    }

    async fn get(&self, name: &str) -> Result<Option<Bytes>, BlobError> {
        let rows = self.rows("SELECT bytes FROM blob WHERE name = $1", vec![text(name)]).await?;
        let row = rows.first().map(|row| row.try_get::<Vec<u8>, _>(0)).transpose();
        Ok(row.map_err(|e| BlobError(Box::new(e)))?.map(Bytes::from))
    }

    async fn delete(&self, name: &str) -> Result<(), BlobError> {
        self.rows("DELETE FROM blob WHERE name = $1", vec![text(name)]).await?;
        Ok(())
    }
}
