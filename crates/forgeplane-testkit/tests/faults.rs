//! The suite bites: a store with one fault fails the story that is about it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use async_trait::async_trait;
use forgeplane_core::id::{AttemptId, WorkerId};
use forgeplane_core::memory::MemoryStore;
use forgeplane_core::model::*;
use forgeplane_core::ports::{Committed, Conflict, EventFilter, Lookup, Page, Select, Store, StoreError};
use forgeplane_testkit::{run, store};

/// One way to be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// None: the story holds, so that it is the fault that breaks it.
    Nothing,
    StopsAtTheFirstConflict,
    EventsOfConflictsAreKept,
    ChecksAreIgnored,
    VersionsAreIgnored,
    ChecksThenWrites,
    VersionsOfListsAreOne,
    CursorIsIgnored,
    CursorIsIncluded,
    LimitIsIgnored,
    EventsIgnoreTheRun,
    EventsIncludeTheLastSeen,
    PublishedMessagesStay,
    LogSkipsTheChunkItIsIn,
    LogMayBeEmpty,
    FencesComeBack,
    TextEndsAtNul,
}

struct Faulty {
    right: MemoryStore,
    fault: Fault,
}

impl Faulty {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn spoil(&self, mut record: Versioned<Record>) -> Versioned<Record> {
        if self.is(Fault::TextEndsAtNul)
            && let Record::Run(Run { error: Some(error), .. }) = &mut record.value
        {
            error.message = error.message.split('\0').take(1).collect();
        }
        record
    }

    /// The changeset as the faulty store understands it, and what it commits besides.
    async fn misread(&self, mut changes: Changeset) -> Result<(Changeset, Changeset), StoreError> {
        let mut besides = Changeset::new();
        match self.fault {
            Fault::ChecksAreIgnored => changes.checks.clear(),
            Fault::EventsOfConflictsAreKept => besides.events = std::mem::take(&mut changes.events),
            Fault::PublishedMessagesStay => changes.published.clear(),
            Fault::VersionsAreIgnored | Fault::ChecksThenWrites => {
                for put in &mut changes.puts {
                    let Expect::Version(version) = put.expect else { continue };
                    let now = self.right.get(&put.record.key()).await?;
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                    if self.is(Fault::VersionsAreIgnored) || now.is_some_and(|it| it.version == version) {
                        put.expect = Expect::Any;
                    }
                }
            }
            _ => {}
        }
        Ok((changes, besides))
    }
}

#[async_trait]
impl Store for Faulty {
    async fn commit(&self, batch: Vec<Changeset>) -> Result<Vec<Result<Committed, Conflict>>, StoreError> {
        let mut results = vec![];
        for changes in batch {
            if self.is(Fault::StopsAtTheFirstConflict)
                && let Some(Err(conflict)) = results.last().cloned()
            {
                results.push(Err(conflict));
                continue;
            }
            let (changes, besides) = self.misread(changes).await?;
            results.extend(self.right.commit(vec![changes]).await?);
            self.right.commit(vec![besides]).await?;
        }
        Ok(results)
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned<Record>>, StoreError> {
        Ok(self.right.get(key).await?.map(|it| self.spoil(it)))
    }

    async fn find(&self, lookup: &Lookup) -> Result<Option<Versioned<Record>>, StoreError> {
        self.right.find(lookup).await
    }

    async fn list(&self, select: &Select, page: &Page) -> Result<Vec<Versioned<Record>>, StoreError> {
        let mut page = page.clone();
        match self.fault {
            Fault::CursorIsIgnored => page.after = None,
            Fault::LimitIsIgnored => page.limit = usize::MAX,
            _ => {}
        }
        let mut listed = self.right.list(select, &page).await?;
        if self.is(Fault::CursorIsIncluded)
            && let Some(id) = page.after
        {
            // The stories of runs are enough to notice.
            let last = self.right.get(&Key { kind: Kind::Run, id }).await?;
            listed.splice(0..0, last);
            listed.truncate(page.limit);
        }
        if self.is(Fault::VersionsOfListsAreOne) {
            listed.iter_mut().for_each(|it| it.version = 1);
        }
        Ok(listed)
    }

    async fn events(&self, filter: &EventFilter, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        let run = if self.is(Fault::EventsIgnoreTheRun) { None } else { filter.run };
        let after = if self.is(Fault::EventsIncludeTheLastSeen) { after.saturating_sub(1) } else { after };
        self.right.events(&EventFilter { run, ..filter.clone() }, after, limit).await
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.right.outbox(limit).await
    }

    async fn outbox_of(&self, worker: WorkerId, limit: usize) -> Result<Vec<OutboxMessage>, StoreError> {
        self.right.outbox_of(worker, limit).await
    }

    async fn event_head(&self) -> Result<u64, StoreError> {
        self.right.event_head().await
    }

    async fn log(&self, attempt: AttemptId, from: u64, max: usize) -> Result<Vec<LogChunk>, StoreError> {
        let mut chunks = self.right.log(attempt, from, max).await?;
        if self.is(Fault::LogSkipsTheChunkItIsIn) {
            chunks.retain(|it| it.offset >= from);
        }
        if self.is(Fault::LogMayBeEmpty) && chunks.first().is_some_and(|it| it.frame.bytes.len() > max) {
            chunks.clear();
        }
        Ok(chunks)
    }

    async fn log_end(&self, attempt: AttemptId) -> Result<u64, StoreError> {
        self.right.log_end(attempt).await
    }

    async fn allocate_fence(&self) -> Result<Fence, StoreError> {
        if self.is(Fault::FencesComeBack) { Ok(Fence(1)) } else { self.right.allocate_fence().await }
    }
}

/// Whether a store with this fault fails the story.
fn fails(fault: Fault, story: impl AsyncFn(&dyn Store)) -> bool {
    let faulty = Faulty { right: MemoryStore::new(), fault };
    catch_unwind(AssertUnwindSafe(|| run::story(story(&faulty)))).is_err()
}

macro_rules! bites {
    ($($name:ident: $fault:ident => $theme:ident::$story:ident;)*) => {$(
        #[test]
        fn $name() {
            assert!(!fails(Fault::Nothing, store::$theme::$story), "the story fails without the fault");
            assert!(fails(Fault::$fault, store::$theme::$story), "the story does not notice");
        }
    )*};
}

bites! {
    stops_at_the_first_conflict: StopsAtTheFirstConflict => commit::a_conflict_does_not_disturb_its_neighbours;
    events_of_conflicts_are_kept: EventsOfConflictsAreKept => commit::a_changeset_happens_as_a_whole_or_not_at_all;
    checks_are_ignored: ChecksAreIgnored => versions::a_check_guards_a_record_that_was_only_read;
    versions_are_ignored: VersionsAreIgnored => versions::a_replacement_needs_the_exact_version;
    checks_then_writes: ChecksThenWrites => concurrency::of_those_that_update_one_version_one_wins;
    versions_of_lists_are_one: VersionsOfListsAreOne => lists::listed_records_carry_their_version;
    cursor_is_ignored: CursorIsIgnored => paging::every_list_can_be_read_in_pages;
    cursor_is_included: CursorIsIncluded => paging::a_cursor_is_stable_while_newer_records_arrive;
    limit_is_ignored: LimitIsIgnored => paging::every_list_can_be_read_in_pages;
    events_ignore_the_run: EventsIgnoreTheRun => events::events_are_filtered_by_project_and_run;
    events_include_the_last_seen: EventsIncludeTheLastSeen => concurrency::a_reader_of_events_never_misses_one;
    published_messages_stay: PublishedMessagesStay => outbox::a_published_message_is_removed;
    log_skips_the_chunk_it_is_in: LogSkipsTheChunkItIsIn => logs::a_log_is_read_from_inside_a_chunk;
    log_may_be_empty: LogMayBeEmpty => logs::a_read_is_bounded_but_gives_at_least_one_chunk;
    fences_come_back: FencesComeBack => fences::fences_grow_past_committed_attempts;
    text_ends_at_nul: TextEndsAtNul => literal::g17_hostile_text_is_stored_literally;
}
