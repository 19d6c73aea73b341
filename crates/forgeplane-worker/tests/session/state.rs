//! State documents: none is lost, whoever goes away.

use forgeplane_core::Code;
use forgeplane_core::model::*;

use crate::bench::{Bench, Order, terraform};
use crate::script::Fault;

/// A tool whose apply saves one document and then waits for the answer, ignoring the interrupt.
const SAVING: &str = r#"case "$1" in
  plan) for a in "$@"; do case "$a" in -out=*) echo plan > "${a#-out=}";; esac; done; exit 2;;
  show) echo '{}'; exit 0;;
  apply) trap '' INT
         echo saving >> "$LEDGER"
         python3 -c '
import base64, os, urllib.request
request = urllib.request.Request(os.environ["TF_HTTP_ADDRESS"], data=b"{\"serial\":1}", method="POST")
pair = os.environ["TF_HTTP_USERNAME"] + ":" + os.environ["TF_HTTP_PASSWORD"]
request.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
print("answered", urllib.request.urlopen(request).status, flush=True)'
         exit $?;;
esac"#;

fn perform() -> Order {
    Order { operation: Operation::Destroy { mode: DestroyMode::Perform }, grace_s: 1, ..Order::default() }
}

#[tokio::test]
async fn a_save_is_answered_when_it_is_committed_and_not_before() {
    let bench = Bench::with_script(SAVING);
    bench.script.next("put_state", [Fault::Down, Fault::Lost]);
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, perform());
    let outcome = bench.outcome(&job).await;
    assert_eq!((outcome.outcome, outcome.generation), (OutcomeKind::Succeeded, Some(1)));
    assert!(bench.log(&job).contains("answered 200"));
    assert_eq!(bench.script.look(job.attempt, |o| o.states.len()), 1);
    assert!(bench.kept("unsaved").is_empty());
    worker.drain().await;
}

#[tokio::test]
async fn a_save_goes_on_when_the_tool_was_killed_while_it_waited() {
    let bench = Bench::with_script(SAVING);
    bench.script.down("put_state");
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, perform());
    bench.until_ledger("saving").await;
    bench.script.until("the document is on its way", |s| s.look(job.attempt, |o| o.claimed.is_some())).await;
    // Killed after the grace; the document is safe on disk before anything else happens.
    bench.script.stop(job.fence, StopCause::Cancel);
    let unsaved = bench.config.state_dir.join("unsaved/1.tfstate");
    let kept = async {
        while std::fs::read_to_string(&unsaved).unwrap_or_default() != "{\"serial\":1}" {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), kept).await.unwrap();
    assert!(bench.script.sent().is_empty(), "signed before the state was settled");
    bench.script.up("put_state");
    let outcome = bench.outcome(&job).await;
    assert_eq!((outcome.outcome, outcome.forced, outcome.generation), (OutcomeKind::Canceled, true, Some(1)));
    assert_eq!(bench.script.look(job.attempt, |o| o.states.len()), 1);
    assert!(bench.kept("unsaved").is_empty());
    worker.drain().await;
}

#[tokio::test]
async fn t086_a_document_that_cannot_be_delivered_before_the_worker_ends_is_kept() {
    let bench = Bench::with_script(SAVING);
    bench.script.down("put_state");
    bench.script.down("conclude");
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, perform());
    bench.until_ledger("saving").await;
    worker.shutdown.stop();
    worker.result().await.unwrap();
    assert_eq!(bench.kept("unsaved"), [("1.tfstate".to_owned(), "{\"serial\":1}".to_owned())]);

    bench.script.up("conclude");
    let worker = bench.start().await.unwrap();
    let outcome = bench.outcome(&job).await;
    assert_eq!(outcome.outcome, OutcomeKind::Failed);
    assert_eq!(outcome.error.unwrap().code, "state_upload_failed");
    assert_eq!(bench.kept("unsaved").len(), 1);
    worker.drain().await;
}

#[tokio::test]
async fn a_document_of_a_worker_that_was_taken_out_of_service_is_kept() {
    let bench = Bench::with_script(SAVING);
    bench.script.down("put_state");
    let worker = bench.start().await.unwrap();
    bench.attempt(1, perform());
    bench.until_ledger("saving").await;
    bench.script.disable(true);
    bench.script.up("put_state");
    bench.script.stop(Fence(1), StopCause::Cancel);
    // Nobody tells it to stop the tool any more, and it does not do so by itself; its shutdown does.
    worker.shutdown.stop();
    assert_eq!(worker.result().await.unwrap_err().code(), "worker_disabled");
    assert_eq!(bench.kept("unsaved").len(), 1);
    assert!(bench.kept("journal")[0].1.contains(r#""stage":"signed""#));
}

#[tokio::test]
async fn a_stale_write_fails_the_attempt_with_its_own_code() {
    let bench = Bench::with_script(SAVING);
    bench.script.next("put_state", [Fault::Refused(Code::StaleState)]);
    let worker = bench.start().await.unwrap();
    let job = bench.attempt(1, perform());
    let outcome = bench.outcome(&job).await;
    assert_eq!((outcome.outcome, outcome.generation), (OutcomeKind::Failed, None));
    assert_eq!(outcome.error.unwrap().code, "stale_state");
    worker.drain().await;
}

#[tokio::test]
async fn a_source_cannot_take_the_state_away_from_its_backend() {
    let local = "terraform {\n  backend \"local\" { path = \"elsewhere.tfstate\" }\n}\n";
    let main =
        ("main.tf", "resource \"terraform_data\" \"a\" {}\noutput \"o\" { value = terraform_data.a.id }");
    let bench = Bench::with_tool(terraform());
    let worker = bench.start().await.unwrap();
    // One that loses against the worker's, and a data directory that says otherwise.
    let files = vec![
        main,
        ("backend.tf", local),
        ("main_override.tf", local),
        (
            ".terraform/terraform.tfstate",
            "{\"version\":3,\"backend\":{\"type\":\"local\",\"config\":{},\"hash\":1}}",
        ),
        (".terraform/environment", "another"),
    ];
    // Removing everything of an empty state writes nothing; what is asked is which backend answered.
    let first = bench.attempt(1, Order { files, ..perform() });
    let outcome = bench.outcome(&first).await;
    assert_eq!(outcome.outcome, OutcomeKind::Succeeded, "{}", bench.log(&first));
    assert!(
        bench.log(&first).contains("Successfully configured the backend \"http\""),
        "{}",
        bench.log(&first)
    );
    // One that would win.
    let second = bench.attempt(2, Order { files: vec![main, ("zzzzz_override.tf", local)], ..perform() });
    let outcome = bench.outcome(&second).await;
    assert_eq!(outcome.error.unwrap().code, "backend_conflict");
    assert!(!outcome.started);
    worker.drain().await;
}
