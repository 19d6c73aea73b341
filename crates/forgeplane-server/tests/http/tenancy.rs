//! Nobody without a token, nobody into another project: every route of the OpenAPI document, walked.

use axum::body::Body;
use axum::http::Method;
use forgeplane_server::api;
use serde_json::{Value, json};

use crate::support::{House, SOURCE, json_request, push_request, request};

struct Operation {
    method: Method,
    path: String,
    needs_token: bool,
    has_body: bool,
}

fn operations() -> Vec<Operation> {
    let document = serde_json::to_value(forgeplane_server::openapi::document()).unwrap();
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            found.push(Operation {
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
                needs_token: operation.get("security").is_none_or(|s| *s != json!([{}])),
                has_body: operation.get("requestBody").is_some(),
            });
        }
    }
    found
}

#[tokio::test]
async fn every_route_but_the_probes_and_the_document_needs_a_valid_token() {
    let house = House::new().await;
    let mut guarded = 0;
    for operation in operations() {
        let path = operation.path.replace("{id}", "x").replace("{name_or_id}", "x").replace("{name}", "x");
        for token in ["", "fpt_wrong", "Bearer", &house.operator[..house.operator.len() - 1]] {
            let answer = house
                .send(request(operation.method.clone(), token, &path).body(Body::empty()).unwrap())
                .await;
            if operation.needs_token {
                answer.problem(401, "unauthenticated");
                assert_eq!(answer.header("www-authenticate"), "Bearer");
            } else {
                assert_eq!(answer.status, 200, "{} {path}", operation.method);
            }
        }
        guarded += usize::from(operation.needs_token);
    }
    assert!(guarded > 35, "only {guarded} guarded routes");
    let open: Vec<_> = operations().into_iter().filter(|o| !o.needs_token).map(|o| o.path).collect();
    assert_eq!(open, ["/api/v1/openapi.json", "/healthz", "/readyz"]);
}

/// A body that the route takes.
fn body(path: &str) -> Value {
    let key = ed25519_dalek::SigningKey::from_bytes(&[1; 32]);
    match path.rsplit('/').next() {
        Some("resolve") => json!({"outcome": "failed", "reason": "x"}),
        Some("outcome") => {
            let said = forgeplane_core::evidence::KeyRotation {
                worker: forgeplane_core::id::WorkerId::new(jiff::Timestamp::UNIX_EPOCH, [1; 10]),
                old_key: forgeplane_core::digest::Digest::of(b"x"),
                new_key: String::new(),
            };
            json!(forgeplane_core::evidence::Envelope::sign(&said, &key).unwrap())
        }
        _ => json!({}),
    }
}

#[tokio::test]
async fn g15_ids_and_names_of_another_project_read_like_ids_that_never_were() {
    let house = House::new().await;
    let worker = house.worker().await;
    let (instance, plan) = house.succeeded_plan(&worker, 1).await;
    let apply: api::Run =
        house.ask(&house.operator, &format!("/api/v1/runs/{}/promote", plan.id)).await.expect(201);
    let approval = apply.approval.unwrap().to_string();
    let found: api::Instance =
        house.get(&house.viewer, &format!("/api/v1/instances/{instance}")).await.expect(200);
    let (instance_id, template_id) = (found.id.to_string(), found.template.to_string());
    let (run, template) = (plan.id.to_string(), found.template_name.to_string());
    let attempt = house.run_now(plan.id).await.attempts[0].id.to_string();
    let events_before = house.coordinator_events().await;

    let mut walked = 0;
    for operation in operations() {
        let Operation { method, path, has_body, .. } = operation;
        // Workers belong to the installation; a secret's name may be used by every project for itself.
        if !path.contains('{') || path.contains("/workers/") || path.contains("/secrets/") {
            continue;
        }
        let ids: Vec<(&str, String)> = if path.contains("/runs/") {
            vec![(run.as_str(), nobody(&run))]
        } else if path.contains("/attempts/") {
            vec![(attempt.as_str(), nobody(&attempt))]
        } else if path.contains("/approvals/") {
            vec![(approval.as_str(), nobody(&approval))]
        } else if path.contains("/instances/") {
            vec![(&instance_id, nobody(&instance_id)), (&instance, "never-was".to_owned())]
        } else {
            assert!(path.contains("/templates/"), "no id known for {path}");
            vec![(&template_id, nobody(&template_id)), (&template, "never-was".to_owned())]
        };
        for (foreign, never) in ids {
            let send = async |id: &str| {
                let at = path.replace("{id}", id).replace("{name_or_id}", id);
                let request = if has_body {
                    json_request(method.clone(), &house.stranger, &at, &body(&path))
                } else {
                    request(method.clone(), &house.stranger, &at).body(Body::empty()).unwrap()
                };
                house.send(request).await.problem(404, "not_found")
            };
            let (theirs, nobodys) = (send(foreign).await, send(&never).await);
            assert_eq!(
                theirs.detail.replace(foreign, "X"),
                nobodys.detail.replace(&never, "X"),
                "{method} {path} tells a foreign object from a missing one"
            );
            walked += 1;
        }
    }
    assert!(walked > 20, "only {walked} routes walked");
    assert_eq!(house.coordinator_events().await, events_before, "a stranger changed something");

    // References in bodies and queries are as closed as those in paths.
    let stranger = &house.stranger;
    house
        .post(stranger, "/api/v1/runs", json!({"instance": instance_id, "operation": "plan"}))
        .await
        .problem(404, "not_found");
    house
        .post(stranger, "/api/v1/instances", json!({"name": "a", "template": template_id}))
        .await
        .problem(404, "not_found");
    house.get(stranger, &format!("/api/v1/runs?instance={instance_id}")).await.problem(404, "not_found");
    for list in ["templates", "instances", "runs", "approvals", "secrets"] {
        let page: api::Page<Value> = house.get(stranger, &format!("/api/v1/{list}")).await.expect(200);
        assert!(page.items.is_empty(), "{list}");
        let foreign_cursor = if list == "runs" { format!("/api/v1/runs?after={run}") } else { continue };
        let page: api::Page<Value> = house.get(stranger, &foreign_cursor).await.expect(200);
        assert!(page.items.is_empty());
    }
}

/// An id of the same kind that nothing has.
fn nobody(id: &str) -> String {
    format!("{}{}", &id[..id.len() - 4], if id.ends_with("0000") { "1111" } else { "0000" })
}

impl House {
    async fn coordinator_events(&self) -> usize {
        let page: api::Page<api::Event> =
            self.get(&self.viewer, "/api/v1/events?limit=200").await.expect(200);
        assert!(page.next.is_none());
        page.items.len()
    }
}

#[tokio::test]
async fn projects_may_use_the_same_names_without_meeting() {
    let house = House::new().await;
    let metadata = json!({"name": "network", "tool": "terraform"});
    house.push(metadata.clone()).await.expect::<api::TemplateDetail>(201);
    let theirs: api::TemplateDetail =
        house.send(push_request(&house.stranger, &metadata, SOURCE)).await.expect(201);
    assert_eq!(theirs.version.version, 1);
    for (token, value) in [(&house.operator, "our own value"), (&house.stranger, "their own value")] {
        let put = json_request(Method::PUT, token, "/api/v1/secrets/db", &json!({"value": value}));
        assert_eq!(house.send(put).await.expect::<api::Secret>(200).latest, 1);
    }
}

#[tokio::test]
async fn a_role_decides_what_its_token_may_do() {
    let house = House::new().await;
    let instance = house.instance(0).await;
    let run = json!({"instance": instance, "operation": "plan"});
    for token in [&house.viewer, &house.approver] {
        let problem = house.post(token, "/api/v1/runs", run.clone()).await.problem(403, "forbidden");
        assert!(problem.detail.contains("run.write"), "{}", problem.detail);
        house
            .send(push_request(token, &json!({"name": "a", "tool": "tofu"}), SOURCE))
            .await
            .problem(403, "forbidden");
    }
    for token in [&house.viewer, &house.approver, &house.operator] {
        house
            .post(token, "/api/v1/tokens", json!({"name": "x", "role": "admin"}))
            .await
            .problem(403, "forbidden");
        house.ask(token, "/api/v1/workers/w/drain").await.problem(403, "forbidden");
    }
    house.get(&house.viewer, &format!("/api/v1/instances/{instance}/state")).await.problem(403, "forbidden");
}
