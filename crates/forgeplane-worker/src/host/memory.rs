//! Whether the operating system ended processes because memory ran out.

use std::fs;
use std::path::{Path, PathBuf};

/// How many processes of this process's own control group, and of those below it, were ended for want of memory. 0 where
/// that cannot be told.
pub(super) fn kills() -> u64 {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    files(Path::new("/sys/fs/cgroup"), &groups)
        .iter()
        .filter_map(|file| count(file))
        .max()
        .unwrap_or_default()
}

/// The files that count them: of the unified hierarchy, and of the memory controller's own.
fn files(root: &Path, groups: &str) -> Vec<PathBuf> {
    let file = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let group = group.trim_start_matches('/');
        match controllers {
            "" => Some(root.join(group).join("memory.events")),
            _ if controllers.split(',').any(|it| it == "memory") => {
                Some(root.join("memory").join(group).join("memory.oom_control"))
            }
            _ => None,
        }
    };
    groups.lines().filter_map(file).collect()
}

fn count(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_control_groups_are_read() {
        let root = tempfile::tempdir().unwrap();
        let unified = "0::/pod/worker\n";
        let files_of = |groups: &str| files(root.path(), groups);
        assert_eq!(files_of(unified), [root.path().join("pod/worker/memory.events")]);
        let own = "4:memory:/pod/worker\n3:cpu,cpuacct:/x\n0::/\n";
        assert_eq!(files_of(own)[0], root.path().join("memory/pod/worker/memory.oom_control"));
        assert_eq!(files_of("nonsense\n"), [""; 0].map(PathBuf::from));

        let file = root.path().join("events");
        fs::write(&file, "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n").unwrap();
        assert_eq!(count(&file), Some(3));
        fs::write(&file, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n").unwrap();
        assert_eq!(count(&file), Some(2));
        assert_eq!(count(&root.path().join("absent")), None);
    }
}
