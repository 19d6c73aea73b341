//! Logs: chunks of any bytes, read from any byte on.

use bytes::Bytes;
use forgeplane_core::model::*;
use forgeplane_core::ports::Store;

use super::*;
use crate::fixtures::Fixtures;

fn attempt(make: &Fixtures) -> Attempt {
    make.attempt(&make.run(&make.instance(&make.template(&make.project()))), &make.worker())
}

/// Chunks of these sizes, one after the other.
fn chunks(make: &Fixtures, attempt: &Attempt, sizes: &[usize]) -> Vec<LogChunk> {
    let mut offset = 0;
    let mut chunks = vec![];
    for (&size, letter) in sizes.iter().zip(b'a'..) {
        let chunk = make.log_chunk(attempt, offset, vec![letter; size]);
        offset = chunk.end();
        chunks.push(chunk);
    }
    chunks
}

async fn read(store: &dyn Store, attempt: &Attempt, from: u64, max_bytes: usize) -> Vec<LogChunk> {
    store.log(attempt.id, from, max_bytes).await.expect("the store answers")
}

async fn end(store: &dyn Store, attempt: &Attempt) -> u64 {
    store.log_end(attempt.id).await.expect("the store answers")
}

/// An attempt without a log has an empty one.
pub async fn a_log_that_was_never_written_is_empty(store: &dyn Store) {
    let attempt = attempt(&Fixtures::new());
    assert_eq!(read(store, &attempt, 0, usize::MAX).await, []);
    assert_eq!(read(store, &attempt, 100, 1).await, []);
    assert_eq!(end(store, &attempt).await, 0);
}

/// A log is read from the chunk that contains the first byte asked for, be it at its start or inside.
pub async fn a_log_is_read_from_inside_a_chunk(store: &dyn Store) {
    let make = Fixtures::new();
    let attempt = attempt(&make);
    let written = chunks(&make, &attempt, &[10, 1, 100]);
    commit(store, inserting(written.clone())).await;
    for (from, first) in [(0, 0), (1, 0), (9, 0), (10, 1), (11, 2), (12, 2), (110, 2)] {
        assert_eq!(read(store, &attempt, from, usize::MAX).await, written[first..], "from byte {from}");
    }
    for beyond in [111, 112, u64::from(u32::MAX), u64::MAX] {
        assert_eq!(read(store, &attempt, beyond, usize::MAX).await, [], "from byte {beyond}");
    }
}

/// As many chunks as `max_bytes` hold, counted by whole chunks, but at least one.
pub async fn a_read_is_bounded_but_gives_at_least_one_chunk(store: &dyn Store) {
    let make = Fixtures::new();
    let attempt = attempt(&make);
    let written = chunks(&make, &attempt, &[10, 10, 10, 10]);
    commit(store, inserting(written.clone())).await;
    for (max_bytes, count) in [(0, 1), (1, 1), (10, 1), (19, 1), (20, 2), (39, 3), (40, 4), (1_000, 4)] {
        assert_eq!(read(store, &attempt, 0, max_bytes).await, written[..count], "{max_bytes} bytes");
    }
    // Following the end of each page reads the whole log once, however small the pages.
    let mut read_so_far: Vec<LogChunk> = vec![];
    loop {
        let from = read_so_far.last().map_or(0, LogChunk::end);
        let page = read(store, &attempt, from, 1).await;
        if page.is_empty() {
            break;
        }
        read_so_far.extend(page);
        assert!(read_so_far.len() <= written.len(), "pages repeat chunks");
    }
    assert_eq!(read_so_far, written);
}

/// Chunks are read in the order of their bytes, not of their text: 9 comes before 10 and 100.
pub async fn chunks_are_in_the_order_of_their_bytes(store: &dyn Store) {
    let make = Fixtures::new();
    let attempt = attempt(&make);
    let written = chunks(&make, &attempt, &[9, 1, 90, 900, 9_000]);
    commit(store, inserting(written.iter().rev().cloned())).await;
    assert_eq!(read(store, &attempt, 0, usize::MAX).await, written);
    assert_eq!(end(store, &attempt).await, 10_000);
}

/// A log ends where its last chunk ends, and grows with every chunk.
pub async fn a_log_ends_where_its_last_chunk_ends(store: &dyn Store) {
    let make = Fixtures::new();
    let attempt = attempt(&make);
    for chunk in chunks(&make, &attempt, &[5, 1, 70_000, 3]) {
        commit(store, insert(chunk.clone())).await;
        assert_eq!(end(store, &attempt).await, chunk.end());
    }
}

/// Each attempt has a log of its own, also of the same run.
pub async fn each_attempt_has_its_own_log(store: &dyn Store) {
    let make = Fixtures::new();
    let first = attempt(&make);
    let second = Attempt { id: make.id(), number: 2, fence: make.fence(), ..first.clone() };
    let (of_first, of_second) = (chunks(&make, &first, &[4, 4]), chunks(&make, &second, &[7]));
    commit(store, inserting(of_first.iter().chain(&of_second).cloned())).await;
    assert_eq!(read(store, &first, 0, usize::MAX).await, of_first);
    assert_eq!(read(store, &second, 0, usize::MAX).await, of_second);
    assert_eq!((end(store, &first).await, end(store, &second).await), (8, 7));
}

/// Every byte of every stream is kept: NUL, broken UTF-8, terminal escapes, all 256.
pub async fn any_bytes_of_any_stream_are_kept(store: &dyn Store) {
    let make = Fixtures::new();
    let attempt = attempt(&make);
    let all: Vec<u8> = (0..=255).collect();
    let mut offset = 0;
    let mut written = vec![];
    for stream in [LogStream::Stdout, LogStream::Stderr, LogStream::Worker] {
        for bytes in [&all[..], b"\0\0\0", b"\xff\xfe\xc3(", b"\x1b[2J\r\n", "π 🚀".as_bytes()] {
            let mut chunk = make.log_chunk(&attempt, offset, Bytes::copy_from_slice(bytes));
            chunk.frame.stream = stream;
            offset = chunk.end();
            written.push(chunk);
        }
    }
    commit(store, inserting(written.clone())).await;
    assert_eq!(read(store, &attempt, 0, usize::MAX).await, written);
    for chunk in written {
        is_stored(store, chunk, 1).await;
    }
}

/// Two writers of the same byte: the second is refused, and the log is as the first wrote it.
pub async fn a_byte_is_written_once(store: &dyn Store) {
    let make = Fixtures::new();
    let attempt = attempt(&make);
    let first = make.log_chunk(&attempt, 0, "first");
    let again = make.log_chunk(&attempt, 0, "again and longer");
    commit(store, insert(first.clone())).await;
    refused_version(store, insert(again.clone()), Record::from(again).key()).await;
    assert_eq!(read(store, &attempt, 0, usize::MAX).await, [first]);
    assert_eq!(end(store, &attempt).await, 5);
}
