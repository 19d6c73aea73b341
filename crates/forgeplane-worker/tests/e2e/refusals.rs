//! What a worker refuses: to start, to execute, to be somebody else.

use std::sync::Arc;

use bytes::Bytes;
use forgeplane_core::model::*;
use forgeplane_core::ports::{Bundle, EntropyExt as _, SystemEntropy};
use forgeplane_worker::sandbox::Isolation;
use forgeplane_worker::{Shutdown, Worker, WorkerConfig};

use crate::recovery::{Lossy, Via};
use crate::support::{House, house, name, pack, terraform};

async fn start_error(house: &House, config: WorkerConfig) -> (&'static str, String) {
    let worker = Worker::new(config, house.coordinator.in_process(), house.coordinator.queue());
    match worker.start(Shutdown::new()).await {
        Ok(_) => panic!("the worker started"),
        Err(error) => (Box::leak(error.code().to_owned().into_boxed_str()), error.to_string()),
    }
}

#[tokio::test]
async fn e19_user_ids_that_would_not_isolate_are_refused() {
    let house = house().await;
    let Isolation::Uid { uid, gid, reaper_uid } = house.isolation else { unreachable!() };
    for isolation in [
        Isolation::Uid { uid: 0, gid, reaper_uid },
        Isolation::Uid { uid, gid, reaper_uid: uid },
        Isolation::Uid { uid, gid, reaper_uid: 0 },
    ] {
        let mut config = house.config(Tool::Terraform, &terraform()).await;
        config.isolation = isolation;
        let (code, message) = start_error(&house, config).await;
        assert_eq!(code, "invalid_ids", "{message}");
    }
}

#[tokio::test]
async fn two_workers_of_a_host_never_share_a_user_id() {
    let house = house().await;
    let _first = house.worker(Tool::Terraform, &terraform()).await;
    let mut second = house.config(Tool::Terraform, &terraform()).await;
    second.state_dir = house.directory.path().join("second");
    second.name = name("w2");
    let (code, message) = start_error(&house, second).await;
    assert_eq!(code, "uid_taken", "{message}");
}

#[tokio::test]
async fn a_configured_tool_that_is_missing_or_mute_is_a_start_up_error() {
    let house = house().await;
    let missing = house.config(Tool::Terraform, &house.directory.path().join("nothing")).await;
    assert_eq!(start_error(&house, missing).await.0, "tool_missing");
    let mute = house.script("mute", "exit 3");
    let mute = house.config(Tool::Terraform, &mute).await;
    let (code, message) = start_error(&house, mute).await;
    assert_eq!(code, "tool_check_failed");
    assert!(message.contains("mute"), "{message}");
}

#[tokio::test]
async fn without_isolation_a_worker_is_only_taken_if_the_coordinator_allows_it() {
    let house = house().await;
    let mut config = house.config(Tool::Terraform, &terraform()).await;
    config.isolation = Isolation::UnsafeNone;
    let (code, message) = start_error(&house, config).await;
    assert_eq!(code, "worker_disabled", "{message}");
}

#[tokio::test]
async fn g12_a_wrong_enrollment_token_admits_nobody() {
    let house = house().await;
    let mut config = house.config(Tool::Terraform, &terraform()).await;
    config.enrollment_token = Some("fpe_guessed".to_owned().into());
    assert_eq!(start_error(&house, config).await.0, "enrollment_refused");
}

#[tokio::test]
async fn another_coordinator_behind_the_same_address_is_noticed() {
    let house = house().await;
    let config = house.config(Tool::Terraform, &terraform()).await;
    let worker = house.worker_with(config.clone(), house.coordinator.in_process()).await;
    worker.shutdown.stop();
    worker.ended().await;
    let other = crate::support::house().await;
    let mut config = WorkerConfig { isolation: other.isolation, ..config };
    config.enrollment_token = other.config(Tool::Terraform, &terraform()).await.enrollment_token;
    assert_eq!(start_error(&other, config).await.0, "coordinator_changed");
}

/// Runs with bundles that were changed on their way: the tool must never start.
async fn tampered(operation: Operation, change: fn(&mut Bundle)) -> (RunStatus, String, String) {
    let house = house().await;
    let tool = house.fake_terraform(
        r#"echo "start $1" >> "$LEDGER"
           case "$1" in
             plan) for a in "$@"; do case "$a" in -out=*) echo plan > "${a#-out=}";; esac; done; exit 2;;
             show) echo '{}'; exit 0;;
           esac"#,
    );
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let plan = if operation == Operation::Apply {
        let worker = house.worker(Tool::Terraform, &tool).await;
        let plan = house.succeed(Operation::Plan { destroy: false }).await;
        worker.shutdown.stop();
        worker.ended().await;
        std::fs::write(house.ledger(), "").unwrap();
        Some(plan.run.id)
    } else {
        None
    };
    let lossy = Arc::into_inner(Lossy::new(&house)).unwrap();
    let lossy = Arc::new(Lossy { bundle: change, ..lossy });
    let config = house.config(Tool::Terraform, &tool).await;
    let _worker = house.worker_with(config, Via(lossy)).await;
    let run = match plan {
        Some(plan) => house.coordinator.promote(&house.alice, plan).await.unwrap().id,
        None => house.create(operation).await,
    };
    let view = house.ended(run).await;
    (view.run.status, view.run.error.unwrap().code, house.ledger_text())
}

fn flip(bytes: &mut Bytes) {
    let mut changed = bytes.to_vec();
    changed[0] ^= 1;
    *bytes = changed.into();
}

#[tokio::test]
async fn g5_a_bundle_with_one_flipped_bit_is_refused_before_the_claim() {
    let changes: [fn(&mut Bundle); 4] = [
        |b| flip(&mut b.source),
        |b| flip(&mut b.snapshot),
        |b| b.manifest.payload = b.manifest.payload.replacen('e', "f", 1),
        |b| b.state = Some(Bytes::from_static(b"{}")),
    ];
    for change in changes {
        let (status, code, started) = tampered(Operation::PlanOnly, change).await;
        assert_eq!((status, code.as_str(), started.as_str()), (RunStatus::Failed, "bundle_refused", ""));
    }
}

#[tokio::test]
async fn t040_g27_a_plan_file_that_is_not_the_approved_one_is_never_applied() {
    let changes: [fn(&mut Bundle); 2] =
        [|b| flip(b.plan.as_mut().unwrap()), |b| b.plan = Some(Bytes::from_static(b"another plan"))];
    for change in changes {
        let (status, code, started) = tampered(Operation::Apply, change).await;
        assert_eq!(
            (status, code.as_str(), started.as_str()),
            (RunStatus::Failed, "artifact_digest_mismatch", "")
        );
    }
}

#[tokio::test]
async fn g4_a_hostile_source_fails_the_run_and_touches_nothing() {
    let house = house().await;
    let tool = house.fake_terraform("echo start >> \"$LEDGER\"");
    let _worker = house.worker(Tool::Terraform, &tool).await;
    let canary = house.directory.path().join("canary");
    let mut archive =
        tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    let mut header = tar::Header::new_gnu();
    let evil = format!("../../../{}", canary.display());
    let target = &mut header.as_mut_bytes()[..evil.len()];
    target.copy_from_slice(evil.as_bytes());
    header.set_size(4);
    header.set_mode(0o644);
    header.set_cksum();
    archive.append(&header, &b"evil"[..]).unwrap();
    let source: Bytes = archive.into_inner().unwrap().finish().unwrap().into();
    house.app(Tool::Terraform, &[], |t| t.source = source).await;
    let run = house.create(Operation::PlanOnly).await;
    let view = house.ended(run).await;
    assert_eq!(
        (view.run.status, view.run.error.unwrap().code.as_str()),
        (RunStatus::Failed, "invalid_bundle")
    );
    assert!(!canary.exists());
    assert_eq!(house.ledger_text(), "");
}

#[tokio::test]
async fn e23_a_tool_that_was_replaced_after_the_start_is_not_run() {
    let house = house().await;
    let tool = house.fake_terraform("echo start >> \"$LEDGER\"");
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    house.fake_terraform("echo another one >> \"$LEDGER\"");
    let run = house.create(Operation::PlanOnly).await;
    let view = house.ended(run).await;
    assert_eq!(view.run.error.unwrap().code, "tool_changed");
    assert_eq!(house.ledger_text(), "");
}

#[tokio::test]
async fn e12_the_tool_cannot_read_the_workers_key_or_journal() {
    let house = house().await;
    let worker = house.directory.path().join("worker");
    let tool = house.fake_terraform(&format!(
        "cat {0}/identity.key {0}/journal/* && echo READ >> \"$LEDGER\"; exit 1",
        worker.display()
    ));
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let run = house.create(Operation::PlanOnly).await;
    house.ended(run).await;
    assert!(house.log(run).await.contains("Permission denied"));
    assert_eq!(house.ledger_text(), "");
}

#[tokio::test]
async fn a_state_written_by_nobody_elses_leave_is_refused_and_kept() {
    // The tool saves a document of another lineage: it must not replace what is there.
    let house = house().await;
    let worker = house.worker(Tool::Terraform, &terraform()).await;
    house.app(Tool::Terraform, &[("main.tf", "resource \"terraform_data\" \"a\" {}")], |_| {}).await;
    house.apply().await;
    worker.shutdown.stop();
    worker.ended().await;
    let before = house.state().await;
    let foreign = format!(
        r#"{{"version":4,"serial":99,"lineage":"{}","resources":[]}}"#,
        hex::encode(SystemEntropy.bytes::<8>())
    );
    let tool = house.fake_terraform(&format!(
        r#"case "$1" in
             plan) for a in "$@"; do case "$a" in -out=*) echo plan > "${{a#-out=}}";; esac; done; exit 2;;
             show) echo '{{}}'; exit 0;;
             apply) python3 - <<'EOF'
import base64, os, urllib.request
request = urllib.request.Request(os.environ["TF_HTTP_ADDRESS"], data=b'''{foreign}''', method="POST")
token = base64.b64encode((os.environ["TF_HTTP_USERNAME"] + ":" + os.environ["TF_HTTP_PASSWORD"]).encode()).decode()
request.add_header("Authorization", "Basic " + token)
try:
    urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    print("answered", error.code)
EOF
             exit 0;;
           esac"#
    ));
    let _worker = house.worker(Tool::Terraform, &tool).await;
    let run = house.create(Operation::Destroy { mode: DestroyMode::Perform }).await;
    let view = house.ended(run).await;
    assert_eq!(
        (view.run.status, view.run.error.unwrap().code.as_str()),
        (RunStatus::Failed, "invalid_state")
    );
    assert!(house.log(run).await.contains("answered 409"));
    assert_eq!(house.state().await, before);
    let orphans = house.coordinator.orphan_states(&house.alice, "app").await.unwrap();
    assert_eq!(orphans.len(), 1);
    assert_eq!(orphans[0].reason, "invalid_state");
}

#[tokio::test]
async fn packing_helper_makes_what_the_worker_can_unpack() {
    assert!(forgeplane_worker::unpack::check(&pack(&[("a/b.tf", "x")]), &Default::default()).is_ok());
}
