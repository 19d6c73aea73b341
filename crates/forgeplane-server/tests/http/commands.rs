//! What people ask for: runs, promotions, approvals, pages.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::Method;
use forgeplane_core::model::OutcomeKind;
use forgeplane_server::api;
use serde_json::{Value, json};

use crate::support::{House, json_request, state_document};

#[tokio::test]
async fn a_plan_is_promoted_approved_and_applied() {
    let house = House::new().await;
    let worker = house.worker().await;
    let (instance, plan) = house.succeeded_plan(&worker, 1).await;
    assert_eq!(plan.status, api::RunStatus::Succeeded);
    assert_eq!(plan.summary.unwrap().add, 1);

    let apply: api::Run =
        house.ask(&house.operator, &format!("/api/v1/runs/{}/promote", plan.id)).await.expect(201);
    assert_eq!((apply.operation, apply.status), (api::Operation::Apply, api::RunStatus::PendingApproval));
    assert_eq!(apply.plan.as_ref().unwrap().run, plan.id);

    let waiting: api::Page<api::Approval> =
        house.get(&house.approver, "/api/v1/approvals?status=pending").await.expect(200);
    assert_eq!(waiting.items.len(), 1);
    let record = &waiting.items[0];
    assert_eq!((record.run, record.source_plan), (apply.id, Some(plan.id)));
    assert_eq!(record.plan_digest, Some(apply.plan.as_ref().unwrap().digest));

    let path = format!("/api/v1/approvals/{}/approve", record.id);
    let approved: api::Approval =
        house.post(&house.approver, &path, json!({"reason": "looks right"})).await.expect(200);
    assert_eq!(approved.status, api::ApprovalStatus::Approved);
    assert_eq!(approved.reviews[0].reason.as_deref(), Some("looks right"));
    assert_eq!(approved.reviews[0].reviewer.name, "ann");

    let mut job = worker.claim(apply.id).await;
    worker.save(&mut job, 0, &state_document(1)).await.unwrap();
    worker.conclude(job, OutcomeKind::Succeeded).await;
    let detail = house.run_now(apply.id).await;
    assert_eq!(detail.run.status, api::RunStatus::Succeeded);
    assert_eq!(detail.snapshot.instance_name.as_str(), instance);
    assert_eq!(detail.attempts.len(), 1);
    assert_eq!(detail.attempts[0].last_generation, Some(1));
    assert!(!detail.unresolved);
    assert_eq!(house.run_now(plan.id).await.run.promoted_to, Some(apply.id));
}

#[tokio::test]
async fn the_same_idempotency_key_makes_one_run_and_another_request_under_it_is_refused() {
    let house = House::new().await;
    let instance = house.instance(0).await;
    let send = async |key: &str, operation: &str| {
        let mut request = json_request(
            Method::POST,
            &house.operator,
            "/api/v1/runs",
            &json!({"instance": instance, "operation": operation}),
        );
        request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        house.send(request).await
    };
    let first: api::Run = send("k-1", "plan").await.expect(201);
    let again: api::Run = send("k-1", "plan").await.expect(201);
    assert_eq!(first.id, again.id);
    let problem = send("k-1", "preview").await.problem(409, "idempotency_mismatch");
    assert_eq!(problem.field.as_deref(), Some("idempotency-key"));
    let other: api::Run = send("k-2", "plan").await.expect(201);
    assert_ne!(first.id, other.id);
    for bad in ["a/b", "", &"x".repeat(129)] {
        let problem = send(bad, "plan").await.problem(400, "invalid_field");
        assert_eq!(problem.field.as_deref(), Some("idempotency-key"), "{bad:?}");
    }
    let all: api::Page<api::Run> = house.get(&house.viewer, "/api/v1/runs").await.expect(200);
    assert_eq!(all.items.len(), 2);
}

#[tokio::test]
async fn pages_show_every_run_once_newest_first_while_new_ones_arrive() {
    let house = House::new().await;
    let (here, elsewhere) = (house.instance(0).await, house.instance(0).await);
    let mut made = Vec::new();
    for _ in 0..120 {
        made.push(house.run(&here, json!({"operation": "preview"})).await.id);
        house.clock.advance(std::time::Duration::from_millis(1));
    }
    let mut seen = Vec::new();
    let mut after = String::new();
    let mut pages = 0;
    loop {
        let page: api::Page<api::Run> = house
            .get(&house.viewer, &format!("/api/v1/runs?limit=50&instance={here}&status=queued{after}"))
            .await
            .expect(200);
        pages += 1;
        seen.extend(page.items.iter().map(|r| r.id));
        // Newer runs do not push older ones from one page to the next.
        house.run(&here, json!({"operation": "preview"})).await;
        match page.next {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    made.reverse();
    assert_eq!((pages, seen.len()), (3, 120));
    assert_eq!(seen, made);

    let other: api::Page<api::Run> =
        house.get(&house.viewer, &format!("/api/v1/runs?instance={elsewhere}")).await.expect(200);
    assert!(other.items.is_empty() && other.next.is_none());
    let exact: api::Page<api::Run> = house.get(&house.viewer, "/api/v1/runs?limit=123").await.expect(200);
    assert_eq!((exact.items.len(), exact.next), (123, None), "a full last page has no next");
}

#[tokio::test]
async fn every_list_turns_its_pages() {
    let house = House::new().await;
    let worker = house.worker().await;
    let template = house.template(1).await;
    let instance = house.instance_of(&template).await;
    for _ in 0..4 {
        house.template(1).await;
        let another = house.instance_of(&template).await;
        house.run(&another, json!({"operation": "destroy", "mode": "perform"})).await;
        house.clock.advance(std::time::Duration::from_millis(1));
        let secret = house.fresh_name("secret");
        let put = json_request(
            Method::PUT,
            &house.operator,
            &format!("/api/v1/secrets/{secret}"),
            &json!({"value": "a long enough value"}),
        );
        house.send(put).await.expect::<api::Secret>(200);
    }
    let open = house.instance(0).await;
    let run = house.run(&open, json!({"operation": "destroy", "mode": "perform"})).await;
    let mut job = worker.claim(run.id).await;
    for serial in 1..=5 {
        worker.save(&mut job, serial - 1, &state_document(serial)).await.unwrap();
    }
    worker.conclude(job, OutcomeKind::Succeeded).await;
    let lists = [
        "/api/v1/templates".to_owned(),
        "/api/v1/instances".to_owned(),
        "/api/v1/approvals".to_owned(),
        "/api/v1/secrets".to_owned(),
        "/api/v1/events".to_owned(),
        format!("/api/v1/runs/{}/events", run.id),
        format!("/api/v1/instances/{open}/state/generations"),
    ];
    for list in lists {
        let whole: api::Page<Value> = house.get(&house.viewer, &list).await.expect(200);
        assert!(whole.items.len() >= 4, "{list} has {}", whole.items.len());
        let mut seen = Vec::new();
        let mut after = String::new();
        loop {
            let page: api::Page<Value> =
                house.get(&house.viewer, &format!("{list}?limit=3{after}")).await.expect(200);
            assert!(page.items.len() <= 3);
            seen.extend(page.items);
            match page.next {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(seen, whole.items, "{list}");
    }
    let generations: api::Page<api::StateGeneration> = house
        .get(&house.viewer, &format!("/api/v1/instances/{open}/state/generations?limit=2"))
        .await
        .expect(200);
    assert_eq!(generations.items.iter().map(|g| g.generation).collect::<Vec<_>>(), [5, 4]);
    let found: api::Instance =
        house.get(&house.viewer, &format!("/api/v1/instances/{instance}")).await.expect(200);
    assert_eq!(found.template_name.as_str(), template);
}

#[tokio::test]
async fn a_requester_may_not_approve_their_own_run_and_nobody_decides_twice() {
    let house = House::new().await;
    let instance = house.instance(1).await;
    let destroy = json!({"instance": instance, "operation": "destroy", "mode": "perform"});
    let run: api::Run = house.post(&house.admin, "/api/v1/runs", destroy).await.expect(201);
    let path = format!("/api/v1/approvals/{}", run.approval.unwrap());
    let problem = house.ask(&house.admin, &format!("{path}/approve")).await.problem(403, "self_approval");
    assert!(problem.way_out.is_some());
    house.ask(&house.operator, &format!("{path}/approve")).await.problem(403, "forbidden");
    house.ask(&house.approver, &format!("{path}/approve")).await.expect::<api::Approval>(200);
    house.ask(&house.approver, &format!("{path}/approve")).await.problem(409, "already_decided");
    house.ask(&house.approver, &format!("{path}/reject")).await.problem(409, "already_decided");
    let record: api::Approval = house.get(&house.viewer, &path).await.expect(200);
    assert_eq!((record.status, record.reviews.len()), (api::ApprovalStatus::Approved, 1));
}

#[tokio::test]
async fn only_a_fresh_succeeded_plan_is_promoted_and_only_once() {
    let house = House::new().await;
    let worker = house.worker().await;
    let promote =
        async |run: api::Run| house.ask(&house.operator, &format!("/api/v1/runs/{}/promote", run.id)).await;

    let instance = house.instance(0).await;
    let failed = house.run(&instance, json!({"operation": "plan"})).await;
    worker.execute(failed.id, OutcomeKind::Failed).await;
    promote(failed).await.problem(409, "not_promotable");

    let shown = house.run(&instance, json!({"operation": "plan-only"})).await;
    worker.execute(shown.id, OutcomeKind::Succeeded).await;
    promote(shown).await.problem(409, "not_promotable");

    let (instance, plan) = house.succeeded_plan(&worker, 0).await;
    let stale = house.run(&instance, json!({"operation": "plan"})).await;
    worker.plan(stale.id).await;
    let apply: api::Run = promote(plan.clone()).await.expect(201);
    let problem = promote(plan).await.problem(409, "already_promoted");
    assert!(problem.way_out.unwrap().contains(&apply.id.to_string()));
    let mut job = worker.claim(apply.id).await;
    worker.save(&mut job, 0, &state_document(1)).await.unwrap();
    worker.conclude(job, OutcomeKind::Succeeded).await;
    let before: api::Page<api::Run> = house.get(&house.viewer, "/api/v1/runs").await.expect(200);
    promote(stale).await.problem(409, "stale_plan");
    let after: api::Page<api::Run> = house.get(&house.viewer, "/api/v1/runs").await.expect(200);
    assert_eq!(before.items.len(), after.items.len(), "a refused promotion creates nothing");
}

#[tokio::test]
async fn a_requeue_is_refused_while_it_could_do_harm() {
    let house = House::new().await;
    let worker = house.worker().await;
    let requeue =
        async |run: api::Run| house.ask(&house.operator, &format!("/api/v1/runs/{}/requeue", run.id)).await;

    // Somebody else moved the state since.
    let instance = house.instance(0).await;
    let plan = house.run(&instance, json!({"operation": "plan"})).await;
    worker.plan(plan.id).await;
    let apply: api::Run =
        house.ask(&house.operator, &format!("/api/v1/runs/{}/promote", plan.id)).await.expect(201);
    let mut job = worker.claim(apply.id).await;
    worker.save(&mut job, 0, &state_document(1)).await.unwrap();
    worker.conclude(job, OutcomeKind::Failed).await;
    requeue(apply).await.problem(409, "replan_required");
    let reader = house.run(&instance, json!({"operation": "plan"})).await;
    worker.execute(reader.id, OutcomeKind::Failed).await;
    let writer = house.run(&instance, json!({"operation": "destroy", "mode": "perform"})).await;
    let mut job = worker.claim(writer.id).await;
    worker.save(&mut job, 1, &state_document(2)).await.unwrap();
    worker.conclude(job, OutcomeKind::Failed).await;
    requeue(reader).await.problem(409, "stale_state");

    // Its own writes do not stand in the way; the same run gets a second attempt.
    let again: api::Run = requeue(writer.clone()).await.expect(200);
    assert_eq!((again.id, again.status), (writer.id, api::RunStatus::Queued));
    assert!(again.error.is_none() && again.finished_at.is_none());
    let job = worker.claim(writer.id).await;
    worker.conclude(job, OutcomeKind::Succeeded).await;
    assert_eq!(house.run_now(writer.id).await.attempts.len(), 2);

    // Nothing is known of its worker.
    let lost = house.run(&instance, json!({"operation": "destroy", "mode": "perform"})).await;
    let _job = worker.claim(lost.id).await;
    house.clock.advance(std::time::Duration::from_secs(600));
    house.coordinator.settle().await.unwrap();
    let why: api::Explanation =
        house.get(&house.viewer, &format!("/api/v1/runs/{}/explain", lost.id)).await.expect(200);
    assert!(why.unresolved_since.is_some());
    assert!(why.allowed.contains(&"resolve".to_owned()) && why.allowed.contains(&"cancel".to_owned()));
    assert!(house.run_now(lost.id).await.unresolved);
    requeue(lost).await.problem(409, "unresolved_execution");
}

#[tokio::test]
async fn a_waiting_run_says_why_and_a_torn_down_instance_takes_no_more_runs() {
    let house = House::new().await;
    let instance = house.instance(0).await;
    let run = house.run(&instance, json!({"operation": "teardown"})).await;
    let why: api::Explanation =
        house.get(&house.viewer, &format!("/api/v1/runs/{}/explain", run.id)).await.expect(200);
    let waiting = why.waiting.unwrap();
    assert_eq!((waiting.code.as_str(), waiting.pool.unwrap().as_str()), ("no_worker_in_pool", "default"));
    assert_eq!(why.allowed, ["cancel"]);

    let worker = house.worker().await;
    worker.execute(run.id, OutcomeKind::Succeeded).await;
    let gone: api::Instance =
        house.get(&house.viewer, &format!("/api/v1/instances/{instance}")).await.expect(200);
    assert_eq!(gone.torn_down_by, Some(run.id));
    assert!(gone.state.unwrap().archived);
    house
        .post(&house.operator, "/api/v1/runs", json!({"instance": instance, "operation": "plan"}))
        .await
        .problem(409, "instance_torn_down");
}

#[tokio::test]
async fn every_event_of_a_run_is_listed_without_gaps() {
    let house = House::new().await;
    let worker = house.worker().await;
    let (_, plan) = house.succeeded_plan(&worker, 0).await;
    let events: api::Page<api::Event> =
        house.get(&house.viewer, &format!("/api/v1/runs/{}/events", plan.id)).await.expect(200);
    let kinds: Vec<_> = events.items.iter().map(|e| e.kind.as_str()).collect();
    assert_eq!(kinds, ["run.created", "run.queued", "attempt.offered", "run.running", "run.succeeded"]);
    assert_eq!(events.items.iter().map(|e| e.run_seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let all: api::Page<api::Event> = house.get(&house.viewer, "/api/v1/events?limit=200").await.expect(200);
    let order: BTreeSet<_> = all.items.iter().map(|e| e.seq).collect();
    assert_eq!(order.into_iter().collect::<Vec<_>>(), all.items.iter().map(|e| e.seq).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_reason_may_be_left_out_but_not_be_anything() {
    let house = House::new().await;
    let instance = house.instance(0).await;
    let run = house.run(&instance, json!({"operation": "plan"})).await;
    let path = format!("/api/v1/runs/{}/cancel", run.id);
    house.post(&house.operator, &path, json!({"reason": 5})).await.problem(400, "invalid_field");
    house.post(&house.operator, &path, json!(["x"])).await.problem(400, "invalid_field");
    house.post(&house.operator, &path, json!({"because": "x"})).await.problem(400, "invalid_field");
    let untyped =
        crate::support::request(Method::POST, &house.operator, &path).body(Body::from("{}")).unwrap();
    house.send(untyped).await.problem(415, "unsupported_media_type");
    let canceled: api::Run = house.post(&house.operator, &path, json!({"reason": "typo"})).await.expect(200);
    assert_eq!(canceled.status, api::RunStatus::Canceled);
    let stop = canceled.stop.unwrap();
    assert_eq!((stop.by.name.as_str(), stop.reason.as_deref()), ("olga", Some("typo")));
    house.ask(&house.operator, &path).await.problem(409, "already_terminal");
}
