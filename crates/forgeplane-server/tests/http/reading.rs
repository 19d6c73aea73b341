//! What can be read and managed beside runs: state, plans, evidence, logs, workers, secrets, tokens.

use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::Evidence;
use forgeplane_core::model::{LogStream, OutcomeKind};
use forgeplane_server::api;
use serde_json::{Value, json};

use crate::support::{House, json_request, state_document};

#[tokio::test]
async fn state_is_downloaded_byte_for_byte_and_its_secrets_are_kept_from_viewers() {
    let house = House::new().await;
    let worker = house.worker().await;
    let instance = house.instance(0).await;
    let at = |rest: &str| format!("/api/v1/instances/{instance}/{rest}");
    house.get(&house.operator, &at("state")).await.problem(404, "not_found");
    let none: api::Page<api::Output> = house.get(&house.viewer, &at("outputs")).await.expect(200);
    assert!(none.items.is_empty());

    let run = house.run(&instance, json!({"operation": "destroy", "mode": "perform"})).await;
    let mut job = worker.claim(run.id).await;
    worker.save(&mut job, 0, &state_document(1)).await.unwrap();
    worker.save(&mut job, 1, &state_document(2)).await.unwrap();
    // A document built on a generation that is not current is refused and kept aside.
    worker.save(&mut job, 0, &state_document(9)).await.unwrap_err();
    worker.conclude(job, OutcomeKind::Failed).await;

    let current = house.get(&house.operator, &at("state")).await;
    assert_eq!(current.status, 200);
    assert_eq!(current.body, state_document(2).to_string().into_bytes());
    assert_eq!(current.header("x-forgeplane-generation"), "2");
    assert_eq!(current.header("x-forgeplane-digest"), Digest::of(&current.body).to_string());
    let older = house.get(&house.operator, &at("state?generation=1")).await;
    assert_eq!(older.body, state_document(1).to_string().into_bytes());
    house.get(&house.operator, &at("state?generation=3")).await.problem(404, "not_found");
    house.get(&house.viewer, &at("state")).await.problem(403, "forbidden");

    let generations: api::Page<api::StateGeneration> =
        house.get(&house.viewer, &at("state/generations")).await.expect(200);
    assert_eq!(
        generations.items.iter().map(|g| (g.generation, g.serial)).collect::<Vec<_>>(),
        [(2, 2), (1, 1)]
    );
    assert_eq!(generations.items[0].writer.run, Some(run.id));
    let orphans: api::Page<api::OrphanState> =
        house.get(&house.viewer, &at("state/orphans")).await.expect(200);
    assert_eq!((orphans.items.len(), orphans.items[0].reason.as_str()), (1, "stale_state"));

    let outputs = house.get(&house.viewer, &at("outputs")).await;
    assert!(!outputs.text().contains("hunter2"));
    let outputs: api::Page<api::Output> = outputs.expect(200);
    let shown: Vec<_> =
        outputs.items.iter().map(|o| (o.name.as_str(), o.sensitive, o.value.clone())).collect();
    assert_eq!(shown, [("address", false, Some(json!("10.0.0.1"))), ("password", true, None)]);
}

#[tokio::test]
async fn plans_and_evidence_of_a_run_can_be_had() {
    let house = House::new().await;
    let worker = house.worker().await;
    let (_, plan) = house.succeeded_plan(&worker, 0).await;
    let at = |rest: &str| format!("/api/v1/runs/{}/{rest}", plan.id);

    let text = house.get(&house.viewer, &at("plan")).await;
    assert_eq!(
        (text.header("content-type"), text.text().as_str()),
        ("text/plain; charset=utf-8", "+ créer\n")
    );
    let digest = Digest::of(format!("plan of {}", plan.id).as_bytes()).to_string();
    assert_eq!(text.header("x-forgeplane-plan-digest"), digest);
    house.get(&house.viewer, &at("plan.json")).await.problem(403, "forbidden");
    house.get(&house.operator, &at("plan.json")).await.problem(403, "forbidden");
    let document: Value = house.get(&house.approver, &at("plan.json")).await.expect(200);
    assert_eq!(document, json!({"secret": "in clear"}));
    let detail = house.run_now(plan.id).await.plan.unwrap();
    assert_eq!((detail.plan.to_string(), detail.has_text, detail.has_json), (digest, true, true));

    let evidence: Evidence = house.get(&house.viewer, &at("evidence")).await.expect(200);
    let verified = evidence.verify().unwrap();
    assert_eq!(verified.outcome.run, plan.id);
    house.get(&house.viewer, &at("evidence?attempt=2")).await.problem(404, "not_found");

    let queued = house.run(&house.instance(0).await, json!({"operation": "preview"})).await;
    for rest in ["plan", "plan.json", "evidence"] {
        let path = format!("/api/v1/runs/{}/{rest}", queued.id);
        house.get(&house.admin, &path).await.problem(404, "not_found");
    }
}

#[tokio::test]
async fn a_log_is_read_in_slices_of_any_bytes() {
    let house = House::new().await;
    let worker = house.worker().await;
    let run = house.run(&house.instance(0).await, json!({"operation": "preview"})).await;
    let read = async |query: &str| -> api::LogSlice {
        house.get(&house.viewer, &format!("/api/v1/runs/{}/log{query}", run.id)).await.expect(200)
    };
    let early = read("").await;
    assert!(early.attempt.is_none() && early.frames.is_empty() && !early.complete);

    let mut job = worker.claim(run.id).await;
    worker.log(&mut job, LogStream::Worker, b"init\n").await;
    worker.log(&mut job, LogStream::Stdout, b"caf\xc3").await;
    worker.log(&mut job, LogStream::Stderr, b"\xa9\xff\n").await;
    let slice = read("?from=3").await;
    let shown: Vec<_> = slice.frames.iter().map(|f| (f.offset, f.end, f.stream, f.text.as_str())).collect();
    assert_eq!(
        shown,
        [
            (3, 5, api::LogStream::Worker, "t\n"),
            (5, 9, api::LogStream::Stdout, "caf\u{fffd}"),
            (9, 12, api::LogStream::Stderr, "\u{fffd}\u{fffd}\n"),
        ]
    );
    let bytes: Vec<u8> = slice.frames.iter().flat_map(|f| STANDARD.decode(&f.base64).unwrap()).collect();
    assert_eq!(bytes, b"t\ncaf\xc3\xa9\xff\n");
    assert_eq!((slice.next, slice.complete), (12, false));
    worker.conclude(job, OutcomeKind::Failed).await;
    let end = read("?from=12").await;
    assert!(end.frames.is_empty() && end.complete);

    // t_106: a second attempt has a log of its own.
    house.ask(&house.operator, &format!("/api/v1/runs/{}/requeue", run.id)).await.expect::<api::Run>(200);
    let mut job = worker.claim(run.id).await;
    worker.log(&mut job, LogStream::Stdout, b"again\n").await;
    let (first, second) = (read("?attempt=1").await, read("").await);
    assert_eq!((first.frames.len(), first.frames[0].attempt, first.complete), (3, 1, true));
    assert_eq!((second.frames[0].text.as_str(), second.frames[0].attempt), ("again\n", 2));
    house
        .get(&house.viewer, &format!("/api/v1/runs/{}/log?attempt=3", run.id))
        .await
        .problem(404, "not_found");
}

#[tokio::test]
async fn workers_are_drained_reactivated_and_disconnected() {
    let house = House::new().await;
    let worker = house.worker().await;
    let one = async || -> api::WorkerDetail {
        let mut all: api::Page<api::WorkerDetail> =
            house.get(&house.viewer, "/api/v1/workers").await.expect(200);
        assert_eq!(all.items.len(), 1);
        all.items.remove(0)
    };
    let detail = one().await;
    assert_eq!(detail.worker.name.as_str(), worker.name);
    assert_eq!(detail.worker.capabilities["terraform"], "1.9.0");
    assert_eq!((detail.status, detail.capacity), (api::WorkerStatus::Idle, 1_000));
    let run = house.run(&house.instance(0).await, json!({"operation": "preview"})).await;
    let _job = worker.claim(run.id).await;
    assert_eq!(one().await.attempts[0].run, run.id);

    let ask =
        async |who: &str, what: &str| house.ask(&house.admin, &format!("/api/v1/workers/{who}/{what}")).await;
    let draining: api::Worker = ask(&worker.name, "drain").await.expect(200);
    assert!(draining.draining);
    assert!(worker.beat().await.drain);
    assert_eq!(one().await.status, api::WorkerStatus::Draining);
    let active: api::Worker = ask(&draining.id.to_string(), "reactivate").await.expect(200);
    assert!(!active.draining);
    let asked: api::Worker = ask(&worker.name, "rotate-key").await.expect(200);
    assert!(asked.rotate_key);
    assert_eq!(worker.beat().await.rotate_key, Some(asked.key));
    // It names no attempt that the store does not know.
    let accept = json!({"reason": "restored from the backup of Tuesday"});
    let path = format!("/api/v1/workers/{}/accept-loss", worker.name);
    house.post(&house.admin, &path, accept.clone()).await.problem(409, "invalid_state");
    house.post(&house.viewer, &path, accept).await.problem(403, "forbidden");
    let gone: api::Worker = ask(&worker.name, "disconnect").await.expect(200);
    assert!(gone.disconnected);
    assert_eq!(one().await.status, api::WorkerStatus::Offline);
    let distrusted: api::Worker = ask(&worker.name, "distrust").await.expect(200);
    assert!(distrusted.disconnected);
    ask("nobody", "drain").await.problem(404, "not_found");
    ask("nobody", "distrust").await.problem(404, "not_found");
    // The session credential is nobody's business.
    let text = house.get(&house.admin, "/api/v1/workers").await.text();
    assert!(!text.contains("session"), "{text}");
}

#[tokio::test]
async fn secrets_go_in_and_never_come_out() {
    let house = House::new().await;
    let canary = "canary-5f2c0b77";
    let put = async |token: &str, body: Value| {
        house.send(json_request(Method::PUT, token, "/api/v1/secrets/db-password", &body)).await
    };
    let answer = put(&house.operator, json!({"value": canary, "approved_for": ["prod"]})).await;
    let stored: api::Secret = answer.expect(200);
    assert_eq!((stored.latest, stored.approved_for.len(), stored.updated_by.name.as_str()), (1, 1, "olga"));
    let again: api::Secret = put(&house.operator, json!({"value": format!("{canary}-2")})).await.expect(200);
    assert_eq!((again.latest, again.id), (2, stored.id));
    put(&house.viewer, json!({"value": canary})).await.problem(403, "forbidden");
    let problem = put(&house.operator, json!({"value": "short"})).await.problem(400, "invalid_field");
    assert_eq!(problem.field.as_deref(), Some("value"));
    let refused = put(&house.operator, json!({"value": 31_337_000})).await;
    assert_eq!(refused.problem(400, "invalid_field").field.as_deref(), Some("value"));
    assert!(!refused.text().contains("31337000"), "{}", refused.text());
    for path in ["/api/v1/secrets", "/api/v1/events"] {
        let text = house.get(&house.admin, path).await.text();
        assert!(text.contains("db-password") && !text.contains("canary"), "{text}");
    }
    assert!(!answer.text().contains("canary"));

    // An inline value at a secret path is refused and not repeated.
    let schema =
        json!({"type": "object", "properties": {"pw": {"type": "string", "x-forgeplane-secret": true}}});
    house.push(json!({"name": "app", "tool": "terraform", "schema": schema})).await.expect::<Value>(201);
    let new = json!({"name": "app", "template": "app", "inputs": {"pw": canary}});
    let refused = house.post(&house.operator, "/api/v1/instances", new).await;
    refused.problem(400, "inline_secret");
    assert!(!refused.text().contains("canary"));
}

#[tokio::test]
async fn a_token_is_shown_once_works_and_ends() {
    let house = House::new().await;
    let new = json!({"name": "ci", "role": "operator", "expires_in_s": 60});
    let answer = house.post(&house.admin, "/api/v1/tokens", new).await;
    let made: api::CreatedToken = answer.expect(201);
    use secrecy::ExposeSecret as _;
    let token = made.token.secret().expose_secret().to_owned();
    assert!(!format!("{made:?}").contains(&token));
    house.get(&token, "/api/v1/runs").await.expect::<Value>(200);
    let events = house.get(&house.admin, "/api/v1/events").await.text();
    assert!(events.contains("token.created") && !events.contains(&token));
    house.clock.advance(std::time::Duration::from_secs(61));
    house.get(&token, "/api/v1/runs").await.problem(401, "unauthenticated");
    for seconds in [json!(0), json!(u64::MAX), json!(-1)] {
        let new = json!({"name": "ci", "role": "viewer", "expires_in_s": seconds});
        let problem = house.post(&house.admin, "/api/v1/tokens", new).await.problem(400, "invalid_field");
        assert_eq!(problem.field.as_deref(), Some("expires_in_s"));
    }
}
