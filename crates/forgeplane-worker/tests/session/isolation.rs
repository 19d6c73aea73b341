//! Processes that cannot be killed, paths that lead out, directories that belong to somebody else.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forgeplane_core::evidence::Cleanup;
use forgeplane_core::model::*;
use forgeplane_worker::sandbox::Isolation;

use crate::bench::{Bench, Order};
use crate::script::Call;

#[tokio::test]
async fn e9_leftovers_that_survive_fail_the_job_and_the_worker_takes_no_more() {
    let mut bench = Bench::with_script("echo start >> \"$LEDGER\"; exit 0");
    // A helper that starts tools, and kills only as long as the test lets it.
    let dirty = bench.directory.path().join("dirty");
    let helper = bench.executable(
        "helper",
        &format!(
            "#!/bin/bash\nif [ \"$1\" = sweep ] && [ -e {} ]; then exit 0; fi\nexec -a forgeplane-sandbox {} \"$@\"\n",
            dirty.display(),
            env!("CARGO_BIN_EXE_forgeplane-sandbox")
        ),
    );
    bench.config.helper = Some(helper);
    let worker = bench.start().await.unwrap();
    let Isolation::Uid { uid, .. } = bench.config.isolation else { unreachable!() };
    std::fs::write(&dirty, "").unwrap();
    let mut leftover = std::process::Command::new("/bin/sleep");
    std::os::unix::process::CommandExt::uid(&mut leftover, uid);
    let mut leftover = leftover.arg("300").spawn().unwrap();

    let first = bench.attempt(1, Order::default());
    let statement = bench.not_started(&first).await;
    assert_eq!(statement.reason.code, "dirty_uid");
    assert_eq!((statement.retryable, statement.nonce), (false, None));
    bench.script.until("the message is done with", |s| s.calls().contains(&Call::Ack(first.fence))).await;
    // Clean again, but quarantined until it is started anew.
    leftover.kill().unwrap();
    leftover.wait().unwrap();
    std::fs::remove_file(&dirty).unwrap();
    let second = bench.attempt(2, Order::default());
    worker.drain().await;
    assert!(bench.script.conclusion(second.attempt).is_none());
    assert_eq!(bench.ledger_text(), "");

    let worker = bench.start().await.unwrap();
    assert_eq!(bench.outcome(&second).await.outcome, OutcomeKind::Succeeded);
    worker.drain().await;
}

/// A group of frozen processes: SIGKILL waits until they are thawed, as it does for one in an uninterruptible
/// system call.
struct Freezer(PathBuf);

impl Freezer {
    fn of(name: &str) -> Self {
        let root = Path::new("/sys/fs/cgroup/freezer");
        assert!(
            root.join("cgroup.procs").exists(),
            "this test needs the freezer controller at {}",
            root.display()
        );
        let group = root.join(name);
        std::fs::create_dir(&group).unwrap();
        Self(group)
    }

    fn freeze(&self, process: &str) {
        std::fs::write(self.0.join("cgroup.procs"), process).unwrap();
        std::fs::write(self.0.join("freezer.state"), "FROZEN").unwrap();
    }

    fn thaw(&self) {
        std::fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        // Processes take a moment to die; a group that stays is empty and harmless.
        for _ in 0..200 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[tokio::test]
async fn e7_a_tool_that_the_kernel_holds_is_signed_for_as_dirty_and_the_worker_stops_taking_work() {
    let bench = Bench::with_script("echo pid $$ >> \"$LEDGER\"; exec sleep 300");
    let freezer = Freezer::of(&format!("forgeplane-test-{}", std::process::id()));
    let worker = bench.start().await.unwrap();
    let order = Order {
        operation: Operation::Destroy { mode: DestroyMode::Perform },
        grace_s: 1,
        ..Order::default()
    };
    let job = bench.attempt(1, order);
    bench.until_ledger("\n").await;
    let text = bench.ledger_text();
    freezer.freeze(text.trim().strip_prefix("pid ").unwrap());
    bench.script.stop(job.fence, StopCause::Cancel);
    let outcome = bench.outcome(&job).await;
    assert_eq!(
        (outcome.outcome, outcome.cleanup, outcome.forced, outcome.effects_unknown),
        (OutcomeKind::Canceled, Cleanup::Dirty, true, true)
    );
    assert_eq!((outcome.exit_code, outcome.signal), (None, None));
    // What cannot be killed may still write: its workspace stays.
    let workspace = bench.config.workspace_root.join(job.attempt.to_string());
    bench.script.until("the message is done with", |s| s.calls().contains(&Call::Ack(job.fence))).await;
    assert!(workspace.exists());
    let second = bench.attempt(2, Order::default());
    worker.drain().await;
    assert!(bench.script.conclusion(second.attempt).is_none());

    // Thawed, it dies at last: the next start finds a clean user id and removes the workspace.
    freezer.thaw();
    let worker = bench.start().await.unwrap();
    assert!(!workspace.exists());
    bench.script.stop(second.fence, StopCause::Cancel);
    bench.outcome(&second).await;
    worker.drain().await;
}

#[tokio::test]
async fn g19_an_entry_point_outside_of_the_source_is_refused_by_the_worker_itself() {
    let bench = Bench::with_script("echo start >> \"$LEDGER\"; exit 0");
    let worker = bench.start().await.unwrap();
    for (fence, entrypoint) in [(1, "../../.."), (2, "/etc"), (3, "a/../../b")] {
        let job = bench.attempt(fence, Order { entrypoint: Some(entrypoint), ..Order::default() });
        let outcome = bench.outcome(&job).await;
        assert_eq!(outcome.error.unwrap().code, "invalid_entrypoint", "{entrypoint}");
        assert!(!outcome.started);
    }
    assert_eq!(bench.ledger_text(), "");
    worker.drain().await;
}

#[tokio::test]
async fn e22_a_tool_that_closes_its_output_and_runs_on_is_waited_for() {
    let bench = Bench::with_script(
        "[ \"$1\" = plan ] || exit 0; exec >&- 2>&-; echo start >> \"$LEDGER\"; while [ ! -e ${LEDGER}.go ]; do sleep 0.02; done; echo end >> \"$LEDGER\"; exit 5",
    );
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    bench.until_ledger("start").await;
    assert!(bench.script.conclusion(job.attempt).is_none());
    std::fs::write(format!("{}.go", bench.ledger().display()), "").unwrap();
    assert_eq!(bench.outcome(&job).await.exit_code, Some(5));
    assert_eq!(bench.ledger_text(), "start\nend\n");
    worker.drain().await;
}

#[tokio::test]
async fn two_workers_never_share_a_state_directory() {
    let mut bench = Bench::with_script("exit 0");
    let worker = bench.start().await.unwrap();
    let Isolation::Uid { uid, .. } = bench.config.isolation else { unreachable!() };
    let other = Bench::with_script("exit 0");
    let Isolation::Uid { uid: other_uid, .. } = other.config.isolation else { unreachable!() };
    assert_ne!(uid, other_uid);
    let first = bench.config.isolation;
    bench.config.isolation = other.config.isolation;
    assert_eq!(bench.start().await.err().unwrap().code(), "state_dir_in_use");
    bench.config.isolation = first;
    worker.drain().await;
}
