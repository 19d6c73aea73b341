//! Memory that runs out.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Site, options};

/// A control group with little memory, gone with the test.
struct Group(PathBuf);

impl Group {
    /// Of either version of control groups.
    fn with_memory(bytes: u64) -> Self {
        let name = format!("forgeplane-test-{}", std::process::id());
        let own = Path::new("/sys/fs/cgroup/memory");
        if own.join("memory.limit_in_bytes").exists() {
            let group = Self(own.join(name));
            fs::create_dir(&group.0).expect("root can make a control group");
            fs::write(group.0.join("memory.limit_in_bytes"), bytes.to_string()).unwrap();
            return group;
        }
        let unified = Path::new("/sys/fs/cgroup");
        // Given already, or to be given; which of the two does not matter.
        let _ = fs::write(unified.join("cgroup.subtree_control"), "+memory");
        let group = Self(unified.join(name));
        fs::create_dir(&group.0).expect("root can make a control group");
        fs::write(group.0.join("memory.max"), bytes.to_string()).expect("the memory controller can be had");
        let _ = fs::write(group.0.join("memory.swap.max"), "0");
        group
    }

    fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// E18: a tool that takes more memory than there is ends, and says why; the worker goes on.
#[tokio::test(flavor = "multi_thread")]
async fn e18_a_tool_that_takes_all_memory_ends_and_its_worker_does_not() {
    // `tail` keeps a line until it has all of it.
    let hog = "[ \"$1\" = plan ] || exit 0\necho started >> $LEDGER\n\
               [ $(wc -l < $LEDGER) = 1 ] || exit 0\nhead -c 2000000000 /dev/zero | tail -n 1 | wc -c";
    let with_pipefail = format!("set -e\n{hog}\n[ -e never ]");
    let (mut site, coordinators) =
        Site::start(options(false, &["settings.heartbeat_s = 1"]), &with_pipefail, &["alpha"]);
    let alpha = &coordinators[0];
    let group = Group::with_memory(256 << 20);
    let mut worker = site.worker("w1", &[alpha]);
    group.take(worker.process.pid());
    site.app(alpha);
    let run = site.preview(alpha, "first").await;
    let view = site.until_status(alpha, &run, "failed").await;
    assert_eq!(view["run"]["error"]["code"], "out_of_memory", "{view:#}");
    assert!(worker.process.try_ended().is_none(), "the worker has ended:\n{}", worker.process.log());
    let next = site.preview(alpha, "second").await;
    site.until_status(alpha, &next, "succeeded").await;
    site.installation.check().unwrap();
    worker.process.terminate();
}
