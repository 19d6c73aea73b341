//! The journal: what a restarted worker can prove about attempts it held (`protocol.md` 1.4).
//!
//! Order, each step durable before the next: INTENT < claim < STARTED < exec, and
//! exit < kill < SIGNED < send < receipt < RECEIPTED < ack < forget.
//!
//! Every entry names the directory that it was written in. In a copy of that directory (a backup that was put back, a
//! volume that was cloned, another machine) it proves nothing: the attempt may have gone on since, and may go on now.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forgeplane_core::digest::Digest;
use forgeplane_core::id::{AttemptId, ProjectId, RunId, WorkerId};
use forgeplane_core::model::{Fence, Nonce};
use serde::{Deserialize, Serialize};

use crate::durable;
use crate::error::{WorkerError, at};
use crate::host::Disk;

/// What must be known to sign for an attempt after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Intent {
    pub(crate) project: ProjectId,
    pub(crate) run: RunId,
    pub(crate) attempt: AttemptId,
    pub(crate) number: u32,
    pub(crate) fence: Fence,
    pub(crate) nonce: Nonce,
    pub(crate) worker: WorkerId,
    pub(crate) snapshot: Digest,
    pub(crate) bundle: Digest,
    pub(crate) plan: Option<Digest>,
}

/// How far an attempt got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub(crate) enum Stage {
    /// A claim may have been sent; the tool was not started.
    Intent,
    /// The tool may have been started.
    Started,
    /// An outcome is signed; these very bytes are to be delivered.
    Signed {
        /// The envelope's JSON.
        envelope: String,
    },
    /// The coordinator has the outcome.
    Receipted,
}

impl Stage {
    /// Its name, for messages.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Intent => "intent",
            Self::Started => "started",
            Self::Signed { .. } => "signed",
            Self::Receipted => "receipted",
        }
    }
}

/// A journaled attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) intent: Intent,
    #[serde(flatten)]
    pub(crate) stage: Stage,
    /// The [place](Disk::place) of the journal that it was written in.
    pub(crate) place: String,
}

/// Kept free for the journal, so that what happened can be written down on a disk that a tool has filled, bytes: some
/// entries, and what a file system needs around them.
const RESERVE: u64 = 1 << 20;

/// The journal's directory.
#[derive(Clone)]
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    rejected: PathBuf,
    copied: PathBuf,
    place: String,
    /// The newest fence that was recorded, also if it is forgotten since.
    newest: Arc<AtomicU64>,
}

impl Journal {
    pub(crate) fn open(disk: Arc<dyn Disk>, state_dir: &Path) -> Result<Self, WorkerError> {
        let [directory, rejected, copied] =
            ["journal", "rejected", "copied"].map(|name| state_dir.join(name));
        for dir in [&directory, &rejected, &copied] {
            durable::private_dir(&*disk, dir).map_err(at(dir))?;
        }
        let place = disk.place(&directory).map_err(at(&directory))?;
        let journal = Self { disk, directory, rejected, copied, place, newest: Arc::default() };
        for entry in journal.entries()? {
            journal.newest.fetch_max(entry.intent.fence.0, Ordering::Relaxed);
        }
        journal.reserve();
        Ok(journal)
    }

    fn reserved(&self) -> PathBuf {
        self.directory.with_extension("reserved")
    }

    /// Keeps room for entries, if there is any.
    fn reserve(&self) {
        if let Err(error) = self.disk.reserve(&self.reserved(), RESERVE) {
            tracing::warn!(%error, "no room could be kept for the journal");
        }
    }

    /// Records how far an attempt got; on disk when this returns.
    pub(crate) fn record(&self, intent: &Intent, stage: Stage) -> Result<(), WorkerError> {
        let path = self.path(intent);
        let entry = Entry { intent: intent.clone(), stage, place: self.place.clone() };
        let text = serde_json::to_vec(&entry).map_err(|e| at(&path)(e.into()))?;
        self.newest.fetch_max(intent.fence.0, Ordering::Relaxed);
        let written = match durable::replace(&*self.disk, &path, &text) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tracing::warn!("the disk is full; the room that was kept for the journal is used");
                durable::remove(&*self.disk, &self.reserved()).map_err(at(&path))?;
                durable::replace(&*self.disk, &path, &text)
            }
            other => other,
        };
        written.map_err(at(&path))
    }

    /// The newest fence that this process recorded or found; 0 for none.
    pub(crate) fn newest(&self) -> Fence {
        Fence(self.newest.load(Ordering::Relaxed))
    }

    /// Forgets an attempt.
    pub(crate) fn forget(&self, intent: &Intent) -> Result<(), WorkerError> {
        let path = self.path(intent);
        durable::remove(&*self.disk, &path).map_err(at(&path))?;
        self.reserve();
        Ok(())
    }

    /// Whether an entry was written here, and not in a directory that this one is a copy of.
    pub(crate) fn wrote(&self, entry: &Entry) -> bool {
        entry.place == self.place
    }

    /// Keeps an entry that proves nothing, so that an operator can look at it.
    pub(crate) fn disbelieve(&self, intent: &Intent) -> Result<PathBuf, WorkerError> {
        let (path, kept) = (self.path(intent), self.copied.join(format!("{}.json", intent.fence)));
        durable::rename(&*self.disk, &path, &kept).map_err(at(&path))?;
        durable::sync_parent(&*self.disk, &path).map_err(at(&path))?;
        Ok(kept)
    }

    /// Keeps an envelope that the coordinator refuses for good, so that an operator can look at it.
    pub(crate) fn set_aside(&self, intent: &Intent, envelope: &str) -> Result<PathBuf, WorkerError> {
        let path = self.rejected.join(format!("{}.json", intent.fence));
        durable::replace(&*self.disk, &path, envelope.as_bytes()).map_err(at(&path))?;
        Ok(path)
    }

    /// Every journaled attempt, oldest fence first. Records are replaced whole, so a torn write leaves the
    /// earlier record, and a leftover temporary file says nothing.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, WorkerError> {
        let mut entries = Vec::new();
        for path in self.disk.files(&self.directory).map_err(at(&self.directory))? {
            if path.extension().is_some_and(|e| e == "json") {
                entries.extend(self.read(&path)?);
            }
        }
        entries.sort_by_key(|e| e.intent.fence);
        Ok(entries)
    }

    /// The entry of one attempt.
    pub(crate) fn find(&self, fence: Fence) -> Result<Option<Entry>, WorkerError> {
        self.read(&self.directory.join(format!("{fence}.json")))
    }

    pub(crate) fn path(&self, intent: &Intent) -> PathBuf {
        self.directory.join(format!("{}.json", intent.fence))
    }

    fn read(&self, path: &Path) -> Result<Option<Entry>, WorkerError> {
        let text = match self.disk.read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(path)(error)),
        };
        serde_json::from_slice(&text).map(Some).map_err(|e| WorkerError::StateCorrupt {
            path: path.to_owned(),
            reason: format!(
                "not a journal entry ({e}): move it away; its attempt will have to be resolved by an operator"
            ),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::host::LocalDisk;

    pub(crate) fn intent(fence: u64) -> Intent {
        let now = Timestamp::UNIX_EPOCH;
        Intent {
            project: ProjectId::new(now, [1; 10]),
            run: RunId::new(now, [1; 10]),
            attempt: AttemptId::new(now, [1; 10]),
            number: 1,
            fence: Fence(fence),
            nonce: Nonce([7; 16]),
            worker: WorkerId::new(now, [1; 10]),
            snapshot: Digest::of(b"s"),
            bundle: Digest::of(b"b"),
            plan: None,
        }
    }

    #[test]
    fn an_attempt_is_remembered_stage_by_stage_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(Arc::new(LocalDisk), dir.path()).unwrap();
        for stage in
            [Stage::Intent, Stage::Started, Stage::Signed { envelope: "{}".into() }, Stage::Receipted]
        {
            journal.record(&intent(3), stage.clone()).unwrap();
            let again = Journal::open(Arc::new(LocalDisk), dir.path()).unwrap();
            let [entry] = &again.entries().unwrap()[..] else { panic!("one attempt, one entry") };
            assert_eq!((&entry.intent, &entry.stage), (&intent(3), &stage));
            assert!(again.wrote(entry));
        }
        journal.forget(&intent(3)).unwrap();
        journal.forget(&intent(3)).unwrap();
        assert!(journal.entries().unwrap().is_empty());
    }

    #[test]
    fn an_entry_of_a_copied_directory_is_told_and_can_be_kept_aside() {
        let dir = tempfile::tempdir().unwrap();
        let (state, copy) = (dir.path().join("state"), dir.path().join("copy"));
        Journal::open(Arc::new(LocalDisk), &state).unwrap().record(&intent(3), Stage::Intent).unwrap();
        let copied = std::process::Command::new("cp").arg("-a").args([&state, &copy]).status().unwrap();
        assert!(copied.success());
        let journal = Journal::open(Arc::new(LocalDisk), &copy).unwrap();
        assert_eq!(journal.newest(), Fence(3), "that this fence was given out is known all the same");
        assert!(!journal.wrote(&journal.entries().unwrap()[0]));
        let kept = journal.disbelieve(&intent(3)).unwrap();
        assert!(kept.starts_with(copy.join("copied")) && kept.exists());
        assert!(journal.entries().unwrap().is_empty());
        // The original still believes itself.
        let original = Journal::open(Arc::new(LocalDisk), &state).unwrap();
        assert!(original.wrote(&original.entries().unwrap()[0]));
    }

    #[test]
    fn a18_a_torn_write_leaves_the_earlier_record() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(Arc::new(LocalDisk), dir.path()).unwrap();
        journal.record(&intent(3), Stage::Intent).unwrap();
        std::fs::write(dir.path().join("journal/3.new"), "{\"inte").unwrap();
        assert_eq!(journal.entries().unwrap()[0].stage, Stage::Intent);
    }
}
