//! Ansible, for real: from the path in `FORGEPLANE_TEST_ANSIBLE_PLAYBOOK`, which `cargo xtask test` sets, or
//! from `PATH`.

use std::path::PathBuf;

use forgeplane_core::model::*;

use crate::support::House;

fn ansible() -> PathBuf {
    if let Some(path) = std::env::var_os("FORGEPLANE_TEST_ANSIBLE_PLAYBOOK") {
        return path.into();
    }
    std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|dir| dir.join("ansible-playbook"))
        .find(|path| path.is_file())
        .expect("these tests run a real Ansible: run them with `cargo xtask test`, or put ansible-playbook into PATH")
}

const PLAYBOOK: &str = "
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.debug:
        msg: \"{{ greeting | default('hello') }} from a playbook\"
";

#[tokio::test]
async fn a_playbook_is_executed() {
    let house = House::new().await;
    let _worker = house.worker(Tool::Ansible, &ansible()).await;
    house.app(Tool::Ansible, &[("site.yml", PLAYBOOK)], |t| t.entrypoint = Some("site.yml".into())).await;
    let view = house.succeed(Operation::Execute).await;
    let log = house.log(view.run.id).await;
    assert!(log.contains("hello from a playbook"), "{log}");
}

#[tokio::test]
async fn a_failing_host_fails_the_run() {
    let failing = "
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.command: 'false'
";
    let house = House::new().await;
    let _worker = house.worker(Tool::Ansible, &ansible()).await;
    house.app(Tool::Ansible, &[("site.yml", failing)], |t| t.entrypoint = Some("site.yml".into())).await;
    let run = house.create(Operation::Execute).await;
    let view = house.ended(run).await;
    assert_eq!(view.run.status, RunStatus::Failed);
    assert_eq!(house.outcome(run).await.exit_code, Some(2));
}

#[tokio::test]
async fn t068_a_canceled_playbook_says_that_remote_effects_are_unknown() {
    let slow = "
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.debug: { msg: started }
    - ansible.builtin.command: sleep 300
";
    let house = House::new().await;
    let _worker = house.worker(Tool::Ansible, &ansible()).await;
    house.app(Tool::Ansible, &[("site.yml", slow)], |t| t.entrypoint = Some("site.yml".into())).await;
    let run = house.create(Operation::Execute).await;
    house.until_logged(run, "started").await;
    house.coordinator.cancel(&house.alice, run, None).await.unwrap();
    let view = house.ended(run).await;
    assert_eq!(view.run.status, RunStatus::Canceled);
    assert!(house.outcome(run).await.effects_unknown);
    assert_eq!(house.processes(), 0);
}
