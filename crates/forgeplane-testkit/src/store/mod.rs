//! The store suite: what [`Store`](forgeplane_core::ports::Store) promises, one story per promise.
//!
//! | file | tells of |
//! | --- | --- |
//! | [`commit`] | atomicity, batches |
//! | [`versions`] | expectations, checks, immutable kinds |
//! | [`attempts`] | what keeps a run from being executed twice |
//! | [`constraints`] | every other [`Constraint`](forgeplane_core::ports::Constraint), and when it lets go |
//! | [`queries`] | each [`Lookup`](forgeplane_core::ports::Lookup) |
//! | [`catalogs`], [`lists`] | each [`Select`](forgeplane_core::ports::Select), its order and filters |
//! | [`paging`] | cursors |
//! | [`events`] | sequence numbers, filters, paging |
//! | [`outbox`] | order and removal |
//! | [`logs`] | chunks, offsets, bytes |
//! | [`fences`] | numbers that are never used twice |
//! | [`concurrency`] | committers at the same time |
//! | [`literal`] | hostile and unusual content |
//! | [`durability`] | what is there after the store was opened again |

pub mod attempts;
pub mod catalogs;
pub mod commit;
pub mod concurrency;
pub mod constraints;
pub mod durability;
pub mod events;
pub mod fences;
pub mod lists;
pub mod literal;
pub mod logs;
pub mod outbox;
pub mod paging;
pub mod queries;
pub mod versions;

mod given;

use given::*;
