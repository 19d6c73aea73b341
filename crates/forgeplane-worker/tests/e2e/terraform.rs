//! Every operation of Terraform and OpenTofu, for real.

use std::path::Path;

use forgeplane_core::Code;
use forgeplane_core::coordinator::CoordinatorError;
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::Cleanup;
use forgeplane_core::model::*;
use forgeplane_core::ports::Page;
use forgeplane_worker::Shutdown;
use forgeplane_worker::executor::TerraformExecutor;
use serde_json::json;

use crate::support::{house, name, terraform};

const HELLO: &str = r#"
variable "greeting" {
  default = "hello"
}
resource "terraform_data" "a" {
  input = var.greeting
}
resource "terraform_data" "b" {
  input = terraform_data.a.output
}
output "said" {
  value = terraform_data.b.output
}
"#;

#[tokio::test]
async fn a_plan_is_promoted_approved_and_applied_exactly() {
    let house = house().await;
    let _worker = house.worker(Tool::Terraform, &terraform()).await;
    house.app(Tool::Terraform, &[("main.tf", HELLO)], |t| t.approval = ApprovalPolicy::default()).await;

    let plan = house.succeed(Operation::Plan { destroy: false }).await;
    assert_eq!(plan.run.summary, Some(PlanSummary { add: 2, ..PlanSummary::default() }));
    let artifact = plan.plan.unwrap();
    assert!(artifact.json.is_some() && artifact.text.is_some(), "{artifact:?}");
    let (_, text) = house.coordinator.plan_text(&house.alice, plan.run.id).await.unwrap();
    assert!(String::from_utf8_lossy(&text).contains("terraform_data.a will be created"));

    let apply = house.coordinator.promote(&house.alice, plan.run.id).await.unwrap();
    assert_eq!(apply.status, RunStatus::PendingApproval);
    let approval = apply.approval.unwrap();
    let own = house.coordinator.review(&house.alice, approval, Verdict::Approve, None).await;
    assert!(matches!(own, Err(CoordinatorError::Refused(r)) if r.code == Code::SelfApproval));
    house.coordinator.review(&house.bob, approval, Verdict::Approve, None).await.unwrap();
    let applied = house.must_succeed(apply.id).await;

    assert_eq!(applied.run.summary, Some(PlanSummary { add: 2, ..PlanSummary::default() }));
    let outcome = house.outcome(apply.id).await;
    assert_eq!(outcome.plan, Some(artifact.plan));
    assert_eq!((outcome.outcome, outcome.cleanup), (OutcomeKind::Succeeded, Cleanup::Clean));
    let log = house.log(apply.id).await;
    assert_eq!(
        (outcome.log_bytes, outcome.log, outcome.log_incomplete),
        (log.len() as u64, Digest::of(log.as_bytes()), false)
    );
    assert!(log.contains("Apply complete! Resources: 2 added"), "{log}");

    let outputs = house.coordinator.outputs(&house.alice, "app").await.unwrap();
    assert_eq!(outputs[0].value, Some(json!("hello")));
    let generations = house.coordinator.state_generations(&house.alice, "app", &Page::all()).await.unwrap();
    let head = generations.first().unwrap();
    assert_eq!((outcome.generation, outcome.state), (Some(head.generation), Some(head.digest)));
    assert_eq!(head.resources, 2);
    assert!(house.processes().is_empty());
    let left: Vec<_> = std::fs::read_dir(house.directory.path().join("work")).unwrap().collect();
    assert!(left.is_empty(), "workspaces were left behind: {left:?}");
}

#[tokio::test]
async fn t050_neither_plan_nor_state_holds_an_address_or_a_credential() {
    let house = house().await;
    let _worker = house.worker(Tool::Terraform, &terraform()).await;
    house.app(Tool::Terraform, &[("main.tf", HELLO)], |_| {}).await;
    let plan = house.succeed(Operation::Plan { destroy: false }).await;
    let (_, json) = house.coordinator.plan_json(&house.alice, plan.run.id).await.unwrap();
    let json = String::from_utf8_lossy(&json).into_owned();
    assert!(!json.contains("127.0.0.1") && !json.contains("password"), "{json}");
}

#[tokio::test]
async fn previews_and_plans_only_show_and_cannot_be_promoted() {
    let house = house().await;
    let _worker = house.worker(Tool::Terraform, &terraform()).await;
    house.app(Tool::Terraform, &[("main.tf", HELLO)], |_| {}).await;
    for operation in [Operation::PlanOnly, Operation::Preview] {
        let view = house.succeed(operation).await;
        assert_eq!(view.run.summary, Some(PlanSummary { add: 2, ..PlanSummary::default() }));
        assert!(view.plan.is_none());
        let refused = house.coordinator.promote(&house.alice, view.run.id).await.unwrap_err();
        assert_eq!(refused.code(), "not_promotable");
    }
    assert!(house.coordinator.state_generations(&house.alice, "app", &Page::all()).await.unwrap().is_empty());
}

#[tokio::test]
async fn destroy_is_planned_and_applied_or_performed_at_once_and_teardown_retires_the_instance() {
    let house = house().await;
    let _worker = house.worker(Tool::Terraform, &terraform()).await;
    house.app(Tool::Terraform, &[("main.tf", HELLO)], |_| {}).await;
    house.apply().await;

    let plan = house.succeed(Operation::Destroy { mode: DestroyMode::Plan }).await;
    assert_eq!(plan.run.summary, Some(PlanSummary { destroy: 2, ..PlanSummary::default() }));
    let apply = house.coordinator.promote(&house.alice, plan.run.id).await.unwrap();
    house.must_succeed(apply.id).await;
    assert_eq!(house.state().await["resources"], json!([]));

    house.apply().await;
    let performed = house.succeed(Operation::Destroy { mode: DestroyMode::Perform }).await;
    assert_eq!(performed.run.summary, Some(PlanSummary { destroy: 2, ..PlanSummary::default() }));
    assert_eq!(house.state().await["resources"], json!([]));

    house.apply().await;
    let torn = house.succeed(Operation::Teardown).await;
    let instance = house.coordinator.instance(&house.alice, "app").await.unwrap();
    assert_eq!(instance.instance.torn_down_by, Some(torn.run.id));
    assert!(instance.state.unwrap().archived);
}

#[tokio::test]
async fn t045_t036_of_two_plans_on_empty_state_only_one_can_be_applied() {
    let house = house().await;
    let _worker = house.worker(Tool::Terraform, &terraform()).await;
    house.app(Tool::Terraform, &[("main.tf", HELLO)], |_| {}).await;
    let first = house.succeed(Operation::Plan { destroy: false }).await;
    let second = house.succeed(Operation::Plan { destroy: false }).await;
    let apply = house.coordinator.promote(&house.alice, first.run.id).await.unwrap();
    house.must_succeed(apply.id).await;
    let refused = house.coordinator.promote(&house.alice, second.run.id).await.unwrap_err();
    assert_eq!(refused.code(), "stale_plan");
}

/// There is no OpenTofu here: `tofu` is Terraform behind a wrapper that this test writes.
#[tokio::test]
async fn tofu_runs_by_its_own_label() {
    let house = house().await;
    let tofu = house.script("tofu", &format!("exec {} \"$@\"", terraform().display()));
    let _worker = house.worker(Tool::Tofu, &tofu).await;
    house.app(Tool::Tofu, &[("main.tf", HELLO)], |_| {}).await;
    let apply = house.apply().await;
    let outcome = house.outcome(apply.run.id).await;
    assert_eq!(outcome.tool.unwrap().tool, Tool::Tofu);
    assert_eq!(house.state().await["outputs"]["said"]["value"], json!("hello"));
}

#[tokio::test]
async fn t090_a_failing_apply_keeps_what_was_created_before() {
    let failing = r#"
        resource "terraform_data" "good" { input = 1 }
        resource "terraform_data" "bad" {
          input = terraform_data.good.output
          provisioner "local-exec" { command = "exit 7" }
        }"#;
    let house = house().await;
    let _worker = house.worker(Tool::Terraform, &terraform()).await;
    house.app(Tool::Terraform, &[("main.tf", failing)], |_| {}).await;
    let plan = house.succeed(Operation::Plan { destroy: false }).await;
    let apply = house.coordinator.promote(&house.alice, plan.run.id).await.unwrap();
    let view = house.ended(apply.id).await;
    assert_eq!(view.run.status, RunStatus::Failed);
    assert_eq!(view.run.error.unwrap().code, "tool_failed");
    let state = house.state().await.to_string();
    assert!(state.contains("good"), "{state}");
    // The state moved, so the bound plan cannot be tried again.
    let refused = house.coordinator.requeue(&house.alice, apply.id).await.unwrap_err();
    assert_eq!(refused.code(), "replan_required");
    // A new plan goes on from there.
    let plan = house.succeed(Operation::Plan { destroy: false }).await;
    assert_eq!(plan.run.summary.unwrap().destroy, 1);
}

#[tokio::test]
async fn t132_invalid_configuration_and_missing_variables_fail_with_the_tools_own_words() {
    for (source, words) in [
        ("resource \"terraform_data\" {", "Error"),
        ("variable \"needed\" { type = string }", "No value for required variable"),
    ] {
        let house = house().await;
        let _worker = house.worker(Tool::Terraform, &terraform()).await;
        house.app(Tool::Terraform, &[("main.tf", source)], |_| {}).await;
        let run = house.create(Operation::Plan { destroy: false }).await;
        let view = house.ended(run).await;
        assert_eq!(view.run.status, RunStatus::Failed);
        assert_eq!(view.run.error.unwrap().code, "tool_failed");
        let log = house.log(run).await;
        assert!(log.contains(words), "{log}");
    }
}

#[tokio::test]
async fn t110_a_secret_reaches_the_tool_and_is_masked_everywhere_else() {
    let source = r#"
        variable "password" { type = string }
        resource "terraform_data" "user" {
          provisioner "local-exec" {
            command     = "echo \"the password is $P and again $P\"; printf %s \"$P\" | base64; test \"$P\" = correct-horse"
            environment = { P = var.password }
          }
        }"#;
    let house = house().await;
    let _worker = house.worker(Tool::Terraform, &terraform()).await;
    let schema = json!({"type": "object", "properties": {"password": {"type": "string", "x-forgeplane-secret": true}}});
    house.app(Tool::Terraform, &[("main.tf", source)], |t| t.schema = Some(schema)).await;
    let value = "correct-horse".to_owned().into();
    house.coordinator.put_secret(&house.alice, &name("pw"), &value, vec![name("bound")]).await.unwrap();
    house.instance("bound", Object::new(), [("/password".to_owned(), name("pw"))].into()).await;
    let plan = house.create_for("bound", Operation::Plan { destroy: false }).await;
    house.must_succeed(plan).await;
    let apply = house.coordinator.promote(&house.alice, plan).await.unwrap();
    house.must_succeed(apply.id).await;
    let log = house.log(apply.id).await;
    assert!(log.contains("the password is"), "{log}");
    assert!(!log.contains("correct-horse") && !log.contains("Y29ycmVjdC1ob3JzZQ"), "{log}");
    let evidence = house.coordinator.evidence(&house.alice, apply.id, None).await.unwrap();
    assert!(!serde_json::to_string(&evidence).unwrap().contains("correct-horse"));
}

/// Credentials and settings of providers: in the environment of plan and apply, masked in the log, and no variables of the
/// source.
#[tokio::test]
async fn inputs_that_belong_into_the_environment_are_there_and_nowhere_else() {
    let source = r#"
        variable "name" { type = string }
        resource "terraform_data" "it" {
          input = var.name
          provisioner "local-exec" {
            command = "echo \"region $FORGED_REGION count $FORGED_COUNT key $FORGED_KEY\"; test \"$FORGED_KEY\" = correct-horse"
          }
        }"#;
    let house = house().await;
    let _worker = house.worker(Tool::Terraform, &terraform()).await;
    let schema = json!({"type": "object", "required": ["cloud"], "properties": {
        "name": {"type": "string"},
        "cloud": {"type": "object", "properties": {
            "region": {"type": "string", "x-forgeplane-env": "FORGED_REGION"},
            "count": {"type": "integer", "x-forgeplane-env": "FORGED_COUNT"},
            "absent": {"type": "string", "x-forgeplane-env": "FORGED_ABSENT"},
            "key": {"type": "string", "x-forgeplane-secret": true, "x-forgeplane-env": "FORGED_KEY"}}}}});
    house.app(Tool::Terraform, &[("main.tf", source)], |t| t.schema = Some(schema)).await;
    let value = "correct-horse".to_owned().into();
    house.coordinator.put_secret(&house.alice, &name("key"), &value, vec![name("bound")]).await.unwrap();
    let inputs = json!({"name": "it", "cloud": {"region": "eu-west-1", "count": 3}});
    house
        .instance(
            "bound",
            inputs.as_object().unwrap().clone(),
            [("/cloud/key".to_owned(), name("key"))].into(),
        )
        .await;
    let plan = house.create_for("bound", Operation::Plan { destroy: false }).await;
    house.must_succeed(plan).await;
    assert!(!house.log(plan).await.contains("undeclared"), "it was given as a variable too");
    let apply = house.coordinator.promote(&house.alice, plan).await.unwrap();
    house.must_succeed(apply.id).await;
    let log = house.log(apply.id).await;
    assert!(log.contains("region eu-west-1 count 3 key "), "{log}");
    assert!(!log.contains("correct-horse"), "{log}");
}

#[tokio::test]
async fn g20_the_tool_gets_nothing_of_the_workers_environment() {
    let house = house().await;
    let tool = house.fake_terraform("env > \"$LEDGER\"; exit 1");
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    let run = house.create(Operation::PlanOnly).await;
    house.ended(run).await;
    let names: Vec<String> =
        house.ledger_text().lines().filter_map(|l| l.split_once('=')).map(|(n, _)| n.to_owned()).collect();
    let allowed = ["PATH", "HOME", "TMPDIR", "LANG", "CHECKPOINT_DISABLE", "PWD", "_", "SHLVL", "OLDPWD"];
    for name in &names {
        assert!(allowed.contains(&name.as_str()) || name.starts_with("TF_"), "{name} leaked: {names:?}");
    }
    assert!(names.contains(&"TF_HTTP_PASSWORD".to_owned()));
}

#[tokio::test]
async fn t041_an_apply_never_plans_again_and_gets_no_approval_of_its_own() {
    let house = house().await;
    let real = terraform();
    let tool = house.script(
        "terraform",
        &format!("echo \"$@\" >> {}\nexec {} \"$@\"", house.ledger().display(), real.display()),
    );
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", HELLO)], |_| {}).await;
    let plan = house.succeed(Operation::Plan { destroy: false }).await;
    std::fs::write(house.ledger(), "").unwrap();
    let apply = house.coordinator.promote(&house.alice, plan.run.id).await.unwrap();
    house.must_succeed(apply.id).await;
    let commands = house.ledger_text();
    assert!(
        !commands.contains("-auto-approve") && !commands.lines().any(|l| l.starts_with("plan")),
        "{commands}"
    );
    assert_eq!(commands.lines().filter(|l| l.starts_with("apply -input=false")).count(), 1, "{commands}");
}

#[tokio::test]
async fn the_source_may_have_its_root_module_in_a_directory_and_a_backend_of_its_own() {
    let house = house().await;
    let _worker = house.worker(Tool::Terraform, &terraform()).await;
    let source = format!("terraform {{\n  backend \"local\" {{ path = \"/nowhere/state\" }}\n}}\n{HELLO}");
    house.app(Tool::Terraform, &[("infra/main.tf", &source)], |t| t.entrypoint = Some("infra".into())).await;
    house.apply().await;
    assert_eq!(house.state().await["outputs"]["said"]["value"], json!("hello"));
    assert!(!Path::new("/nowhere").exists());
}

/// The built-in provider needs no lock file, so the tool of this test writes one, as a provider would make it.
#[tokio::test]
async fn the_lock_file_of_the_plan_is_in_force_at_the_apply() {
    let house = house().await;
    let tool = house.script(
        "terraform",
        &format!(
            r#"case "$1" in
                 --version) echo 'Terraform v1.99.0';;
                 init) if [ -e .terraform.lock.hcl ]; then
                         echo "init $* with $(cat .terraform.lock.hcl)" >> {0}
                       else
                         echo "selected 1.2.3" > .terraform.lock.hcl
                       fi;;
                 plan) for a in "$@"; do case "$a" in -out=*) echo plan > "${{a#-out=}}";; esac; done; exit 2;;
                 show) echo '{{}}';;
               esac"#,
            house.ledger().display()
        ),
    );
    let _worker = house.worker(Tool::Terraform, &tool).await;
    house.app(Tool::Terraform, &[("main.tf", "")], |_| {}).await;
    house.apply().await;
    assert_eq!(
        house.ledger_text(),
        "init init -input=false -no-color -lockfile=readonly with selected 1.2.3\n"
    );
}

/// T-123: providers come from a mirror that runs share and cannot write to.
#[tokio::test]
async fn t123_providers_come_from_a_mirror_that_is_only_read() {
    let source = r#"
        terraform {
          required_providers { forged = { source = "forgeplane/forged", version = "1.2.3" } }
        }
        output "done" { value = true }"#;
    let house = house().await;
    let mirror = house.directory.path().join("mirror");
    let platform = if cfg!(target_arch = "aarch64") { "linux_arm64" } else { "linux_amd64" };
    let provider = mirror.join("registry.terraform.io/forgeplane/forged/1.2.3").join(platform);
    std::fs::create_dir_all(&provider).unwrap();
    // It is no provider that could do anything, and shows that it was started.
    let program = provider.join("terraform-provider-forged_v1.2.3");
    let ledger = house.ledger();
    std::fs::write(&ledger, "").unwrap();
    std::fs::set_permissions(&ledger, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    std::fs::write(&program, format!("#!/bin/sh\necho started >> {}\nexit 1\n", ledger.display())).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let listed = || {
        let list = std::process::Command::new("find").arg(&mirror).output().unwrap();
        String::from_utf8(list.stdout).unwrap()
    };
    let before = listed();
    let config = house.config(Tool::Terraform, &terraform()).await;
    let executor = TerraformExecutor::terraform().provider_mirror(&mirror).unwrap();
    let shutdown = Shutdown::new();
    let worker =
        forgeplane_worker::Worker::new(config, house.coordinator.in_process(), house.coordinator.queue());
    let started = worker.executor(executor).start(shutdown.clone()).await.unwrap();
    let running = tokio::spawn(started.run());
    house.app(Tool::Terraform, &[("main.tf", source)], |_| {}).await;
    let run = house.create(Operation::PlanOnly).await;
    house.ended(run).await;
    let log = house.log(run).await;
    assert!(log.contains("Installed forgeplane/forged v1.2.3") && log.contains("plan ended"), "{log}");
    assert!(house.ledger_text().contains("started"), "the provider of the mirror was not started");
    assert_eq!(listed(), before, "a run has written to the mirror");
    shutdown.stop();
    running.await.unwrap().unwrap();
}
