//! Ansible, for real.

use forgeplane_core::model::*;

use crate::support::{ansible, house};

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
    let house = house().await;
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
    let house = house().await;
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
    let house = house().await;
    let _worker = house.worker(Tool::Ansible, &ansible()).await;
    house.app(Tool::Ansible, &[("site.yml", slow)], |t| t.entrypoint = Some("site.yml".into())).await;
    let run = house.create(Operation::Execute).await;
    house.until_logged(run, "started").await;
    house.coordinator.cancel(&house.alice, run, None).await.unwrap();
    let view = house.ended(run).await;
    assert_eq!(view.run.status, RunStatus::Canceled);
    assert!(house.outcome(run).await.effects_unknown);
    assert!(house.processes().is_empty());
}
