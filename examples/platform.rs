//! What the embedding platform brings: a directory, a user id for tools, callers, and what runs.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use forgeplane_core::coordinator::{Coordinator, NewInstance, NewRun, PushTemplate};
use forgeplane_core::model::*;
use forgeplane_core::rules::admission::RunRequest;
use forgeplane_worker::sandbox::Isolation;
use forgeplane_worker::uid_lock::{DEFAULT_DIR, UidLock};

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A directory that tools may pass through on the way to their workspaces.
pub fn directory() -> tempfile::TempDir {
    let passable = std::fs::Permissions::from_mode(0o711);
    tempfile::Builder::new().permissions(passable).tempdir().unwrap()
}

/// A user id for tools that nobody else on this machine uses.
pub fn isolation() -> Isolation {
    let uid = UidLock::acquire_free(Path::new(DEFAULT_DIR), 61_200..61_400, 2).unwrap().uid();
    Isolation::Uid { uid, gid: uid, reaper_uid: uid + 1 }
}

/// Plans, promotes and applies as one of the platform's users.
pub async fn plan_and_apply(coordinator: &Coordinator) {
    let project = coordinator.ensure_project(&name("platform")).await.unwrap();
    let (token, _) = coordinator.issue_token(project.id, &name("alice"), Role::Admin, None).await.unwrap();
    let caller = Caller {
        principal: token.principal,
        name: token.name.to_string(),
        project: project.id,
        role: token.role,
    };
    let apply = plan_and_promote(coordinator, &caller).await;
    let outputs = coordinator.outputs(&caller, "staging").await.unwrap();
    println!("{}: {}, outputs {outputs:?}", apply.id, apply.status);
}

async fn plan_and_promote(coordinator: &Coordinator, caller: &Caller) -> Run {
    let template = PushTemplate {
        name: name("hello"),
        tool: Tool::Terraform,
        source: source().into(),
        entrypoint: None,
        schema: None,
        defaults: Object::new(),
        pool: name("default"),
        execution_timeout_s: 600,
        max_execution_timeout_s: None,
        no_output_timeout_s: None,
        queue_timeout_s: None,
        cancel_grace_s: 60,
        approval: ApprovalPolicy::default(),
    };
    coordinator.push_template(caller, template).await.unwrap();
    let instance = NewInstance {
        name: name("staging"),
        template: "hello".into(),
        template_version: None,
        inputs: Object::new(),
        secrets: BTreeMap::new(),
        pool: None,
    };
    coordinator.create_instance(caller, instance).await.unwrap();
    let request = RunRequest {
        operation: Operation::Plan { destroy: false },
        inputs: Object::new(),
        execution_timeout_s: None,
        priority: 0,
    };
    let new = NewRun { instance: "staging".into(), request, idempotency_key: None };
    let plan = coordinator.create_run(caller, new).await.unwrap();
    let plan = ended(coordinator, caller, plan).await;
    let apply = coordinator.promote(caller, plan.id).await.unwrap();
    ended(coordinator, caller, apply).await
}

async fn ended(coordinator: &Coordinator, caller: &Caller, run: Run) -> Run {
    let mut events = coordinator.signals().events();
    loop {
        let now = coordinator.run(caller, run.id).await.unwrap().run;
        if now.status.is_terminal() {
            assert_eq!(now.status, RunStatus::Succeeded, "{:?}", now.error);
            return now;
        }
        events.changed().await;
    }
}

fn source() -> Vec<u8> {
    let config = br#"output "greeting" { value = "hello from an embedded worker" }"#;
    let mut header = tar::Header::new_gnu();
    header.set_size(config.len() as u64);
    header.set_mode(0o644);
    let mut archive =
        tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default()));
    archive.append_data(&mut header, "main.tf", config.as_slice()).unwrap();
    archive.into_inner().unwrap().finish().unwrap()
}
