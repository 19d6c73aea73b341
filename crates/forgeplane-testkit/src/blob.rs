//! The blob suite: what [`BlobStore`] promises, one story per promise.

use bytes::Bytes;
use forgeplane_core::ports::BlobStore;

use crate::builder::{BlobGuard, Reopen};

async fn put(blobs: &dyn BlobStore, name: &str, bytes: impl Into<Bytes>) {
    blobs.put(name, bytes.into()).await.expect("the blob is stored");
}

async fn get(blobs: &dyn BlobStore, name: &str) -> Option<Bytes> {
    blobs.get(name).await.expect("the blob store answers")
}

async fn delete(blobs: &dyn BlobStore, name: &str) {
    blobs.delete(name).await.expect("the blob store answers");
}

/// Requires that exactly these bytes are stored, without printing megabytes.
async fn holds(blobs: &dyn BlobStore, name: &str, bytes: &[u8]) {
    let found = get(blobs, name).await;
    assert!(found.as_deref() == Some(bytes), "{name}: {} bytes", found.map_or(0, |it| it.len()));
}

/// Bytes that differ at every place from those of another seed, and do not repeat soon.
fn bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ (at >> 12) as u8 ^ seed).collect()
}

/// What was put reads back.
pub async fn a_blob_reads_back(blobs: &dyn BlobStore) {
    put(blobs, "plan", "sealed").await;
    holds(blobs, "plan", b"sealed").await;
    holds(blobs, "plan", b"sealed").await;
}

/// A name without bytes is not there, and asking for it is no error.
pub async fn a_missing_blob_is_not_there(blobs: &dyn BlobStore) {
    assert_eq!(get(blobs, "nothing").await, None);
    assert_eq!(get(blobs, "nothing/in/a/folder").await, None);
    put(blobs, "something/below", "x").await;
    assert_eq!(get(blobs, "something").await, None);
    assert_eq!(get(blobs, "something/belo").await, None);
    assert_eq!(get(blobs, "something/below2").await, None);
}

/// An empty blob is there: it is not a missing one.
pub async fn an_empty_blob_is_there(blobs: &dyn BlobStore) {
    put(blobs, "empty", "").await;
    assert_eq!(get(blobs, "empty").await, Some(Bytes::new()));
}

/// Any bytes are kept as they are.
pub async fn any_bytes_are_kept(blobs: &dyn BlobStore) {
    let all: Vec<u8> = (0..=255).cycle().take(1_000).collect();
    put(blobs, "binary", all.clone()).await;
    holds(blobs, "binary", &all).await;
}

/// Putting a name again replaces the bytes, be they longer, shorter or none.
pub async fn putting_again_replaces(blobs: &dyn BlobStore) {
    for content in ["first", "a longer second", "3", "", "last"] {
        put(blobs, "state/one", content).await;
        holds(blobs, "state/one", content.as_bytes()).await;
    }
}

/// A deleted blob is gone, its neighbours stay, and its name can be used again.
pub async fn a_deleted_blob_is_gone(blobs: &dyn BlobStore) {
    put(blobs, "a/b", "gone").await;
    put(blobs, "a/c", "stays").await;
    delete(blobs, "a/b").await;
    assert_eq!(get(blobs, "a/b").await, None);
    holds(blobs, "a/c", b"stays").await;
    put(blobs, "a/b", "back").await;
    holds(blobs, "a/b", b"back").await;
}

/// Deleting nothing is no error, however often.
pub async fn deleting_nothing_is_no_error(blobs: &dyn BlobStore) {
    delete(blobs, "never").await;
    delete(blobs, "never/was/here").await;
    put(blobs, "once", "x").await;
    delete(blobs, "once").await;
    delete(blobs, "once").await;
}

/// Every name of the alphabet is a name of its own, with as many slashes as one likes.
pub async fn every_name_is_a_name_of_its_own(blobs: &dyn BlobStore) {
    let long = format!("long/{}", "x".repeat(200));
    let names = [
        "a-b",
        "a_b",
        "a/b",
        "a/b-c",
        "a/b_c",
        "0/1/2/3/4/5/6/7/8/9",
        "plan/prj_0197/run_0198/att_0199",
        "state/sto_01/00000000000000000012",
        "abcdefghijklmnopqrstuvwxyz0123456789-_",
        &long,
    ];
    // No name is the folder of another: callers never ask for that, and files could not keep it.
    for name in names {
        put(blobs, name, name.as_bytes().to_vec()).await;
    }
    for name in names {
        holds(blobs, name, name.as_bytes()).await;
    }
}

/// Eight megabytes are a blob like any other.
pub async fn eight_megabytes_are_kept(blobs: &dyn BlobStore) {
    let content = bytes(8 << 20, 1);
    put(blobs, "source/large", content.clone()).await;
    holds(blobs, "source/large", &content).await;
}

/// A reader sees the old bytes or the new ones, never a mixture and never nothing, while they are replaced.
pub async fn a_reader_sees_all_or_nothing(blobs: &dyn BlobStore) {
    let versions = [bytes(1 << 20, 1), bytes(700_000, 2)];
    put(blobs, "shared", versions[0].clone()).await;
    let writing = async {
        for round in 0..20 {
            put(blobs, "shared", versions[round % 2].clone()).await;
        }
    };
    let reading = async {
        for _ in 0..40 {
            let seen = get(blobs, "shared").await.expect("it is always there");
            assert!(versions.iter().any(|it| *it == seen), "a mixture of {} bytes", seen.len());
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(writing, reading);
}

/// Many writers of different names do not disturb one another.
pub async fn writers_of_different_names_do_not_disturb_each_other(blobs: &dyn BlobStore) {
    let content: Vec<_> =
        (0..50).map(|seed| (format!("many/{}/{seed}", seed % 5), bytes(10_000, seed))).collect();
    let writing = content.iter().map(|(name, bytes)| put(blobs, name, bytes.clone()));
    futures_util::future::join_all(writing).await;
    for (name, bytes) in &content {
        holds(blobs, name, bytes).await;
    }
}

/// What was put is there after the store was opened again, and what was deleted is not.
pub async fn blobs_survive<G: BlobGuard + Reopen>(guard: &mut G) {
    let large = bytes(1 << 20, 9);
    put(guard.blobs(), "kept/large", large.clone()).await;
    put(guard.blobs(), "kept/replaced", "old").await;
    put(guard.blobs(), "kept/replaced", "new").await;
    put(guard.blobs(), "gone", "x").await;
    delete(guard.blobs(), "gone").await;
    guard.reopen().await;
    holds(guard.blobs(), "kept/large", &large).await;
    holds(guard.blobs(), "kept/replaced", b"new").await;
    assert_eq!(get(guard.blobs(), "gone").await, None);
}
