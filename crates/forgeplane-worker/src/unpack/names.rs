//! Which names may stand side by side in one archive.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::walk::{Entry, Kind};
use super::{Limits, UnpackError};

/// Deeper folders have no honest use and make every path walk slow.
const DEEPEST: usize = 100;
/// What file systems allow.
const LONGEST_COMPONENT: usize = 255;

/// A clean relative path of an entry's name; empty for the root folder itself.
pub(super) fn clean(name: &Path) -> Result<PathBuf, &'static str> {
    let mut path = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) if part.len() > LONGEST_COMPONENT => {
                return Err("a part of it is too long");
            }
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir => return Err("it contains `..`"),
            Component::RootDir | Component::Prefix(_) => return Err("it is absolute"),
        }
    }
    if path.components().count() > DEEPEST { Err("it is nested too deeply") } else { Ok(path) }
}

/// Whether a link at `path` stays inside.
///
/// `..` may only stand at the beginning: there the link's folder is a real one, so going up is exact.
/// Behind a name, which may be a link itself, `..` goes up from wherever that link leads.
pub(super) fn stays_inside(path: &Path, target: &Path) -> Result<(), &'static str> {
    let mut above = path.components().count().saturating_sub(1);
    let mut named = false;
    if target.as_os_str().is_empty() {
        return Err("its target is empty");
    }
    for component in target.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(_) => named = true,
            Component::ParentDir if named => return Err("its target contains `..` behind a name"),
            Component::ParentDir => {
                above = above.checked_sub(1).ok_or("its target is outside of the archive")?
            }
            Component::RootDir | Component::Prefix(_) => return Err("its target is absolute"),
        }
    }
    Ok(())
}

/// Every name so far.
pub(super) struct Names<'a> {
    limits: &'a Limits,
    entries: usize,
    /// By the name in lower case: the path as it was written, and whether it is a folder.
    taken: HashMap<Vec<u8>, (PathBuf, bool)>,
}

impl<'a> Names<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        Self { limits, entries: 0, taken: HashMap::new() }
    }

    /// Accepts an entry, or tells what it collides with.
    pub(super) fn add(&mut self, entry: &Entry) -> Result<(), UnpackError> {
        self.entries += 1;
        let too_many =
            || UnpackError::TooManyEntries { entry: entry.name.clone(), limit: self.limits.entries };
        if self.entries > self.limits.entries {
            return Err(too_many());
        }
        let folder = entry.kind == Kind::Folder;
        for (nth, path) in entry.path.ancestors().take_while(|path| !path.as_os_str().is_empty()).enumerate()
        {
            let folder = folder || nth > 0;
            match self.taken.get(&folded(path)) {
                // The folders above were accepted together with this one.
                Some((other, true)) if folder && other == path => return Ok(()),
                Some((other, _)) => {
                    let other = other.display().to_string();
                    return Err(UnpackError::Duplicate { entry: entry.name.clone(), other });
                }
                None if self.taken.len() >= self.limits.entries => return Err(too_many()),
                None => self.taken.insert(folded(path), (path.to_owned(), folder)),
            };
        }
        Ok(())
    }
}

/// Names that a case-insensitive file system would take for one.
fn folded(path: &Path) -> Vec<u8> {
    match path.to_str() {
        Some(text) => text.to_lowercase().into_bytes(),
        None => path.as_os_str().as_bytes().to_ascii_lowercase(),
    }
}
