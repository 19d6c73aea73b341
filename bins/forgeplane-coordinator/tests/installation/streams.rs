//! Logs that are followed while coordinators come and go.

use std::fs;
use std::process::Stdio;

use crate::support::{Site, options, passable};

/// B23: whoever follows a log gets every line once, in order, over coordinators that are stopped and killed; so does the
/// store.
#[tokio::test(flavor = "multi_thread")]
async fn b23_a_log_is_followed_over_restarts_without_gap_or_duplicate() {
    const LINES: usize = 3_000;
    let dir = passable();
    let stage = |number: usize| dir.path().join(number.to_string());
    // A line every now and then, so that every restart comes in the middle of it; the last part waits for a word each.
    let tool = format!(
        "[ \"$1\" = plan ] || exit 0\nn=0\nwhile [ $n -lt {LINES} ]; do n=$((n+1)); echo \"line $n of the log\"\n\
         [ $((n % 1000)) = 0 ] && echo \"written $n\" >> $LEDGER && while [ ! -e {}/$n ]; do sleep 0.05; done; done",
        dir.path().display()
    );
    let soon = ["settings.heartbeat_s = 1", "settings.worker_offline_after_s = 10"];
    let (mut site, mut coordinators) = Site::start(options(false, &soon), &tool, &["alpha"]);
    let mut alpha = coordinators.remove(0);
    let _worker = site.worker("w1", &[&alpha]);
    site.app(&alpha);
    let run = site.preview(&alpha, "first").await;
    let mut follow = site.installation.cli(&alpha, &site.admin);
    let follow = follow.args(["run", "logs", "--follow", &run]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let follower = follow.spawn().unwrap();
    for (number, killed) in [(1_000, false), (2_000, true)] {
        site.until_ledger(&format!("written {number}")).await;
        fs::write(stage(number), "").unwrap();
        match killed {
            false => {
                alpha.process.terminate();
            }
            true => alpha.process.kill(),
        }
        alpha.process.start("workers: ");
    }
    site.until_ledger("written 3000").await;
    fs::write(stage(3_000), "").unwrap();
    site.until_status(&alpha, &run, "succeeded").await;
    let followed = tokio::task::spawn_blocking(|| follower.wait_with_output().unwrap()).await.unwrap();
    assert!(followed.status.success(), "{}", String::from_utf8_lossy(&followed.stderr));
    let stored = site.installation.cli(&alpha, &site.admin).args(["run", "logs", &run]).output().unwrap();
    let expected: Vec<String> = (1..=LINES).map(|n| format!("line {n} of the log")).collect();
    for (who, output) in [("the follower", followed.stdout), ("the store", stored.stdout)] {
        let text = String::from_utf8(output).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("line ")).collect();
        assert_eq!(lines, expected, "{who}");
    }
    site.installation.check().unwrap();
}
