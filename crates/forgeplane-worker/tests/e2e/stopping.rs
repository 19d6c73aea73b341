//! Cancel, deadline, shutdown: one SIGINT, the grace period, nothing left behind.

use std::time::{Duration, Instant};

use forgeplane_core::evidence::Cleanup;
use forgeplane_core::model::*;

use crate::support::{House, house, terraform};

/// A tool whose apply runs until it is interrupted, then does `on_interrupt`.
fn endless(house: &House, on_interrupt: &str) -> std::path::PathBuf {
    house.fake_terraform(&format!(
        r#"case "$1" in
             plan) for a in "$@"; do case "$a" in -out=*) echo plan > "${{a#-out=}}";; esac; done; exit 2;;
             show) echo '{{}}'; exit 0;;
             apply) trap 'echo interrupted >> "$LEDGER"; {on_interrupt}' INT
                    echo applying
                    while :; do sleep 0.05; done;;
           esac"#
    ))
}

async fn applying(house: &House) -> forgeplane_core::id::RunId {
    let run = house.create(Operation::Destroy { mode: DestroyMode::Perform }).await;
    house.until_logged(run, "applying").await;
    run
}

#[tokio::test]
async fn d4_t074_twenty_cancels_are_one_interrupt() {
    let house = house().await;
    let tool = endless(&house, "sleep 0.5; exit 1");
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let run = applying(&house).await;
    for _ in 0..20 {
        let canceled = house.coordinator.cancel(&house.alice, run, Some("enough".into())).await.unwrap();
        assert_eq!(canceled.status, RunStatus::Canceling);
    }
    let view = house.ended(run).await;
    assert_eq!(view.run.status, RunStatus::Canceled);
    assert_eq!(house.ledger_text(), "interrupted\n");
    let outcome = house.outcome(run).await;
    assert_eq!((outcome.stop, outcome.forced, outcome.started), (Some(StopCause::Cancel), false, true));
    let again = house.coordinator.cancel(&house.alice, run, None).await.unwrap_err();
    assert_eq!(again.code(), "already_terminal");
}

#[tokio::test]
async fn d2_a_tool_that_completes_after_the_interrupt_has_succeeded() {
    let house = house().await;
    let tool = endless(&house, "exit 0");
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let run = applying(&house).await;
    house.coordinator.cancel(&house.alice, run, None).await.unwrap();
    let view = house.ended(run).await;
    assert_eq!(view.run.status, RunStatus::Succeeded);
    assert_eq!(house.outcome(run).await.stop, Some(StopCause::Cancel));
}

#[tokio::test]
async fn e1_t063_a_tool_that_ignores_the_interrupt_is_killed_after_the_grace() {
    let house = house().await;
    let tool = endless(&house, ":");
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |t| t.cancel_grace_s = 1).await;
    let run = applying(&house).await;
    let begun = Instant::now();
    house.coordinator.cancel(&house.alice, run, None).await.unwrap();
    let view = house.ended(run).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "killed before the grace ended");
    assert_eq!(view.run.status, RunStatus::Canceled);
    let outcome = house.outcome(run).await;
    assert!(outcome.forced && outcome.effects_unknown);
    assert_eq!(outcome.cleanup, Cleanup::Clean);
    assert!(house.processes().is_empty());
}

#[tokio::test]
async fn a_deadline_ends_a_run_as_timed_out() {
    let house = house().await;
    let tool = endless(&house, "exit 1");
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |t| t.execution_timeout_s = 1).await;
    let run = house.create(Operation::Destroy { mode: DestroyMode::Perform }).await;
    let view = house.ended(run).await;
    assert_eq!(view.run.status, RunStatus::TimedOut);
    assert_eq!(view.run.error.unwrap().code, "deadline_exceeded");
    assert_eq!(house.outcome(run).await.stop, Some(StopCause::Deadline));
}

#[tokio::test]
async fn t053_t061_t062_canceling_a_real_apply_saves_the_state_and_frees_the_instance() {
    let slow = r#"
        resource "terraform_data" "first" { input = "kept" }
        resource "terraform_data" "second" {
          input = terraform_data.first.output
          provisioner "local-exec" { command = "echo sleeping; sleep 30" }
        }"#;
    let house = house().await;
    let _worker = house.worker(Tool::Terraform, &terraform()).await;
    house.app(Tool::Terraform, &[("main.tf", slow)], |_| {}).await;
    let plan = house.succeed(Operation::Plan { destroy: false }).await;
    let apply = house.coordinator.promote(&house.alice, plan.run.id).await.unwrap();
    house.until_logged(apply.id, "sleeping").await;
    let begun = Instant::now();
    house.coordinator.cancel(&house.alice, apply.id, None).await.unwrap();
    let view = house.ended(apply.id).await;
    assert!(begun.elapsed() < Duration::from_secs(25), "the interrupt did not reach the provisioner");
    assert_eq!(view.run.status, RunStatus::Canceled);
    let state = house.state().await.to_string();
    assert!(state.contains("kept"), "{state}");
    assert!(house.processes().is_empty());
    house.succeed(Operation::PlanOnly).await;
}

#[tokio::test]
async fn t075_canceling_before_a_worker_claims_is_immediate() {
    let house = house().await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let run = house.create(Operation::PlanOnly).await;
    let canceled = house.coordinator.cancel(&house.alice, run, None).await.unwrap();
    assert_eq!(canceled.status, RunStatus::Canceled);
}

#[tokio::test]
async fn e2_t068_t069_processes_that_leave_the_group_are_gone_when_the_run_ends() {
    let house = house().await;
    let tool = house.fake_terraform("setsid nohup sh -c 'sleep 300 & sleep 300' >/dev/null 2>&1 & exit 0");
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let run = house.create(Operation::PlanOnly).await;
    house.ended(run).await;
    assert!(house.processes().is_empty());
    assert_eq!(house.outcome(run).await.cleanup, Cleanup::Clean);
}

#[tokio::test]
async fn e22_a_run_ends_with_its_tool_even_if_a_child_keeps_the_pipes_open() {
    let house = house().await;
    let tool = house.fake_terraform("setsid sleep 300 & echo the end; exit 1");
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let begun = Instant::now();
    let run = house.create(Operation::PlanOnly).await;
    let view = house.ended(run).await;
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(view.run.status, RunStatus::Failed);
    assert!(house.log(run).await.contains("the end"));
}

#[tokio::test]
async fn t056_a_tool_that_reads_its_input_gets_the_end_of_it() {
    let house = house().await;
    let tool = house.fake_terraform("cat > \"$LEDGER\"; echo read everything; exit 1");
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let run = house.create(Operation::PlanOnly).await;
    house.ended(run).await;
    assert!(house.log(run).await.contains("read everything"));
}

#[tokio::test]
async fn t057_a_tool_that_crashes_fails_the_run_and_frees_the_instance() {
    let house = house().await;
    let tool = house.fake_terraform(
        r#"case "$1" in
             plan) for a in "$@"; do case "$a" in -out=*) echo plan > "${a#-out=}";; esac; done; exit 2;;
             show) echo '{}'; exit 0;;
             apply) kill -SEGV $$;;
           esac"#,
    );
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    for _ in 0..2 {
        let run = house.create(Operation::Destroy { mode: DestroyMode::Perform }).await;
        let view = house.ended(run).await;
        assert_eq!(view.run.status, RunStatus::Failed);
        assert_eq!(house.outcome(run).await.signal, Some(11));
    }
}

#[tokio::test]
async fn t001_a_worker_that_is_told_to_stop_interrupts_its_tool_and_signs_before_it_ends() {
    let house = house().await;
    let tool = endless(&house, "exit 1");
    let worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let run = applying(&house).await;
    worker.shutdown.stop();
    worker.ended().await;
    assert_eq!(house.view(run).await.run.status, RunStatus::Canceled);
    assert_eq!(house.ledger_text(), "interrupted\n");
}

#[tokio::test]
async fn d11_a_draining_worker_finishes_what_it_runs_and_takes_nothing_new() {
    let house = house().await;
    let go = house.directory.path().join("go");
    let tool = house.fake_terraform(&format!(
        "echo running; while [ ! -e {} ]; do sleep 0.05; done; exit 1",
        go.display()
    ));
    let worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let first = house.create(Operation::PlanOnly).await;
    house.until_logged(first, "running").await;
    worker.shutdown.drain.cancel();
    let second = house.create(Operation::PlanOnly).await;
    std::fs::write(&go, "").unwrap();
    worker.ended().await;
    assert!(house.view(first).await.run.status.is_terminal());
    assert_eq!(house.view(second).await.run.status, RunStatus::Queued);
}

#[tokio::test]
async fn f1_a_log_above_its_limit_ends_with_a_visible_marker() {
    let house = house().await;
    let tool = house.fake_terraform("head -c 300000 /dev/zero | tr '\\0' x; exit 1");
    let mut config = house.config(Tool::Terraform, &tool).await;
    config.log_cap_bytes = 100_000;
    let _worker = house.worker_with(config, house.coordinator.in_process()).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let run = house.create(Operation::PlanOnly).await;
    let view = house.ended(run).await;
    assert_eq!(view.run.status, RunStatus::Failed);
    let log = house.log(run).await;
    assert!(log.contains("the log reached its limit of 100000 bytes"), "{}", log.len());
    assert!(log.len() < 101_000);
    assert!(!house.outcome(run).await.log_incomplete);
}

#[tokio::test]
async fn f2_any_bytes_survive_in_the_log() {
    let house = house().await;
    let tool = house.fake_terraform(r"printf 'a\377\000\033[31mred\r\nb'; exit 1");
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let run = house.create(Operation::PlanOnly).await;
    house.ended(run).await;
    let slice = house.coordinator.log(&house.alice, run, None, 0, usize::MAX).await.unwrap();
    let stdout: Vec<u8> = slice
        .chunks
        .iter()
        .filter(|c| c.frame.stream == LogStream::Stdout)
        .flat_map(|c| c.frame.bytes.to_vec())
        .collect();
    assert_eq!(stdout, b"a\xff\x00\x1b[31mred\r\nb");
}

/// A tool that says nothing for too long is interrupted, and has the grace to save its state; one that talks is not.
#[tokio::test]
async fn a_tool_that_prints_nothing_for_too_long_is_interrupted() {
    let house = house().await;
    let tool = house.fake_terraform(
        "case $1 in plan) ;; *) exit 0;; esac\ntrap 'echo interrupted >> \"$LEDGER\"; exit 1' INT\n\
         i=0; while [ $i -lt 30 ]; do echo talking; sleep 0.1; i=$((i+1)); done\n\
         echo silent >> \"$LEDGER\"; while :; do sleep 0.05; done",
    );
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |t| t.no_output_timeout_s = Some(2)).await;
    let run = house.create(Operation::PlanOnly).await;
    let view = house.ended(run).await;
    assert_eq!(view.run.status, RunStatus::TimedOut);
    assert_eq!(view.run.error.unwrap().code, "no_output");
    assert_eq!(house.outcome(run).await.stop, Some(StopCause::Silence));
    assert_eq!(house.ledger_text(), "silent\ninterrupted\n");
}
