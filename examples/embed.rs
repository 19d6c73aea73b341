//! A platform runs coordinator and worker inside its own process, with an approval policy of its own.
//! Run it as root: `cargo run -p forgeplane-examples --example embed`
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example talks and stops at the first error")]
mod platform;

use forgeplane_blobs::ObjectBlobs;
use forgeplane_core::{coordinator::Coordinator, memory::MemoryQueue, model::*, ports::*};
use forgeplane_store_sqlite::SqliteStore;
use forgeplane_worker::{Shutdown, Worker, WorkerConfig, sandbox};

/// Production needs two reviewers, everything else none.
struct TwoForProduction;
impl Policy for TwoForProduction {
    fn approval(&self, question: &ApprovalQuestion<'_>) -> ApprovalPolicy {
        let production = question.instance.name.as_str().starts_with("prod");
        ApprovalPolicy { required: if production { 2 } else { 0 }, ..ApprovalPolicy::default() }
    }
}

fn main() {
    sandbox::run_if_helper(); // this executable is also its worker's sandbox helper
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (dir, pool) = (platform::directory(), platform::name("default"));
        let coordinator = Coordinator::builder()
            .store(SqliteStore::open(dir.path().join("data/forgeplane.db")).unwrap())
            .queue(MemoryQueue::default())
            .blobs(ObjectBlobs::local(dir.path().join("data/blobs")).unwrap())
            .keys(StaticKey::new("k1", SystemEntropy.bytes()))
            .signing_key(SystemEntropy.bytes())
            .policy(TwoForProduction)
            .build()
            .await
            .unwrap();
        let _loops = coordinator.start();

        let (keys, work) = (dir.path().join("worker"), dir.path().join("work"));
        let mut config =
            WorkerConfig::new(platform::name("w1"), pool.clone(), keys, work, platform::isolation());
        let enrollment = coordinator.issue_enrollment(&pool, std::time::Duration::from_secs(60));
        config.enrollment_token = Some(enrollment.await.unwrap());
        let (shutdown, queue) = (Shutdown::new(), coordinator.queue());
        let worker = Worker::new(config, coordinator.in_process(), queue).run(shutdown.clone());
        let worker = tokio::spawn(worker);

        platform::plan_and_apply(&coordinator).await; // from here on it is the platform's own business
        shutdown.drain.cancel();
        worker.await.unwrap().unwrap();
    });
}
