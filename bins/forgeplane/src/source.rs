//! Packing a directory into the tar.gz that a template version carries.

use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::failure::Failure;

/// Names that are never packed: version control, tool caches, local state (it holds secrets).
fn is_left_out(name: &str) -> bool {
    matches!(name, ".git" | ".terraform" | ".forgeplane" | ".hg" | ".svn")
        || name.ends_with(".tfstate")
        || name.ends_with(".tfstate.backup")
}

/// Packs a directory. The same content gives the same bytes: entries are sorted, times and owners left out.
pub fn pack(directory: &Path) -> Result<Vec<u8>, Failure> {
    let wrong = |path: &Path, error: &dyn std::fmt::Display| {
        Failure::local("source_unreadable", format!("{}: {error}", path.display()))
    };
    if !directory.is_dir() {
        return Err(wrong(directory, &"not a directory"));
    }
    let mut files = Vec::new();
    collect(directory, Path::new(""), &mut files)?;
    files.sort();
    if files.is_empty() {
        return Err(wrong(directory, &"nothing to pack"));
    }
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for relative in files {
        use std::os::unix::fs::PermissionsExt as _;
        let path = directory.join(&relative);
        let content = std::fs::read(&path).map_err(|e| wrong(&path, &e))?;
        let executable =
            std::fs::metadata(&path).map_err(|e| wrong(&path, &e))?.permissions().mode() & 0o100 != 0;
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(if executable { 0o755 } else { 0o644 });
        archive.append_data(&mut header, &relative, content.as_slice()).map_err(|e| wrong(&path, &e))?;
    }
    archive.into_inner().and_then(GzEncoder::finish).map_err(|e| wrong(directory, &e))
}

fn collect(root: &Path, relative: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let here = root.join(relative);
    for entry in std::fs::read_dir(&here)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(is_left_out) {
            continue;
        }
        let path = relative.join(&name);
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(root, &path, files)?;
        } else if kind.is_file() {
            files.push(path);
        } else {
            return Err(Failure::local(
                "source_unreadable",
                format!(
                    "{} is neither a file nor a directory; links and devices are not packed",
                    root.join(path).display()
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_reproducible_and_leaves_state_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("main.tf"), "a").unwrap();
        std::fs::write(dir.path().join("terraform.tfstate"), "secret").unwrap();
        std::fs::create_dir(dir.path().join(".terraform")).unwrap();
        std::fs::write(dir.path().join(".terraform/x"), "cache").unwrap();
        let first = pack(dir.path()).unwrap();
        assert_eq!(first, pack(dir.path()).unwrap());
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(first.as_slice()));
        let names: Vec<_> =
            archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().into_owned()).collect();
        assert_eq!(names, [PathBuf::from("main.tf")]);
    }
}
