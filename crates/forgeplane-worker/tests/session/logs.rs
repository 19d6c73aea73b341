//! Logs on their way to a coordinator that loses, repeats and forgets.

use forgeplane_core::digest::Digest;

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
    bench.config.log_wait = std::time::Duration::from_millis(300);
    bench.script.down("append_log");
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    let outcome = bench.outcome(&job).await;
    assert!(outcome.log_incomplete && outcome.log_bytes > 0);
    assert_eq!(bench.log(&job), "");
    worker.drain().await;
}
