//! The shipped executors keep the promises of every executor: with the real tools, and OpenTofu with Terraform behind a
//! wrapper of that name, which the test writes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use forgeplane_core::id::RunId;
use forgeplane_core::model::Operation;
use forgeplane_testkit::ExecutorKit;
use forgeplane_testkit::executor::Script;
use forgeplane_testkit::house::{House, ansible, terraform};
use forgeplane_worker::executor::{AnsibleExecutor, Executor, TerraformExecutor};

const GREET: &str = r#"
variable "greeting" { type = string }
variable "token" { type = string }
resource "terraform_data" "it" {
  provisioner "local-exec" {
    command     = "echo \"$GREETING\"; echo \"$TOKEN\""
    environment = { GREETING = var.greeting, TOKEN = var.token }
  }
}"#;
const FAIL: &str = r#"
resource "terraform_data" "it" {
  provisioner "local-exec" { command = "echo about to fail; exit 3" }
}"#;
const WAIT: &str = r#"
resource "terraform_data" "it" {
  provisioner "local-exec" { command = "echo waiting; sleep 600" }
}"#;

fn module(script: Script) -> Vec<(&'static str, &'static str)> {
    let source = match script {
        Script::Greet => GREET,
        Script::Fail => FAIL,
        Script::Wait => WAIT,
    };
    vec![("main.tf", source)]
}

/// Plans, and begins the apply.
async fn promoted(house: &House) -> RunId {
    let plan = house.create_for("bound", Operation::Plan { destroy: false }).await;
    let view = house.ended(plan).await;
    if view.plan.is_none() {
        return plan;
    }
    house.coordinator.promote(&house.alice, plan).await.unwrap().id
}

struct Terraform;

#[async_trait]
impl ExecutorKit for Terraform {
    const NAME: &'static str = "terraform";

    fn executor() -> impl Executor {
        TerraformExecutor::terraform()
    }

    fn tool(_: &Path) -> PathBuf {
        terraform()
    }

    fn source(script: Script) -> Vec<(&'static str, &'static str)> {
        module(script)
    }

    async fn begin(house: &House) -> RunId {
        promoted(house).await
    }
}

struct Tofu;

#[async_trait]
impl ExecutorKit for Tofu {
    const NAME: &'static str = "tofu";

    fn executor() -> impl Executor {
        TerraformExecutor::tofu()
    }

    fn tool(directory: &Path) -> PathBuf {
        let wrapper = directory.join("tofu");
        std::fs::write(&wrapper, format!("#!/bin/sh\nexec {} \"$@\"\n", terraform().display())).unwrap();
        std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
        wrapper
    }

    fn source(script: Script) -> Vec<(&'static str, &'static str)> {
        module(script)
    }

    async fn begin(house: &House) -> RunId {
        promoted(house).await
    }
}

struct Ansible;

impl ExecutorKit for Ansible {
    const NAME: &'static str = "ansible";
    const ENTRYPOINT: Option<&'static str> = Some("site.yml");

    fn executor() -> impl Executor {
        AnsibleExecutor
    }

    fn tool(_: &Path) -> PathBuf {
        ansible()
    }

    fn source(script: Script) -> Vec<(&'static str, &'static str)> {
        let playbook = match script {
            Script::Greet => {
                "
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.debug: { msg: '{{ greeting }} and {{ token }}' }
"
            }
            Script::Fail => {
                "
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.fail: { msg: about to fail }
"
            }
            Script::Wait => {
                "
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.debug: { msg: waiting }
    - ansible.builtin.command: sleep 600
"
            }
        };
        vec![("site.yml", playbook)]
    }
}

forgeplane_testkit::executor_conformance!(Terraform, Tofu, Ansible);
