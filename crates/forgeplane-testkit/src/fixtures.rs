//! Sample records: consistent with one another, distinct, and otherwise as plain as possible.
//!
//! Every record comes with fresh ids, names, hashes and fences from one counter, so two records never
//! collide unless a story makes them: `Project { name: other.name.clone(), ..make.project() }`.

use std::sync::atomic::{AtomicU64, Ordering};

use forgeplane_core::Timestamp;
use forgeplane_core::digest::Digest;
use forgeplane_core::model::*;

mod control;
mod execution;
mod records;

/// Makes sample records. Ids are in the order in which they were made.
#[derive(Debug, Default)]
pub struct Fixtures {
    made: AtomicU64,
}

impl Fixtures {
    /// A counter that starts at nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next number: 1, 2, …
    pub fn number(&self) -> u64 {
        self.made.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// `number` milliseconds after the beginning of 2026. Whole milliseconds, because a store need not keep
    /// more than microseconds.
    #[must_use]
    pub fn at(number: u64) -> Timestamp {
        const BEGINNING_OF_2026_MS: i64 = 1_767_225_600_000;
        let ms = BEGINNING_OF_2026_MS.saturating_add_unsigned(number);
        Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
    }

    /// A fresh time, later than any before.
    pub fn now(&self) -> Timestamp {
        Self::at(self.number())
    }

    /// A fresh name: `what` and a number.
    ///
    /// # Panics
    /// If `what` is no beginning of a [`Name`].
    pub fn name(&self, what: &str) -> Name {
        format!("{what}-{}", self.number()).parse().unwrap()
    }

    /// A fresh digest.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.number().to_be_bytes())
    }

    /// A fresh fence, greater than any before. It is not allocated by a store.
    pub fn fence(&self) -> Fence {
        Fence(self.number())
    }

    /// A fresh id of whichever type is expected.
    pub fn id<I: FreshId>(&self) -> I {
        let number = self.number();
        let mut random = [0; 10];
        random[2..].copy_from_slice(&number.to_be_bytes());
        I::fresh(Self::at(number), random)
    }

    /// Somebody.
    #[must_use]
    pub fn actor() -> Actor {
        Actor::system("testkit")
    }
}

/// An id type that [`Fixtures::id`] can make.
pub trait FreshId {
    /// The id with this time and these random bits.
    fn fresh(at: Timestamp, random: [u8; 10]) -> Self;
}

macro_rules! fresh_ids {
    ($($id:ident)*) => {$(
        impl FreshId for forgeplane_core::id::$id {
            fn fresh(at: Timestamp, random: [u8; 10]) -> Self {
                Self::new(at, random)
            }
        }
    )*};
}

fresh_ids! {
    ProjectId PrincipalId TokenId TemplateId InstanceId RunId AttemptId ApprovalId WorkerId EnrollmentId
    StateObjectId SecretId OutboxId EvidenceId
}
