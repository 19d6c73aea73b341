//! Networks that lose their way: in both directions, and in one.

use std::time::{Duration, Instant};

use forgeplane_testkit::installation::{Coordinator, Proxy, Worker};
use serde_json::{Value, json};

use crate::support::{PATIENCE, SOON, Site, options, patient_tool, word};

/// A worker behind a network, with a run whose tool waits for a word.
pub struct Apart {
    pub site: Site,
    pub alpha: Coordinator,
    pub network: Proxy,
    pub worker: Worker,
    pub run: String,
    pub go: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl Apart {
    pub async fn start() -> Self {
        let (dir, go) = word();
        let (mut site, mut coordinators) = Site::start(options(false, SOON), &patient_tool(&go), &["alpha"]);
        let alpha = coordinators.remove(0);
        let network = Proxy::to(alpha.workers.trim_start_matches("https://"));
        let worker = site.worker_behind("w1", &alpha, &network);
        site.app(&alpha);
        let run = site.preview(&alpha, "first").await;
        site.until_ledger("started").await;
        Self { site, alpha, network, worker, run, go, _dir: dir }
    }

    pub async fn until(&self, holds: impl Fn(&Value) -> bool) -> Value {
        self.site.until_run(&self.alpha, &self.run, holds).await
    }

    /// The network is whole again: the run ends as its tool did, and the tool was started once.
    async fn ends_once(&self) {
        self.network.heal();
        let view = self.until(|view| view["run"]["status"] == "succeeded").await;
        assert_eq!(view["attempts"].as_array().unwrap().len(), 1);
        assert_eq!(self.site.installation.ledger().matches("started").count(), 1);
        assert_eq!(self.site.installation.ledger().matches("ended").count(), 1);
        self.site.installation.check().unwrap();
    }
}

/// B17: the tool goes on, the worker is missed, and everything is told when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn b17_a_partition_stops_no_tool_and_its_outcome_comes_afterwards() {
    let apart = Apart::start().await;
    apart.network.lose_requests();
    apart.network.lose_answers();
    apart.until(|view| view["unresolved"] == true).await;
    std::fs::write(&apart.go, "").unwrap();
    apart.site.until_ledger("ended").await;
    assert_eq!(apart.site.run(&apart.alpha, &apart.run).await["run"]["status"], "running");
    apart.ends_once().await;
}

/// B18: the worker is heard, and hears nothing: what it says counts once, however often it has to say it.
#[tokio::test(flavor = "multi_thread")]
async fn b18_a_worker_that_hears_no_answers_is_believed_once() {
    let apart = Apart::start().await;
    apart.network.lose_answers();
    std::fs::write(&apart.go, "").unwrap();
    apart.until(|view| view["run"]["status"] == "succeeded").await;
    // The worker does not know, and keeps what it signed until it does.
    let journal = apart.site.installation.directory().join("workers/w1/state/journal");
    let entries = || std::fs::read_dir(&journal).unwrap().count();
    assert_eq!(entries(), 1);
    apart.ends_once().await;
    let begun = Instant::now();
    while entries() > 0 {
        assert!(begun.elapsed() < PATIENCE, "the worker never hears that its outcome has arrived");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// B20: a connection that is open and dead is noticed by both ends, and replaced.
#[tokio::test(flavor = "multi_thread")]
async fn b20_a_dead_connection_is_noticed_and_replaced() {
    let apart = Apart::start().await;
    apart.network.lose_requests();
    apart.until(|view| view["unresolved"] == true).await;
    apart.network.heal();
    // Heard of again, over another connection, before anything else happens.
    apart.until(|view| view["unresolved"] == false).await;
    std::fs::write(&apart.go, "").unwrap();
    apart.ends_once().await;
}

/// A2: the answer to a request is lost; whoever asks again with the same key is told of the same run.
#[tokio::test(flavor = "multi_thread")]
async fn a2_a_request_whose_answer_was_lost_made_one_run() {
    let (mut site, coordinators) = Site::start(options(false, &[]), "exit 0", &["alpha"]);
    let alpha = &coordinators[0];
    let _worker = site.worker("w1", &[alpha]);
    site.app(alpha);
    let network = Proxy::to(alpha.api.trim_start_matches("http://"));
    let far = format!("http://{}", network.address());
    let body = json!({"instance": "app", "operation": "preview"});
    let ask = async |at: &str| site.client.try_ask(at, Some(("once", body.clone())), "/runs").await;
    network.lose_answers();
    // No answer, in the time that this client has.
    assert!(ask(&far).await.is_none());
    let made = site.get(alpha, "/runs").await;
    assert_eq!(made["items"].as_array().unwrap().len(), 1);
    network.heal();
    let again = ask(&far).await.unwrap();
    assert_eq!(again["id"], made["items"][0]["id"]);
    assert_eq!(site.get(alpha, "/runs").await["items"].as_array().unwrap().len(), 1);
}
