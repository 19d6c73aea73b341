//! Records, versions and changesets: how the nouns travel to a store.

use super::*;
use crate::id::OutboxId;

/// A record with the version a store gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The record.
    pub value: T,
    /// 1 after insertion, then one more with every replacement.
    pub version: u64,
}

impl<T> std::ops::Deref for Versioned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A noun a store can hold.
pub trait Entity: Into<Record> + TryFrom<Record, Error = Record> + Clone + Send + Sync + 'static {
    /// Its kind.
    const KIND: Kind;

    /// Its primary key within its kind.
    fn key(&self) -> String;
}

/// The address of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Which noun.
    pub kind: Kind,
    /// Its primary key.
    pub id: String,
}

impl Key {
    /// The key of an entity of type `T` with this primary key.
    #[must_use]
    pub fn of<T: Entity>(id: impl ToString) -> Self {
        Self { kind: T::KIND, id: id.to_string() }
    }
}

macro_rules! records {
    ($($name:ident $mutability:ident, |$it:ident| $key:expr;)*) => {
        /// Which noun a record is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum Kind { $($name,)* }

        /// Any noun.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Record { $($name($name),)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Whether records of this kind are inserted once and never replaced.
            #[must_use]
            pub const fn is_immutable(self) -> bool {
                match self { $(Self::$name => records!(@$mutability),)* }
            }
        }

        impl Record {
            /// The record's address.
            #[must_use]
            pub fn key(&self) -> Key {
                match self { $(Self::$name(it) => Key { kind: Kind::$name, id: it.key() },)* }
            }
        }

        $(
            impl Entity for $name {
                const KIND: Kind = Kind::$name;

                fn key(&self) -> String {
                    let $it = self;
                    $key
                }
            }

            impl From<$name> for Record {
                fn from(value: $name) -> Self {
                    Self::$name(value)
                }
            }

            impl TryFrom<Record> for $name {
                type Error = Record;

                fn try_from(record: Record) -> Result<Self, Record> {
                    match record {
                        Record::$name(value) => Ok(value),
                        other => Err(other),
                    }
                }
            }
        )*
    };
    (@mutable) => { false };
    (@immutable) => { true };
}

records! {
    Project mutable, |it| it.id.to_string();
    Token mutable, |it| it.id.to_string();
    Template mutable, |it| it.id.to_string();
    TemplateVersion immutable, |it| format!("{}/{}", it.template, it.version);
    Instance mutable, |it| it.id.to_string();
    Run mutable, |it| it.id.to_string();
    Snapshot immutable, |it| it.run.to_string();
    Attempt mutable, |it| it.id.to_string();
    Approval mutable, |it| it.id.to_string();
    Worker mutable, |it| it.id.to_string();
    WorkerContact mutable, |it| it.worker.to_string();
    WorkerKey mutable, |it| it.id.to_string();
    Enrollment mutable, |it| it.id.to_string();
    StateObject mutable, |it| it.id.to_string();
    StateGeneration immutable, |it| format!("{}/{}", it.object, it.generation);
    OrphanState immutable, |it| format!("{}/{}", it.object, it.digest);
    Artifact immutable, |it| format!("{}/{}", it.attempt, it.kind.as_str());
    PlanArtifact immutable, |it| it.run.to_string();
    Secret mutable, |it| it.id.to_string();
    Receipt immutable, |it| it.attempt.to_string();
    LateEvidence immutable, |it| it.id.to_string();
    OperatorDecision immutable, |it| it.attempt.to_string();
    Idempotency immutable, |it| format!("{}/{}", it.project, it.key);
    LogChunk immutable, |it| format!("{}/{}", it.attempt, it.offset);
}

/// What must be true of the stored record for a [`Put`] to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// There is none yet.
    Absent,
    /// It has exactly this version.
    Version(u64),
    /// Anything: insert or replace. For records without concurrent meaning, such as [`WorkerContact`].
    Any,
}

/// One record to insert or replace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// The new record.
    pub record: Record,
    /// What must be there now.
    pub expect: Expect,
}

/// A job for a worker: ids only, no authority and no secrets.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// Tenant.
    pub project: crate::id::ProjectId,
    /// The run.
    pub run: crate::id::RunId,
    /// The attempt.
    pub attempt: crate::id::AttemptId,
    /// Its fence.
    pub fence: Fence,
    /// The worker it is for.
    pub worker: crate::id::WorkerId,
    /// Which publication of this attempt this is: 1, 2, …
    pub publication: u32,
}

impl Job {
    /// The message id brokers deduplicate by; each publication has its own, so that a republication is
    /// never swallowed (`protocol.md` 1.4, S2).
    #[must_use]
    pub fn message_id(&self) -> String {
        format!("a{}.p{}", self.fence, self.publication)
    }
}

/// A job waiting for publication, written in the transaction that made it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OutboxMessage {
    /// Its id; messages are published in id order.
    pub id: OutboxId,
    /// The job.
    pub job: Job,
}

/// Everything one decision changes, committed as a whole or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changeset {
    /// Records that were read and must not have changed.
    pub checks: Vec<(Key, u64)>,
    /// Records to insert or replace.
    pub puts: Vec<Put>,
    /// Events to append, in order. The store assigns [`Event::seq`].
    pub events: Vec<Event>,
    /// Jobs to publish.
    pub outbox: Vec<OutboxMessage>,
    /// Outbox messages that were published.
    pub published: Vec<OutboxId>,
}

impl Changeset {
    /// An empty changeset.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Inserts a record that must not exist.
    pub fn insert(&mut self, record: impl Into<Record>) -> &mut Self {
        self.puts.push(Put { record: record.into(), expect: Expect::Absent });
        self
    }

    /// Replaces a record that was read at `version`.
    pub fn update(&mut self, version: u64, record: impl Into<Record>) -> &mut Self {
        self.puts.push(Put { record: record.into(), expect: Expect::Version(version) });
        self
    }

    /// Inserts or replaces a record whatever is there.
    pub fn upsert(&mut self, record: impl Into<Record>) -> &mut Self {
        self.puts.push(Put { record: record.into(), expect: Expect::Any });
        self
    }

    /// Requires that a record that was only read has not changed.
    pub fn check<T: Entity>(&mut self, read: &Versioned<T>) -> &mut Self {
        self.checks.push((Key { kind: T::KIND, id: read.value.key() }, read.version));
        self
    }

    /// Whether there is nothing to commit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.events.is_empty() && self.outbox.is_empty() && self.published.is_empty()
    }
}
