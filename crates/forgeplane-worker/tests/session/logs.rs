//! Logs on their way to a coordinator that loses, repeats and forgets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forgeplane_core::digest::Digest;
use forgeplane_core::model::OutcomeKind;

use crate::bench::{Bench, Order};
use crate::script::Fault;

const COUNTING: &str = "[ \"$1\" = plan ] || exit 0; i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); [ $((i % 30)) = 0 ] && sleep 0.05; done; exit 1";

#[tokio::test]
async fn f8_lost_answers_and_outages_leave_neither_gap_nor_repetition() {
    let bench = Bench::with_script(COUNTING);
    bench.script.next(
        "append_log",
        [Fault::Lost, Fault::Down, Fault::Lost, Fault::Lost, Fault::Down, Fault::Down, Fault::Lost],
    );
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    let outcome = bench.outcome(&job).await;
    let log = bench.log(&job);
    let lines: Vec<&str> = log.lines().filter(|line| line.starts_with("line ")).collect();
    let expected: Vec<String> = (0..300).map(|n| format!("line {n}")).collect();
    assert_eq!(lines, expected);
    assert_eq!(
        (outcome.log_bytes, outcome.log, outcome.log_incomplete),
        (log.len() as u64, Digest::of(log.as_bytes()), false)
    );
    worker.drain().await;
}

#[tokio::test]
async fn f8_a_coordinator_that_forgot_the_end_of_the_log_gets_it_again() {
    let bench = Bench::with_script(
        "[ \"$1\" = plan ] || exit 0; echo before; echo start >> \"$LEDGER\"; while [ ! -e ${LEDGER}.go ]; do sleep 0.02; done; echo after; exit 1",
    );
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    bench.until_ledger("start").await;
    bench.script.until("the log arrives", |_| bench.log(&job).contains("before\n")).await;
    bench.script.look(job.attempt, |offer| offer.log.truncate(2));
    std::fs::write(format!("{}.go", bench.ledger().display()), "").unwrap();
    let outcome = bench.outcome(&job).await;
    let log = bench.log(&job);
    assert!(log.contains("before\nafter\n"), "{log}");
    assert_eq!((outcome.log, outcome.log_incomplete), (Digest::of(log.as_bytes()), false));
    worker.drain().await;
}

#[tokio::test]
async fn a_log_that_cannot_be_delivered_in_time_does_not_hold_the_outcome() {
    let mut bench = Bench::with_script("echo something; exit 1");
    bench.config.log_wait = Duration::from_millis(300);
    bench.script.down("append_log");
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    let outcome = bench.outcome(&job).await;
    assert!(outcome.log_incomplete && outcome.log_bytes > 0);
    assert_eq!(bench.log(&job), "");
    worker.drain().await;
}

/// F1: a line of a gigabyte ends in a visible marker, takes no memory, and is no reason to fail.
#[tokio::test]
async fn f1_a_line_of_a_gigabyte_takes_no_memory_and_changes_nothing() {
    let mut bench = Bench::with_script(
        "[ \"$1\" = plan ] || exit 0\nhead -c 1000000000 /dev/zero | tr '\\0' x; echo end; echo done >> \"$LEDGER\"",
    );
    bench.config.log_cap_bytes = 32 << 20;
    let worker = bench.start().await.unwrap();
    let first = bench.attempt(1, Order::default());
    let (stop, before) = (Arc::new(AtomicBool::new(false)), resident_kib());
    let watching = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut most = 0;
            while !stop.load(Ordering::Relaxed) {
                most = most.max(resident_kib());
                std::thread::sleep(Duration::from_millis(20));
            }
            most
        })
    };
    let outcome = bench.outcome(&first).await;
    stop.store(true, Ordering::Relaxed);
    let grown = watching.join().unwrap().saturating_sub(before);
    assert_eq!((outcome.outcome, outcome.log_incomplete), (OutcomeKind::Succeeded, false));
    assert_eq!(bench.ledger_text(), "done\n");
    let log = bench.log(&first);
    assert!(log.contains("the log reached its limit of 33554432 bytes"), "{}", &log[log.len() - 200..]);
    assert_eq!(outcome.log_bytes, log.len() as u64);
    // The scripted coordinator of this test keeps the log in memory, too.
    assert!(grown < 200_000, "the worker grew by {grown} KiB");
    worker.drain().await;
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
