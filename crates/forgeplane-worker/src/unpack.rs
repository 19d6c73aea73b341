//! Source bundles: refused whole before anything is written.
//!
//! A bundle is a gzip-compressed tar archive that somebody uploaded. [`check`] reads all of it and writes
//! nothing; [`unpack`] writes only what `check` has accepted: folders, plain files and symbolic links that
//! stay inside. Owners and all mode bits but "executable" are dropped. Links are made last, so no file is
//! ever written through one.

mod error;
mod names;
mod walk;

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use forgeplane_core::{Code, Refusal};

pub use error::UnpackError;

use names::Names;
use walk::{Kind, walk};

/// How much an archive may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Entries, and folders that are only implied by the names of entries.
    pub entries: usize,
    /// Bytes after decompression.
    pub total_bytes: u64,
    /// Bytes of one path or link target.
    pub path_bytes: usize,
    /// How many times larger than the archive its content may be. The first MiB is always allowed.
    pub ratio: u64,
}

impl Default for Limits {
    /// 100 000 entries, 1 GiB, paths of 1024 bytes, 200 times.
    fn default() -> Self {
        Self { entries: 100_000, total_bytes: 1 << 30, path_bytes: 1024, ratio: 200 }
    }
}

/// [`check`] within the usual limits, as a coordinator's `source_check` wants it.
///
/// # Errors
/// [`Code::InvalidBundle`].
pub fn admit(source: &[u8]) -> Result<(), Refusal> {
    check(source, &Limits::default()).map_err(|e| {
        Refusal::new(Code::InvalidBundle, e.to_string())
            .field("source")
            .way_out("pack a directory of plain files with `forgeplane template push`")
    })
}

/// Reads the whole archive and tells whether it may be unpacked. Writes nothing.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn check(archive: &[u8], limits: &Limits) -> Result<(), UnpackError> {
    let mut names = Names::new(limits);
    walk(archive, limits, |entry, content| {
        names.add(entry)?;
        io::copy(content, &mut io::sink()).map(drop).map_err(UnpackError::reading(&entry.name))
    })
}

/// Checks the archive, then extracts it into `into`, an existing empty folder that nobody else writes to.
/// Files become 0644 or 0755, folders 0755, all owned by the caller.
///
/// # Errors
/// As [`check`], with nothing written; [`UnpackError::NotEmpty`] and [`UnpackError::Write`] for the
/// folder. After `Write` the folder may hold a part of the archive.
pub fn unpack(archive: &[u8], into: &Path, limits: &Limits) -> Result<(), UnpackError> {
    check(archive, limits)?;
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| UnpackError::Write { path, source }
    };
    if fs::read_dir(into).map_err(at(into))?.next().is_some() {
        return Err(UnpackError::NotEmpty { path: into.to_owned() });
    }
    let mut links: Vec<(PathBuf, PathBuf)> = Vec::new();
    walk(archive, limits, |entry, content| {
        let path = into.join(&entry.path);
        match &entry.kind {
            Kind::Folder => folders(into, &entry.path).map_err(at(&path)),
            Kind::Link { target } => {
                links.push((path, target.clone()));
                Ok(())
            }
            Kind::File { executable } => {
                folders(into, entry.path.parent().unwrap_or(Path::new(""))).map_err(at(&path))?;
                let mode = if *executable { 0o755 } else { 0o644 };
                let mut file = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(mode)
                    .open(&path)
                    .map_err(at(&path))?;
                io::copy(content, &mut file).map_err(at(&path))?;
                file.set_permissions(Permissions::from_mode(mode)).map_err(at(&path))
            }
        }
    })?;
    for (path, target) in links {
        let folder = path.strip_prefix(into).ok().and_then(Path::parent).unwrap_or(Path::new(""));
        folders(into, folder).and_then(|()| symlink(target, &path)).map_err(at(&path))?;
    }
    Ok(())
}

/// Makes a folder and those above it, whatever the umask.
fn folders(into: &Path, folder: &Path) -> io::Result<()> {
    let mut path = into.to_owned();
    for component in folder {
        path.push(component);
        match DirBuilder::new().mode(0o755).create(&path) {
            Ok(()) => fs::set_permissions(&path, Permissions::from_mode(0o755))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
