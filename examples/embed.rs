//! A platform runs coordinator and worker inside its own process, with an approval policy of its own:
//! production needs two reviewers, everything else none. Run it as root:
//! `cargo run -p forgeplane-examples --example embed`
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example talks to its terminal and stops at the first error"
)]
use forgeplane_core::coordinator::{Coordinator, NewInstance, NewRun, PushTemplate};
use forgeplane_core::{memory::MemoryQueue, model::*, ports::*, rules::admission::RunRequest};
use forgeplane_worker::{Shutdown, Worker, WorkerConfig, sandbox, sandbox::Isolation, uid_lock::UidLock};
use std::{path::Path, time::Duration};

struct TwoForProduction;
impl Policy for TwoForProduction {
    fn approval(&self, question: &ApprovalQuestion<'_>) -> ApprovalPolicy {
        let required = if question.instance.name.as_str().starts_with("prod") { 2 } else { 0 };
        ApprovalPolicy { required, ..ApprovalPolicy::default() }
    }
}

fn main() {
    sandbox::run_if_helper(); // this executable is also its worker's sandbox helper
    tokio::runtime::Runtime::new().unwrap().block_on(run());
}

async fn run() {
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .tempdir()
        .unwrap();
    let (name, pool): (Name, Name) = ("embedded".parse().unwrap(), "default".parse().unwrap());
    let coordinator = Coordinator::builder()
        .store(forgeplane_store_sqlite::SqliteStore::open(dir.path().join("data/forgeplane.db")).unwrap())
        .queue(MemoryQueue::default())
        .blobs(forgeplane_blobs::ObjectBlobs::local(dir.path().join("data/blobs")).unwrap())
        .keys(StaticKey::new("k1", SystemEntropy.bytes()))
        .signing_key(SystemEntropy.bytes())
        .policy(TwoForProduction)
        .build()
        .await
        .unwrap();
    let _loops = coordinator.start();
    let uid = UidLock::acquire_free(Path::new("/run/lock/forgeplane"), 61_000..61_184, 2).unwrap().uid();
    let isolation = Isolation::Uid { uid, gid: uid, reaper_uid: uid + 1 };
    let mut config = WorkerConfig::new(
        name.clone(),
        pool.clone(),
        dir.path().join("worker"),
        dir.path().join("work"),
        isolation,
    );
    config.enrollment_token =
        Some(coordinator.issue_enrollment(&pool, Duration::from_secs(60)).await.unwrap());
    let (shutdown, worker) =
        (Shutdown::new(), Worker::new(config, coordinator.in_process(), coordinator.queue()));
    let worker = tokio::spawn(worker.start(shutdown.clone()).await.unwrap().run());
    // From here on it is the platform's own business: who calls, what runs.
    let caller = platform::caller(&coordinator).await;
    let apply = platform::plan_and_promote(&coordinator, &caller).await;
    println!(
        "{}: {} as {:?}",
        apply.id,
        apply.status,
        coordinator.outputs(&caller, "staging").await.unwrap()
    );
    shutdown.drain.cancel();
    worker.await.unwrap().unwrap();
}

/// What the embedding platform does with it.
mod platform {
    use super::*;

    pub async fn caller(coordinator: &Coordinator) -> Caller {
        let project = coordinator.ensure_project(&"platform".parse().unwrap()).await.unwrap();
        let (token, _) =
            coordinator.issue_token(project.id, &"alice".parse().unwrap(), Role::Admin, None).await.unwrap();
        Caller {
            principal: token.principal,
            name: token.name.to_string(),
            project: project.id,
            role: token.role,
        }
    }

    pub async fn plan_and_promote(coordinator: &Coordinator, caller: &Caller) -> Run {
        let template = PushTemplate {
            name: "hello".parse().unwrap(),
            tool: Tool::Terraform,
            source: source().into(),
            entrypoint: None,
            schema: None,
            defaults: Object::new(),
            pool: "default".parse().unwrap(),
            execution_timeout_s: 600,
            max_execution_timeout_s: None,
            queue_timeout_s: None,
            cancel_grace_s: 60,
            approval: ApprovalPolicy::default(),
        };
        coordinator.push_template(caller, template).await.unwrap();
        let instance = NewInstance {
            name: "staging".parse().unwrap(),
            template: "hello".into(),
            template_version: None,
            inputs: Object::new(),
            secrets: Default::default(),
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
            events.changed().await.unwrap();
        }
    }

    fn source() -> Vec<u8> {
        let config = br#"output "greeting" { value = "hello from an embedded worker" }"#;
        let mut header = tar::Header::new_gnu();
        header.set_size(config.len() as u64);
        header.set_mode(0o644);
        let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), Default::default()));
        archive.append_data(&mut header, "main.tf", config.as_slice()).unwrap();
        archive.into_inner().unwrap().finish().unwrap()
    }
}
