//! Many workers that come back at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forgeplane_core::model::*;
use forgeplane_core::ports::*;
use forgeplane_proto::client::GrpcControlPlane;
use forgeplane_server::workers::Certificates;
use futures_util::future::join_all;
use serde_json::json;

use crate::encryption::{Authority, options, pem, serve_at};
use crate::support::House;
use crate::worker::FakeWorker;

const WORKERS: usize = 500;
/// Longer than all of it takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Calls until somebody answers.
async fn persist<T>(call: impl AsyncFn() -> Result<T, ControlError>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(ControlError::Refused(refusal)) => panic!("{refusal}"),
            Err(ControlError::Unavailable(error)) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::task::yield_now().await;
    }
}

/// B27: five hundred workers, each with an encrypted connection, a request for jobs and a job to claim, lose their coordinator
/// and come back together: every heartbeat is taken and every claim is granted.
#[tokio::test(flavor = "multi_thread")]
async fn b27_five_hundred_workers_that_come_back_at_once_are_all_served() {
    let house = House::new().await;
    let authority = Authority::new();
    let certificates = Certificates::new(&pem(&authority, None)).unwrap();
    let served = serve_at("127.0.0.1:0", &house, certificates.clone()).await;
    let reach = options(&served, authority.pem());
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let control = GrpcControlPlane::new(&reach).unwrap();
        let worker = FakeWorker::enroll_over(&house, Arc::new(control.clone())).await;
        let jobs = control.queue().subscribe(worker.session.worker).await.unwrap();
        workers.push((worker, jobs));
    }
    let instance = house.instance(0).await;
    let mut runs = Vec::new();
    for _ in 0..WORKERS {
        runs.push(house.run(&instance, json!({"operation": "preview"})).await.id);
    }
    house.coordinator.settle().await.unwrap();
    let mut offered = BTreeMap::new();
    for run in runs {
        let attempt = house.run_now(run).await.attempts.remove(0);
        offered.insert(attempt.worker, AttemptRef { attempt: attempt.id, fence: Fence(attempt.fence) });
    }
    let took_work = offered.len();

    let address = served.address.to_string();
    served.stop().await;
    let served = serve_at(&address, &house, certificates).await;
    let begun = Instant::now();
    let comings = workers.iter().map(async |(worker, _)| {
        let (plane, session) = (&worker.plane, &worker.session);
        persist(async || plane.heartbeat(session, Heartbeat::default()).await).await;
        if let Some(attempt) = offered.get(&session.worker) {
            let request = ClaimRequest { attempt: *attempt, nonce: Nonce(SystemEntropy.bytes()) };
            persist(async || plane.claim(session, request).await).await;
        }
        begun.elapsed()
    });
    let mut took = tokio::time::timeout(PATIENCE, join_all(comings)).await.expect("everybody comes back");
    took.sort();
    println!("{took_work} of {WORKERS} workers claimed; 99 % were back after {:?}", took[WORKERS * 99 / 100]);
    assert_eq!(took_work, WORKERS);
    served.stop().await;
}
