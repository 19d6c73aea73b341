//! Reads an archive entry by entry, within limits.
//!
//! Long names and pax headers are read here and not by the tar library, which keeps them in memory
//! whatever their size, and so that no two readers of the archive can disagree on what it says.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use tar::{Archive, EntryType, PaxExtensions};

use super::names::{clean, stays_inside};
use super::{Limits, UnpackError};

/// A pax header holds names and times; more than this is no honest one.
const PAX_BYTES: u64 = 1 << 20;
/// So much content is allowed however small the archive is.
const ALWAYS_ALLOWED: u64 = 1 << 20;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Folder,
    File { executable: bool },
    Link { target: PathBuf },
}

/// One accepted entry.
pub(super) struct Entry {
    /// The name as written, for messages.
    pub name: String,
    /// Relative, without `.` and `..`; empty for the root folder.
    pub path: PathBuf,
    pub kind: Kind,
}

/// Names that an extension header gives to the entry after it.
#[derive(Default)]
struct Extension {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

/// Calls `visit` for each entry, in order. Reads to the very end, so that a cut or damaged archive is found.
pub(super) fn walk(
    archive: &[u8],
    limits: &Limits,
    visit: impl FnMut(&Entry, &mut dyn Read) -> Result<(), UnpackError>,
) -> Result<(), UnpackError> {
    // The tar library wraps a reader's error in its own text, so the limit that was met is kept beside it.
    let met = Cell::new(None);
    let reader = Limited {
        inner: MultiGzDecoder::new(archive),
        read: 0,
        archive: archive.len() as u64,
        limits,
        met: &met,
    };
    walk_tar(Archive::new(reader), limits, visit).map_err(|error| match met.get() {
        Some(Met::TotalBytes) => UnpackError::TooLarge { limit: limits.total_bytes },
        Some(Met::Ratio) => UnpackError::Bomb { limit: limits.ratio },
        None => error,
    })
}

fn walk_tar(
    mut tar: Archive<impl Read>,
    limits: &Limits,
    mut visit: impl FnMut(&Entry, &mut dyn Read) -> Result<(), UnpackError>,
) -> Result<(), UnpackError> {
    let mut extension = Extension::default();
    for raw in tar.entries().map_err(UnpackError::reading(""))?.raw(true) {
        let mut raw = raw.map_err(UnpackError::reading(""))?;
        let header = raw.header().clone();
        let own_name = || String::from_utf8_lossy(&header.path_bytes()).into_owned();
        let size = header.entry_size().map_err(UnpackError::reading(&own_name()))?;
        match header.entry_type() {
            EntryType::GNULongName => extension.name = Some(long_name(&mut raw, size, limits, &own_name())?),
            EntryType::GNULongLink => {
                extension.target = Some(long_name(&mut raw, size, limits, &own_name())?)
            }
            EntryType::XHeader => pax(&mut raw, size, &own_name(), &mut extension)?,
            // `git archive` notes the commit in one. Only a time or a comment may come from there.
            EntryType::XGlobalHeader => {
                let mut global = Extension::default();
                pax(&mut raw, size, &own_name(), &mut global)?;
                if global.name.is_some() || global.target.is_some() {
                    return Err(UnpackError::ForbiddenKind {
                        entry: own_name(),
                        kind: "a name for every entry",
                    });
                }
            }
            kind => {
                let extension = std::mem::take(&mut extension);
                let name = extension.name.unwrap_or_else(|| header.path_bytes().into_owned());
                let target =
                    extension.target.or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
                let mode = header.mode().map_err(UnpackError::reading(&own_name()))?;
                let entry = accept(name, kind, mode, target, size, limits)?;
                visit(&entry, &mut raw)?;
            }
        }
    }
    if extension.name.is_some() || extension.target.is_some() {
        return Err(malformed("", "a long name without an entry"));
    }
    only_padding(tar.into_inner())
}

fn accept(
    name: Vec<u8>,
    kind: EntryType,
    mode: u32,
    target: Option<Vec<u8>>,
    size: u64,
    limits: &Limits,
) -> Result<Entry, UnpackError> {
    let shown: String = String::from_utf8_lossy(&name).chars().take(200).collect();
    let unsafe_name = |reason| UnpackError::UnsafeName { entry: shown.clone(), reason };
    let unsafe_link = |reason| UnpackError::UnsafeLink { entry: shown.clone(), reason };
    let forbidden = |kind| UnpackError::ForbiddenKind { entry: shown.clone(), kind };
    if name.len() > limits.path_bytes {
        return Err(unsafe_name("it is too long"));
    }
    if name.contains(&0) {
        return Err(unsafe_name("it contains a NUL byte"));
    }
    let folder = kind == EntryType::Directory;
    if !folder && (name.ends_with(b"/") || name.ends_with(b"/.")) {
        return Err(unsafe_name("it is no folder and its name ends like one"));
    }
    let path = clean(Path::new(&OsString::from_vec(name))).map_err(unsafe_name)?;
    if path.as_os_str().is_empty() && !folder {
        return Err(unsafe_name("it is empty"));
    }
    let kind = match kind {
        EntryType::Directory => Kind::Folder,
        EntryType::Regular if mode & 0o6000 != 0 => return Err(UnpackError::PrivilegedMode { entry: shown }),
        EntryType::Regular => Kind::File { executable: mode & 0o100 != 0 },
        EntryType::Symlink => {
            let target = target.unwrap_or_default();
            if target.len() > limits.path_bytes || target.contains(&0) {
                return Err(unsafe_link("its target is too long or contains a NUL byte"));
            }
            let target = PathBuf::from(OsString::from_vec(target));
            stays_inside(&path, &target).map_err(unsafe_link)?;
            Kind::Link { target }
        }
        EntryType::Link => return Err(forbidden("a hard link")),
        EntryType::Char | EntryType::Block => return Err(forbidden("a device")),
        EntryType::Fifo => return Err(forbidden("a pipe")),
        EntryType::GNUSparse => return Err(forbidden("a sparse file")),
        _ => return Err(forbidden("of a kind that is not known here")),
    };
    if size != 0 && !matches!(kind, Kind::File { .. }) {
        return Err(forbidden("a folder or link with content"));
    }
    Ok(Entry { name: shown, path, kind })
}

fn malformed(entry: &str, text: &'static str) -> UnpackError {
    UnpackError::reading(entry)(io::Error::new(io::ErrorKind::InvalidData, text))
}

/// The content of a GNU long-name entry, without the NUL byte at its end.
fn long_name(raw: &mut impl Read, size: u64, limits: &Limits, entry: &str) -> Result<Vec<u8>, UnpackError> {
    if size > limits.path_bytes as u64 + 1 {
        return Err(UnpackError::UnsafeName { entry: entry.to_owned(), reason: "it is too long" });
    }
    let mut name = Vec::new();
    raw.read_to_end(&mut name).map_err(UnpackError::reading(entry))?;
    name.pop_if(|last| *last == 0);
    Ok(name)
}

/// Takes names out of a pax header; refuses what would change how the rest is read.
fn pax(raw: &mut impl Read, size: u64, entry: &str, extension: &mut Extension) -> Result<(), UnpackError> {
    if size > PAX_BYTES {
        return Err(malformed(entry, "its pax header is too large"));
    }
    let mut bytes = Vec::new();
    raw.read_to_end(&mut bytes).map_err(UnpackError::reading(entry))?;
    for record in PaxExtensions::new(&bytes) {
        let record = record.map_err(UnpackError::reading(entry))?;
        match record.key_bytes() {
            b"path" => extension.name = Some(record.value_bytes().to_vec()),
            b"linkpath" => extension.target = Some(record.value_bytes().to_vec()),
            // Written for files of 8 GiB and more only.
            b"size" => return Err(malformed(entry, "its pax header overrides the size")),
            key if key.starts_with(b"GNU.sparse.") => {
                return Err(UnpackError::ForbiddenKind { entry: entry.to_owned(), kind: "a sparse file" });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Behind the end mark only zeros may follow; anything else is a second archive that others would read.
fn only_padding(mut rest: impl Read) -> Result<(), UnpackError> {
    let mut buffer = [0; 8192];
    loop {
        match rest.read(&mut buffer).map_err(UnpackError::reading(""))? {
            0 => return Ok(()),
            count if buffer[..count].iter().all(|byte| *byte == 0) => {}
            _ => return Err(malformed("", "there is data behind its end")),
        }
    }
}

/// Which limit was met.
#[derive(Clone, Copy)]
enum Met {
    TotalBytes,
    Ratio,
}

/// Counts what comes out of the decompressor.
struct Limited<'a, R> {
    inner: R,
    read: u64,
    archive: u64,
    limits: &'a Limits,
    met: &'a Cell<Option<Met>>,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read += count as u64;
        if self.read > self.limits.total_bytes {
            self.met.set(Some(Met::TotalBytes));
        } else if self.read > ALWAYS_ALLOWED && self.read / self.limits.ratio.max(1) > self.archive {
            self.met.set(Some(Met::Ratio));
        }
        if self.met.get().is_some() { Err(io::Error::other("a limit was met")) } else { Ok(count) }
    }
}
