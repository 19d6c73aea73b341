//! Noticing that files were replaced, such as certificates that are renewed.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(5);

/// What a file looks like from outside: another one in its place, or written to, it looks otherwise.
type Look = Option<(u64, u64, i64, i64)>;

fn look(files: &[PathBuf]) -> Vec<Look> {
    let look = |file: &PathBuf| {
        // Of what a link points to: whoever renews certificates replaces links.
        let it = std::fs::metadata(file).ok()?;
        Some((it.ino(), it.size(), it.mtime(), it.mtime_nsec()))
    };
    files.iter().map(look).collect()
}

/// Calls `changed` whenever one of these files was replaced or written to, within a few seconds; returns only if there are
/// none to look at.
/// What `changed` does not like it leaves as it was: it is called again once more has changed, such as the key that goes
/// with a certificate.
pub async fn follow_files(files: Vec<PathBuf>, mut changed: impl FnMut()) {
    let mut known = look(&files);
    while !files.is_empty() {
        tokio::time::sleep(LOOK).await;
        let now = look(&files);
        if now != known {
            known = now;
            changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_replaced_file_a_replaced_link_and_a_missing_file_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        let files = vec![file.clone(), link.clone()];
        let mut seen = vec![look(&files)];
        let mut next = |what: &str| {
            let now = look(&files);
            assert!(!seen.contains(&now), "{what} is not noticed");
            assert_eq!(now, look(&files), "{what}");
            seen.push(now);
        };
        std::fs::write(&file, "one").unwrap();
        next("a new file");
        std::fs::write(&file, "one and more").unwrap();
        next("a file that was written to");
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        std::fs::write(&first, "same").unwrap();
        std::fs::write(&second, "same").unwrap();
        symlink(&first, &link).unwrap();
        next("a new link");
        symlink(&second, dir.path().join("new")).unwrap();
        std::fs::rename(dir.path().join("new"), &link).unwrap();
        next("a replaced link");
        std::fs::remove_file(&file).unwrap();
        next("a file that is gone");
    }
}
