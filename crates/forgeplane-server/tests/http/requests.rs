//! Requests that are wrong: strictly read, politely refused.

use axum::body::Body;
use axum::http::Method;
use forgeplane_server::api;
use serde_json::{Value, json};

use crate::support::{House, MAX_SOURCE, SOURCE, json_request, push_request, request};

#[tokio::test]
async fn g16_nobody_sets_what_is_not_theirs_to_set() {
    let house = House::new().await;
    let instance = house.instance(1).await;
    let run = json!({"instance": instance, "operation": "destroy", "mode": "perform"});
    for (field, value) in [
        ("status", json!("succeeded")),
        ("project", json!("prj_00000000000000000000000000000000")),
        ("fence", json!(7)),
        ("id", json!("run_00000000000000000000000000000000")),
        ("requested_by", json!({"kind": "system", "part": "x"})),
        ("approval", json!(null)),
        ("snapshot", json!("sha256:00")),
        ("base_generation", json!(9)),
        ("attempts", json!(0)),
    ] {
        let mut body = run.clone();
        body[field] = value;
        let problem = house.post(&house.operator, "/api/v1/runs", body).await.problem(400, "invalid_field");
        assert_eq!(problem.field.as_deref(), Some(field));
    }
    let bodies = [
        ("/api/v1/instances", json!({"name": "a", "template": "b"}), "state_object"),
        ("/api/v1/tokens", json!({"name": "a", "role": "viewer"}), "project"),
    ];
    for (path, mut body, field) in bodies {
        body[field] = json!("x");
        let problem = house.post(&house.admin, path, body).await.problem(400, "invalid_field");
        assert_eq!(problem.field.as_deref(), Some(field));
    }
    let mut secret = json!({"value": "canary-9b1d", "version": 3});
    let answer = house.send(json_request(Method::PUT, &house.admin, "/api/v1/secrets/a", &secret)).await;
    assert_eq!(answer.problem(400, "invalid_field").field.as_deref(), Some("version"));
    assert!(!answer.text().contains("canary"));
    secret["version"].take();
    let problem =
        house.push(json!({"name": "a", "tool": "tofu", "version": 9})).await.problem(400, "invalid_field");
    assert_eq!(problem.field.as_deref(), Some("version"));
    let problem = house.get(&house.viewer, "/api/v1/runs?project=x").await.problem(400, "invalid_field");
    assert_eq!(problem.field.as_deref(), Some("project"));
    let all: api::Page<Value> = house.get(&house.viewer, "/api/v1/runs").await.expect(200);
    assert!(all.items.is_empty());
}

#[tokio::test]
async fn g24_odd_ids_and_names_are_refused_as_such() {
    let house = House::new().await;
    let long = "a".repeat(60_000);
    let odd = [
        "a%2Fb",
        "..%2F..%2Fetc%2Fpasswd",
        "%2e%2e",
        "%00",
        "a%00b",
        "%D0%B0dmin",
        "a%20b",
        "A",
        "-a",
        "a.b",
        "%E2%80%AErun",
        "%0d%0ax-evil:1",
        "*",
        "%3E",
        "a;b",
        "%25",
        &long,
    ];
    for text in odd {
        for (path, field) in [
            (format!("/api/v1/runs/{text}"), "id"),
            (format!("/api/v1/runs/{text}/log/stream"), "id"),
            (format!("/api/v1/approvals/{text}"), "id"),
            (format!("/api/v1/instances/{text}/outputs"), "name_or_id"),
            (format!("/api/v1/templates/{text}"), "name_or_id"),
        ] {
            let answer = house.get(&house.viewer, &path).await;
            let problem = answer.problem(400, "invalid_field");
            assert_eq!(problem.field.as_deref(), Some(field), "{path}");
            assert!(answer.body.len() < 2_000, "the answer repeats what was sent");
        }
        let put = json_request(
            Method::PUT,
            &house.operator,
            &format!("/api/v1/secrets/{text}"),
            &json!({"value": "long enough"}),
        );
        assert_eq!(house.send(put).await.problem(400, "invalid_field").field.as_deref(), Some("name"));
        house.ask(&house.admin, &format!("/api/v1/workers/{text}/drain")).await.problem(400, "invalid_field");
    }
    // Bytes that are no text at all.
    house.get(&house.viewer, "/api/v1/runs/%ff%fe").await.problem(400, "invalid_field");
    // An id of another kind, of the wrong case, or nearly one.
    for id in
        ["ins_0197b0f0a5c07000800000000000000a", "RUN_0197b0f0a5c07000800000000000000a", "run_0197", "run_"]
    {
        house.get(&house.viewer, &format!("/api/v1/runs/{id}")).await.problem(400, "invalid_field");
    }
    let unknown = "run_0197b0f0a5c07000800000000000000a";
    house.get(&house.viewer, &format!("/api/v1/runs/{unknown}")).await.problem(404, "not_found");
    // An empty id is no id; segments that split or climb are other routes.
    house.get(&house.viewer, "/api/v1/runs//log").await.problem(400, "invalid_field");
    for path in ["/api/v1/runs/a/b/c", "/api/v1/../v1/runs"] {
        house.get(&house.viewer, path).await.problem(404, "unknown_route");
    }
    for name in ["a/b", "..", "Ünstance", "\u{0430}dmin", "", "a\r\nb", &"x".repeat(64), "a\u{0}"] {
        let new = json!({"name": name, "template": "t"});
        let problem =
            house.post(&house.operator, "/api/v1/instances", new).await.problem(400, "invalid_field");
        assert_eq!(problem.field.as_deref(), Some("name"), "{name:?}");
    }
}

#[tokio::test]
async fn a_bad_query_names_its_field() {
    let house = House::new().await;
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=-1", "limit"),
        ("limit=many", "limit"),
        ("after=tomorrow", "after"),
        ("after=", "after"),
        ("status=done", "status"),
        ("limit=1&limit=2", "limit"),
        ("stauts=queued", "stauts"),
    ] {
        let problem =
            house.get(&house.viewer, &format!("/api/v1/runs?{query}")).await.problem(400, "invalid_field");
        assert_eq!(problem.field.as_deref(), Some(field), "{query}: {}", problem.detail);
    }
    let problem = house.get(&house.viewer, "/api/v1/events?after=x").await.problem(400, "invalid_field");
    assert_eq!(problem.field.as_deref(), Some("after"));
}

#[tokio::test]
async fn bodies_that_are_not_the_json_asked_for_are_refused() {
    let house = House::new().await;
    let send = async |kind: Option<&str>, body: &str| {
        let mut it = request(Method::POST, &house.operator, "/api/v1/runs");
        if let Some(kind) = kind {
            it = it.header("content-type", kind);
        }
        house.send(it.body(Body::from(body.to_owned())).unwrap()).await
    };
    let json = Some("application/json");
    send(json, "{").await.problem(400, "malformed_json");
    send(json, "").await.problem(400, "malformed_json");
    send(json, "{}{}").await.problem(400, "invalid_field");
    send(json, r#"{"instance":"a","operation":"plan"} x"#).await.problem(400, "malformed_json");
    send(json, &format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)))
        .await
        .problem(400, "invalid_field");
    let nested = format!(
        r#"{{"instance":"a","operation":"plan","inputs":{{"a":{}1{}}}}}"#,
        "[".repeat(5_000),
        "]".repeat(5_000)
    );
    send(json, &nested).await.problem(400, "malformed_json");
    send(None, "{}").await.problem(415, "unsupported_media_type");
    send(Some("text/plain"), "{}").await.problem(415, "unsupported_media_type");
    send(Some("application/x-www-form-urlencoded"), "a=b").await.problem(415, "unsupported_media_type");
    let instance = house.instance(0).await;
    let body = format!(r#"{{"instance":"{instance}","operation":"plan"}}"#);
    send(Some("application/json; charset=utf-8"), &body).await.expect::<api::Run>(201);

    // Inputs above their limit, and a body above every limit.
    let big = json!({"instance": instance, "operation": "plan", "inputs": {"a": "x".repeat(20_000)}});
    let problem = house.post(&house.operator, "/api/v1/runs", big).await.problem(413, "too_large");
    assert_eq!(problem.field.as_deref(), Some("inputs"));
    let huge = json!({"instance": instance, "operation": "plan", "inputs": {"a": "x".repeat(4 << 20)}});
    house.post(&house.operator, "/api/v1/runs", huge).await.problem(413, "too_large");
}

#[tokio::test]
async fn uploads_are_bounded_and_have_exactly_two_parts() {
    let house = House::new().await;
    let metadata = json!({"name": "net", "tool": "terraform"});
    let push = async |source: &[u8]| house.send(push_request(&house.operator, &metadata, source)).await;
    let mut source = SOURCE.to_vec();
    source.resize(MAX_SOURCE, 0);
    let stored: api::TemplateDetail = push(&source).await.expect(201);
    assert_eq!(stored.version.source_bytes, MAX_SOURCE as u64);
    source.push(0);
    let problem = push(&source).await.problem(413, "too_large");
    assert_eq!(problem.field.as_deref(), Some("source"));
    // Far above the limit: refused before it is held in memory.
    source.resize(MAX_SOURCE + (3 << 20), 0);
    push(&source).await.problem(413, "too_large");
    // The same without a declared length.
    let form = push_request(&house.operator, &metadata, &source);
    let (parts, body) = form.into_parts();
    let whole = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let chunks: Vec<Result<_, std::io::Error>> =
        whole.chunks(64 << 10).map(|c| Ok(bytes::Bytes::copy_from_slice(c))).collect();
    let body = Body::from_stream(futures_util::stream::iter(chunks));
    house.send(axum::http::Request::from_parts(parts, body)).await.problem(413, "too_large");

    push(b"not gzip").await.problem(400, "invalid_bundle");
    let bad = json!({"name": "net", "tool": "terraform", "schema": {"type": 5}});
    house.push(bad).await.problem(400, "invalid_schema");
    house.push(json!({"name": "net", "tool": "helm"})).await.problem(400, "no_executor");
    house.push(json!({"name": "net", "tool": "chef"})).await.problem(400, "invalid_field");

    let form = async |content_type: &str, body: &str| {
        let it =
            request(Method::POST, &house.operator, "/api/v1/templates").header("content-type", content_type);
        house.send(it.body(Body::from(body.to_owned())).unwrap()).await
    };
    form("application/json", "{}").await.problem(415, "unsupported_media_type");
    form("multipart/form-data", "x").await.problem(415, "unsupported_media_type");
    let boundary = "multipart/form-data; boundary=XX";
    form(boundary, "--XX\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n{")
        .await
        .problem(400, "malformed_request");
    let part = |name: &str, body: &str| {
        format!("--XX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{body}\r\n")
    };
    let whole = metadata.to_string();
    for (parts, field) in [
        (part("metadata", &whole), "source"),
        (part("source", "x"), "metadata"),
        (part("metadata", &whole) + &part("metadata", &whole), "metadata"),
        (part("other", "x"), "form"),
        (part("metadata", r#"{"name":"A"}"#), "name"),
    ] {
        let problem = form(boundary, &format!("{parts}--XX--\r\n")).await.problem(400, "invalid_field");
        assert_eq!(problem.field.as_deref(), Some(field));
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_are_problems_too() {
    let house = House::new().await;
    for path in ["/", "/api", "/api/v1", "/api/v2/runs", "/api/v1/runs/", "/favicon.ico"] {
        house.get("", path).await.problem(404, "unknown_route");
    }
    let send = async |method: Method, path: &str| {
        house.send(request(method, &house.admin, path).body(Body::empty()).unwrap()).await
    };
    let answer = send(Method::DELETE, "/api/v1/runs").await;
    answer.problem(405, "method_not_allowed");
    assert!(answer.header("allow").contains("GET") && answer.header("allow").contains("POST"));
    send(Method::POST, "/healthz").await.problem(405, "method_not_allowed");
    send(Method::TRACE, "/api/v1/runs").await.problem(405, "method_not_allowed");
}

#[tokio::test]
async fn refusals_of_the_coordinator_keep_their_field_and_way_out() {
    let house = House::new().await;
    let instance = house.instance(0).await;
    let run = async |body: Value| {
        let mut new = json!({"instance": instance, "operation": "plan"});
        for (key, value) in body.as_object().unwrap() {
            new[key] = value.clone();
        }
        house.post(&house.operator, "/api/v1/runs", new).await
    };
    let problem = run(json!({"operation": "execute"})).await.problem(400, "unsupported_operation");
    assert_eq!(problem.field.as_deref(), Some("operation"));
    assert!(problem.way_out.unwrap().contains("plan-only"));
    run(json!({"operation": "apply"})).await.problem(400, "unsupported_operation");
    let problem = run(json!({"priority": 101})).await.problem(400, "invalid_field");
    assert_eq!(problem.field.as_deref(), Some("priority"));
    run(json!({"execution_timeout_s": 0})).await.problem(400, "invalid_field");
    run(json!({"instance": "nobody"})).await.problem(404, "not_found");
    let taken = json!({"name": instance, "template": house.template(0).await});
    house.post(&house.operator, "/api/v1/instances", taken).await.problem(409, "name_taken");
}

#[tokio::test]
async fn a_request_id_comes_back_and_is_made_when_missing() {
    let house = House::new().await;
    let send = async |id: &str| {
        let it = request(Method::GET, &house.viewer, "/api/v1/runs").header("x-request-id", id);
        house.send(it.body(Body::empty()).unwrap()).await
    };
    assert_eq!(send("trace-1.A_b").await.header("x-request-id"), "trace-1.A_b");
    let replaced = send("evil id").await;
    assert_eq!(replaced.header("x-request-id").len(), 24);
    assert_eq!(replaced.header("content-security-policy"), "default-src 'none'; frame-ancestors 'none'");
}
