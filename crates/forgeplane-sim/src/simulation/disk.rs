//! A disk that keeps what was synced, and of the rest whatever it likes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use forgeplane_worker::host::{Disk, Guard};

use super::life::Life;
use super::lock;
use super::world::{Planted, World};

/// The files of one worker's state directory, across its lives.
#[derive(Clone)]
pub(super) struct SimDisk {
    world: Arc<World>,
    content: Arc<Mutex<Content>>,
    /// Whose disk it is now.
    life: Life,
}

#[derive(Default)]
struct Content {
    /// What a running machine sees.
    names: BTreeMap<PathBuf, Vec<u8>>,
    /// What is there after a power loss at the least.
    lasting: BTreeMap<PathBuf, Vec<u8>>,
    /// Changes of names that no sync has made last, in their order.
    pending: Vec<Change>,
    locked: Option<Life>,
    /// What tells it from its copies.
    place: String,
}

enum Change {
    Made(PathBuf, Vec<u8>),
    Renamed(PathBuf, PathBuf),
    Removed(PathBuf),
}

fn apply(names: &mut BTreeMap<PathBuf, Vec<u8>>, change: Change) {
    match change {
        Change::Made(path, content) => drop(names.insert(path, content)),
        Change::Renamed(from, to) => {
            if let Some(content) = names.remove(&from) {
                names.insert(to, content);
            }
        }
        Change::Removed(path) => drop(names.remove(&path)),
    }
}

impl SimDisk {
    pub(super) fn new(world: Arc<World>) -> Self {
        Self { world, content: Arc::default(), life: Life::new() }
    }

    /// The same disk, in a new life of the worker.
    pub(super) fn of(&self, life: &Life) -> Self {
        Self { life: life.clone(), ..self.clone() }
    }

    /// A copy of everything on it, on another disk.
    pub(super) fn copied(&self) -> Self {
        let names = self.content().names.clone();
        let place = self.world.fate.below(u64::MAX).to_string();
        let content = Content { lasting: names.clone(), names, place, ..Content::default() };
        Self { world: Arc::clone(&self.world), content: Arc::new(Mutex::new(content)), life: Life::new() }
    }

    /// Everything is as it is on another disk, which is used up by this.
    pub(super) fn put_back(&self, backup: &Self) {
        *self.content() = std::mem::take(&mut *backup.content());
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        lock(&self.content)
    }

    /// The power goes out: changes of names that were not synced are kept up to some point, as a journaling file system
    /// does, and lost from there on.
    pub(super) fn lose_power(&self) {
        let mut content = self.content();
        let pending = std::mem::take(&mut content.pending);
        let kept = usize::try_from(self.world.fate.below(pending.len() as u64 + 1)).unwrap_or(0);
        for change in pending.into_iter().take(kept) {
            apply(&mut content.lasting, change);
        }
        content.names = content.lasting.clone();
        tracing::debug!(kept, files = ?content.names.keys(), "the power went out");
    }

    /// The files below a directory, as they are now.
    pub(super) fn below(&self, directory: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let content = self.content();
        content
            .names
            .iter()
            .filter(|(path, _)| path.starts_with(directory))
            .map(|(p, c)| (p.clone(), c.clone()))
            .collect()
    }

    fn step(&self) -> io::Result<()> {
        if self.life.step() { Ok(()) } else { Err(io::Error::other("the process is dead")) }
    }

    /// A step that the disk may refuse.
    fn change(&self) -> io::Result<()> {
        self.step()?;
        if self.world.fate.fails(1) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on the simulated device"));
        }
        Ok(())
    }
}

impl Disk for SimDisk {
    fn private_dir(&self, _: &Path) -> io::Result<()> {
        self.step()
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Guard>> {
        self.step()?;
        let mut content = self.content();
        if content.locked.as_ref().is_some_and(|holder| !holder.is_over()) {
            return Ok(None);
        }
        content.locked = Some(self.life.clone());
        Ok(Some(Box::new(())))
    }

    fn place(&self, _: &Path) -> io::Result<String> {
        self.step()?;
        Ok(self.content().place.clone())
    }

    fn is_exposed(&self, _: &Path) -> io::Result<bool> {
        self.step()?;
        Ok(false)
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        self.step()?;
        self.content().names.get(file).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn files(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        self.step()?;
        Ok(self.content().names.keys().filter(|path| path.parent() == Some(directory)).cloned().collect())
    }

    fn write(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
        tracing::trace!(file = %file.display(), bytes = bytes.len(), "write");
        self.change()?;
        let dies = !self.life.step();
        let mut content = self.content();
        // Killed or not, a file that was there has lost its old content; killed meanwhile, any part of the new is there.
        let written = if dies {
            let torn = usize::try_from(self.world.fate.below(bytes.len() as u64 + 1)).unwrap_or(0);
            bytes[..torn].to_vec()
        } else {
            bytes.to_vec()
        };
        if content.lasting.contains_key(file) {
            content.lasting.insert(file.to_owned(), written.clone());
        } else {
            content.pending.push(Change::Made(file.to_owned(), written.clone()));
        }
        content.names.insert(file.to_owned(), written);
        if dies { Err(io::Error::other("the process is dead")) } else { Ok(()) }
    }

    /// It is never full.
    fn reserve(&self, _: &Path, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        tracing::trace!(from = %from.display(), to = %to.display(), "rename");
        self.change()?;
        let mut content = self.content();
        if !content.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        apply(&mut content.names, Change::Renamed(from.to_owned(), to.to_owned()));
        content.pending.push(Change::Renamed(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        tracing::trace!(file = %file.display(), "remove");
        self.change()?;
        let mut content = self.content();
        if content.names.remove(file).is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        content.pending.push(Change::Removed(file.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        tracing::trace!(directory = %directory.display(), "sync");
        self.change()?;
        if self.world.planted == Some(Planted::ForgetfulDisk) {
            return Ok(());
        }
        // One journal for the whole file system: a sync makes everything last that came before it.
        let mut content = self.content();
        for change in std::mem::take(&mut content.pending) {
            apply(&mut content.lasting, change);
        }
        Ok(())
    }
}
