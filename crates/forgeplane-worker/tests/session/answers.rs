//! Lost, wrong and missing answers to claims and outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forgeplane_core::Code;
use forgeplane_core::model::*;

use crate::bench::{Bench, Order, kept};
use crate::script::{Call, Fault};

const ONE_START: &str = "[ \"$1\" = plan ] && echo start >> \"$LEDGER\"; exit 0";
const UNTIL_GO: &str = "case \"$1\" in plan) echo start >> \"$LEDGER\"; while [ ! -e ${LEDGER}.go ]; do sleep 0.02; done;; esac; exit 0";

fn go(bench: &Bench) {
    std::fs::write(format!("{}.go", bench.ledger().display()), "").unwrap();
}

fn claims(bench: &Bench) -> Vec<Nonce> {
    let nonce = |call| match call {
        Call::Claim(nonce) => Some(nonce),
        _ => None,
    };
    bench.script.calls().into_iter().filter_map(nonce).collect()
}

#[tokio::test]
async fn b11_a_claim_whose_answer_was_lost_is_repeated_with_the_same_nonce_and_starts_once() {
    let bench = Bench::with_script(ONE_START);
    bench.script.next("claim", [Fault::Lost, Fault::Down, Fault::Lost]);
    let worker = bench.start().await.unwrap();
    let first = bench.attempt(1, Order::default());
    assert_eq!(bench.outcome(&first).await.outcome, OutcomeKind::Succeeded);
    let nonces = claims(&bench);
    assert_eq!(nonces.len(), 4);
    assert!(nonces.iter().all(|nonce| *nonce == nonces[0]));
    assert_eq!(bench.ledger_text(), "start\n");

    // H3: the next intent has a nonce of its own.
    let second = bench.attempt(2, Order::default());
    bench.outcome(&second).await;
    assert_ne!(claims(&bench)[4], nonces[0]);
    worker.drain().await;
}

#[tokio::test]
async fn each_step_is_on_disk_before_the_next_one_is_taken() {
    let bench = Bench::with_script(UNTIL_GO);
    let journal = bench.config.state_dir.join("journal");
    let ledger = bench.ledger();
    let (seen, at) = std::sync::mpsc::channel();
    bench.script.at_call(move |call| {
        if matches!(call, "claim" | "conclude") {
            let stage: Vec<String> = kept(&journal).into_iter().map(|(_, entry)| entry).collect();
            seen.send((call, stage, std::fs::read_to_string(&ledger).unwrap())).unwrap();
        }
    });
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    bench.until_ledger("start").await;
    let running = bench.kept("journal");
    go(&bench);
    bench.outcome(&job).await;
    bench.script.until("the message is done with", |s| s.calls().contains(&Call::Ack(job.fence))).await;

    let (call, stage, ledger) = at.recv().unwrap();
    assert_eq!((call, stage.len(), ledger.as_str()), ("claim", 1, ""));
    assert!(stage[0].contains(r#""stage":"intent""#), "{stage:?}");
    assert!(running[0].1.contains(r#""stage":"started""#), "{running:?}");
    let (call, stage, _) = at.recv().unwrap();
    assert_eq!(call, "conclude");
    assert!(stage[0].contains(r#""stage":"signed""#), "{stage:?}");
    assert!(bench.kept("journal").is_empty());
    worker.drain().await;
}

#[tokio::test]
async fn h2_a_receipt_for_other_bytes_is_no_receipt() {
    let bench = Bench::with_script(ONE_START);
    bench.script.next("conclude", [Fault::WrongReceipt, Fault::Lost, Fault::WrongReceipt]);
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    bench.outcome(&job).await;
    bench.script.until("the message is done with", |s| s.calls().contains(&Call::Ack(job.fence))).await;
    let sent = bench.script.sent();
    assert_eq!(sent.len(), 4);
    assert!(sent.iter().all(|envelope| *envelope == sent[0]));
    // I6: nothing was acknowledged before the true receipt.
    let ack = bench.script.calls().iter().position(|c| *c == Call::Ack(job.fence)).unwrap();
    assert_eq!(ack, bench.script.calls().len() - 1);
    assert_eq!((bench.kept("journal"), bench.ledger_text().as_str()), (vec![], "start\n"));
    worker.drain().await;
}

#[tokio::test]
async fn a13_an_outcome_that_was_not_delivered_is_sent_byte_for_byte_after_a_restart() {
    let bench = Bench::with_script(ONE_START);
    bench.script.down("conclude");
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    bench.script.until("the outcome is sent", |s| !s.sent().is_empty()).await;
    worker.shutdown.stop();
    worker.result().await.unwrap();
    // I6: the message comes again, since the coordinator knows of no end.
    assert!(bench.script.calls().contains(&Call::Nak(job.fence)));
    assert!(!bench.script.calls().contains(&Call::Ack(job.fence)));
    assert_eq!(bench.kept("journal").len(), 1);

    bench.script.up("conclude");
    let worker = bench.start().await.unwrap();
    assert_eq!(bench.outcome(&job).await.outcome, OutcomeKind::Succeeded);
    bench.script.until("the message is done with", |s| s.calls().contains(&Call::Ack(job.fence))).await;
    let sent = bench.script.sent();
    assert!(sent.iter().all(|envelope| *envelope == sent[0]));
    assert_eq!((bench.kept("journal"), bench.ledger_text().as_str()), (vec![], "start\n"));
    worker.drain().await;
}

#[tokio::test]
async fn a16_a_receipted_attempt_is_only_forgotten_after_a_restart() {
    let bench = Bench::with_script(ONE_START);
    bench.script.down("conclude");
    let worker = bench.start().await.unwrap();
    bench.attempt(1, Order::default());
    bench.script.until("the outcome is sent", |s| !s.sent().is_empty()).await;
    worker.shutdown.stop();
    worker.result().await.unwrap();
    // As if the worker had died between receipt and forgetting.
    let path = bench.config.state_dir.join("journal/1.json");
    let mut entry: serde_json::Value = serde_json::from_str(&bench.kept("journal")[0].1).unwrap();
    entry["stage"] = "receipted".into();
    entry.as_object_mut().unwrap().remove("envelope");
    std::fs::write(&path, entry.to_string()).unwrap();
    let sent = bench.script.sent().len();
    let worker = bench.start().await.unwrap();
    worker.drain().await;
    assert_eq!((bench.kept("journal"), bench.script.sent().len()), (vec![], sent));
}

#[tokio::test]
async fn an_outcome_that_is_refused_for_good_is_set_aside_and_work_goes_on() {
    let bench = Bench::with_script(ONE_START);
    bench.script.next("conclude", [Fault::Refused(Code::InvalidEvidence)]);
    let worker = bench.start().await.unwrap();
    let first = bench.attempt(1, Order::default());
    bench.script.until("the message is done with", |s| s.calls().contains(&Call::Ack(first.fence))).await;
    assert_eq!(bench.kept("rejected"), [("1.json".to_owned(), bench.script.sent()[0].clone())]);
    let second = bench.attempt(2, Order::default());
    assert_eq!(bench.outcome(&second).await.outcome, OutcomeKind::Succeeded);
    worker.drain().await;
}

#[tokio::test]
async fn a_worker_that_is_taken_out_of_service_between_claim_and_grant_keeps_its_intent() {
    let bench = Bench::with_script(ONE_START);
    // The claim is committed, its answer lost, and then nobody hears the worker any more.
    bench.script.next("claim", [Fault::Lost, Fault::Refused(Code::WorkerDisabled)]);
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    let error = worker.result().await.unwrap_err();
    assert_eq!(error.code(), "worker_disabled", "{error}");
    assert!(bench.kept("journal")[0].1.contains(r#""stage":"intent""#));
    assert!(!bench.script.calls().contains(&Call::Ack(job.fence)));

    let worker = bench.start().await.unwrap();
    let statement = bench.not_started(&job).await;
    assert_eq!((statement.nonce, statement.retryable), (Some(claims(&bench)[0]), true));
    assert_eq!(bench.ledger_text(), "");
    worker.drain().await;
}

#[tokio::test]
async fn an_idle_worker_that_is_taken_out_of_service_ends_and_says_why() {
    let bench = Bench::with_script(ONE_START);
    let worker = bench.start().await.unwrap();
    bench.script.disable(true);
    assert_eq!(worker.result().await.unwrap_err().code(), "worker_disabled");
}

/// What is not begun is not waited for: the next worker does it.
#[tokio::test]
async fn a_worker_that_is_to_end_waits_for_no_bundle_and_claims_nothing() {
    let bench = Bench::with_script(ONE_START);
    let worker = bench.start().await.unwrap();
    bench.script.down("bundle");
    let asked = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&asked);
    bench.script.at_call(move |call| {
        if call == "bundle" {
            seen.store(true, Ordering::SeqCst);
        }
    });
    bench.attempt(1, Order::default());
    bench.script.until("it asks for the bundle", |_| asked.load(Ordering::SeqCst)).await;
    // It ends, although the bundle never comes.
    worker.drain().await;
    assert_eq!((claims(&bench).len(), bench.ledger_text().as_str(), bench.kept("journal").len()), (0, "", 0));
}

#[tokio::test]
async fn l8_a_session_that_ends_is_renewed_without_touching_the_running_attempt() {
    let bench = Bench::with_script(UNTIL_GO);
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    bench.until_ledger("start").await;
    for _ in 0..3 {
        let registered =
            |s: &crate::script::Script| s.calls().iter().filter(|call| **call == Call::Registered).count();
        let before = registered(&bench.script);
        bench.script.end_sessions();
        bench.script.until("it registers again", |s| registered(s) > before).await;
    }
    go(&bench);
    let outcome = bench.outcome(&job).await;
    assert_eq!((outcome.outcome, outcome.stop), (OutcomeKind::Succeeded, None));
    assert_eq!(bench.ledger_text(), "start\n");
    worker.drain().await;
}

/// A copy of a state directory: whoever started last gives way.
#[tokio::test]
async fn a_worker_whose_identity_is_in_use_elsewhere_gives_way_when_it_has_just_started() {
    let bench = Bench::with_script(UNTIL_GO);
    let worker = bench.start().await.unwrap();
    bench.script.somebody_registers();
    assert_eq!(worker.result().await.unwrap_err().code(), "identity_in_use");
}

/// The journal of a machine that was cloned tells of an attempt that its own worker may be running: nothing is said of it
/// before that one had the time to come forward.
async fn a_clone_says_nothing(bench: &Bench) {
    let script = Arc::clone(&bench.script);
    let heard = AtomicUsize::new(0);
    bench.script.at_call(move |call| {
        // With its second heartbeat, as one that was there before.
        if call == "heartbeat" && heard.fetch_add(1, Ordering::SeqCst) == 1 {
            let script = Arc::clone(&script);
            tokio::spawn(async move { script.somebody_registers() });
        }
    });
    let clone = bench.start().await.unwrap();
    assert_eq!(clone.result().await.unwrap_err().code(), "identity_in_use");
    assert!(bench.script.sent().is_empty());
}

/// A state directory that was copied, or put back from a backup: the journal is of another time, and nothing is said of
/// what it holds, however long nobody else comes forward. The worker serves on.
async fn a_copy_says_nothing(bench: &Bench, stage: &str) {
    bench.put_a_copy_in_place();
    let copy = bench.start().await.unwrap();
    go(bench);
    let job = bench.attempt(2, Order::default());
    assert_eq!(bench.outcome(&job).await.outcome, OutcomeKind::Succeeded);
    assert_eq!(bench.script.sent().len(), 1, "only of the attempt that the copy made itself");
    assert!(bench.kept("journal").is_empty());
    let kept = bench.kept("copied");
    assert!(kept[0].1.contains(&format!(r#""stage":"{stage}""#)), "{kept:?}");
    copy.drain().await;
}

#[tokio::test]
async fn a_clone_and_a_copy_say_nothing_of_a_tool_that_was_started() {
    let bench = Bench::with_script(UNTIL_GO);
    let worker = bench.start().await.unwrap();
    bench.attempt(1, Order::default());
    bench.until_ledger("start").await;
    worker.crash().await;
    a_clone_says_nothing(&bench).await;
    a_copy_says_nothing(&bench, "started").await;
}

#[tokio::test]
async fn a_clone_and_a_copy_say_nothing_of_a_claim_that_may_have_been_granted() {
    let bench = Bench::with_script(UNTIL_GO);
    bench.script.down("claim");
    let claimed = Arc::new(AtomicBool::new(false));
    let claiming = Arc::clone(&claimed);
    bench.script.at_call(move |call| {
        claiming.fetch_or(call == "claim", Ordering::SeqCst);
    });
    let worker = bench.start().await.unwrap();
    bench.attempt(1, Order::default());
    while !claimed.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    worker.crash().await;
    a_clone_says_nothing(&bench).await;
    bench.script.up("claim");
    a_copy_says_nothing(&bench, "intent").await;
}

/// What is signed is said by a copy, too: it is true wherever it lies.
#[tokio::test]
async fn a_copy_delivers_what_was_signed() {
    let bench = Bench::with_script(UNTIL_GO);
    bench.script.down("conclude");
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    go(&bench);
    let signed = || bench.kept("journal").iter().any(|(_, text)| text.contains(r#""stage":"signed""#));
    while !signed() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    worker.crash().await;
    bench.script.up("conclude");
    bench.put_a_copy_in_place();
    let copy = bench.start().await.unwrap();
    assert_eq!(bench.outcome(&job).await.outcome, OutcomeKind::Succeeded);
    copy.drain().await;
}

/// One that has been there for long goes on, but not if the other one does not end.
#[tokio::test]
async fn two_workers_that_share_an_identity_for_long_serve_no_more() {
    let bench = Bench::with_script(UNTIL_GO);
    let worker = bench.start().await.unwrap();
    let registered =
        |s: &crate::script::Script| s.calls().iter().filter(|call| **call == Call::Registered).count();
    let beats = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&beats);
    bench.script.at_call(move |call| {
        counting.fetch_add(usize::from(call == "heartbeat"), Ordering::SeqCst);
    });
    while beats.load(Ordering::SeqCst) <= 10 {
        tokio::task::yield_now().await;
    }
    for _ in 0..2 {
        let before = registered(&bench.script);
        bench.script.somebody_registers();
        bench.script.until("it registers again", |s| registered(s) > before).await;
    }
    bench.script.somebody_registers();
    assert_eq!(worker.result().await.unwrap_err().code(), "identity_in_use");
}

#[tokio::test]
async fn a_cancel_that_comes_before_the_tool_starts_keeps_it_from_starting() {
    let bench = Bench::with_script(ONE_START);
    bench.script.stop(Fence(1), StopCause::Cancel);
    let worker = bench.start().await.unwrap();
    // The worker knows of the order before it claims.
    bench.script.next("claim", [Fault::Down, Fault::Down]);
    let job = bench.attempt(1, Order::default());
    let outcome = bench.outcome(&job).await;
    assert_eq!(
        (outcome.outcome, outcome.started, outcome.stop),
        (OutcomeKind::Canceled, false, Some(StopCause::Cancel))
    );
    assert_eq!(bench.ledger_text(), "");
    worker.drain().await;
}

#[tokio::test]
async fn a_queue_that_does_not_answer_does_not_keep_a_cancel_from_the_tool() {
    let bench = Bench::with_script(
        r#"trap 'echo interrupted >> "$LEDGER"; exit 1' INT; echo start >> "$LEDGER"; while :; do sleep 0.05; done"#,
    );
    bench.script.silent_queue.store(true, Ordering::SeqCst);
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    bench.script.in_progress.subscribe().wait_for(|asked| *asked > 0).await.unwrap();
    let canceled = Instant::now();
    bench.script.stop(job.fence, StopCause::Cancel);
    assert_eq!(bench.outcome(&job).await.outcome, OutcomeKind::Canceled);
    assert!(canceled.elapsed() < Duration::from_secs(5), "{:?}", canceled.elapsed());
    assert_eq!(bench.ledger_text(), "start\ninterrupted\n");
    worker.drain().await;
}

#[tokio::test]
async fn d3_a_stop_that_comes_after_the_tool_failed_changes_nothing() {
    let bench = Bench::with_script("exit 3");
    // The tool has failed by itself long before the log is through and the cancel arrives.
    bench.script.down("append_log");
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, Order::default());
    bench.script.until("it is claimed", |s| s.look(job.attempt, |o| o.claimed.is_some())).await;
    let workspace = bench.config.workspace_root.join(job.attempt.to_string()).join("private/log.spool");
    let failed = async {
        while !std::fs::read(&workspace)
            .is_ok_and(|log| String::from_utf8_lossy(&log).contains("tool_failed"))
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), failed).await.unwrap();
    bench.script.stop(job.fence, StopCause::Cancel);
    bench.script.up("append_log");
    let outcome = bench.outcome(&job).await;
    assert_eq!((outcome.outcome, outcome.exit_code, outcome.stop), (OutcomeKind::Failed, Some(3), None));
    worker.drain().await;
}
