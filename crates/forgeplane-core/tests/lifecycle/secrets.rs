//! Secrets go in and come out for the claiming worker alone.

use std::collections::BTreeMap;

use forgeplane_core::Code;
use forgeplane_core::coordinator::NewInstance;
use forgeplane_core::model::*;
use forgeplane_core::ports::ControlPlane as _;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use crate::support::*;

const CANARY: &str = "canary-8f14e45fceea";

/// Everything that store and blob store were ever given holds no trace of the canary.
fn assert_nowhere(world: &World) {
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(CANARY);
    let stored = format!("{:?}", world.store.since(0));
    assert!(stored.len() > 1_000);
    for form in [CANARY, encoded.as_str()] {
        assert!(!stored.contains(form), "the store was given {form}");
        for (name, bytes) in world.blobs.given.lock().unwrap().iter() {
            let found = bytes.windows(form.len()).any(|w| w == form.as_bytes());
            assert!(!found && !name.contains(form), "blob {name} holds {form}");
        }
    }
}

async fn database(world: &World) {
    let mut push = world.template("database", Tool::Terraform);
    push.schema = Some(json!({
        "type": "object",
        "properties": {
            "size": {"type": "integer"},
            "db": {"type": "object", "required": ["password"], "properties": {
                "password": {"type": "string", "x-forgeplane-secret": true}}}
        },
        "required": ["db"]
    }));
    push.approval.required = 0;
    world.coordinator.push_template(&world.alice, push).await.unwrap();
}

fn bound(instance: &str) -> NewInstance {
    NewInstance {
        name: name(instance),
        template: "database".to_owned(),
        template_version: None,
        inputs: map(json!({"db": {}})),
        secrets: BTreeMap::from([("/db/password".to_owned(), name("db-password"))]),
        pool: None,
    }
}

#[tokio::test]
async fn an_inline_secret_is_refused_everywhere_and_stored_nowhere() {
    let world = World::new().await;
    database(&world).await;
    let inline = map(json!({"db": {"password": CANARY}}));

    let mut push = world.template("database", Tool::Terraform);
    push.schema = Some(json!({"properties": {"p": {"x-forgeplane-secret": true}}}));
    push.defaults = map(json!({"p": CANARY}));
    let pushed = world.coordinator.push_template(&world.alice, push).await.unwrap_err();
    assert!(!format!("{pushed:?} {pushed}").contains(CANARY));
    assert_eq!(pushed.refusal().code, Code::InlineSecret);

    let created = world
        .coordinator
        .create_instance(&world.alice, NewInstance { inputs: inline.clone(), ..bound("db1") });
    let created = created.await.unwrap_err();
    assert!(!format!("{created:?} {created}").contains(CANARY));
    assert_eq!(created.refusal().code, Code::InlineSecret);

    let value = SecretString::from("sealed-value".to_owned());
    world
        .coordinator
        .put_secret(&world.alice, &name("db-password"), &value, vec![name("db1")])
        .await
        .unwrap();
    world.coordinator.create_instance(&world.alice, bound("db1")).await.unwrap();
    let mut new = new_run("db1", Operation::PlanOnly);
    new.request.inputs = inline;
    new.idempotency_key = Some("k".to_owned());
    let run = world.coordinator.create_run(&world.alice, new).await.unwrap_err();
    assert!(!format!("{run:?} {run}").contains(CANARY));
    assert_eq!(run.refusal().code, Code::InlineSecret);
    assert_nowhere(&world);
}

/// A marker where Forgeplane does not look would protect nothing, so such a schema is refused.
#[tokio::test]
async fn a_secret_marker_that_cannot_be_honoured_is_refused() {
    let world = World::new().await;
    let marked = json!({"type": "string", "x-forgeplane-secret": true});
    for schema in [
        json!({"x-forgeplane-secret": true}),
        json!({"properties": {"list": {"type": "array", "items": marked}}}),
        json!({"allOf": [{"properties": {"p": marked}}]}),
        json!({"$defs": {"password": marked}, "properties": {"p": {"$ref": "#/$defs/password"}}}),
        json!({"additionalProperties": marked}),
        json!({"patternProperties": {"^p": marked}}),
        json!({"properties": {"p": {"x-forgeplane-secret": "true"}}}),
    ] {
        let mut push = world.template("odd", Tool::Terraform);
        push.schema = Some(schema.clone());
        let pushed = world.coordinator.push_template(&world.alice, push).await.map(|v| v.version.version);
        assert_eq!(code(pushed), Code::InvalidSchema, "{schema}");
    }
    // A property may be called like the marker.
    let mut push = world.template("odd", Tool::Terraform);
    push.schema = Some(json!({"properties": {"x-forgeplane-secret": {"type": "string"}}}));
    world.coordinator.push_template(&world.alice, push).await.unwrap();
}

#[tokio::test]
async fn a_secret_reaches_the_claiming_worker_and_nobody_else() {
    let world = World::new().await;
    database(&world).await;
    let value = SecretString::from(CANARY.to_owned());
    let secret = name("db-password");
    world.coordinator.put_secret(&world.alice, &secret, &value, vec![name("db1")]).await.unwrap();
    world.coordinator.create_instance(&world.alice, bound("db1")).await.unwrap();
    let mut worker = world.worker("w1").await;
    let thief = world.worker("w2").await;

    let run = world.create("db1", Operation::Plan { destroy: false }).await;
    // Rotated after admission: the run keeps the version that admission froze.
    let rotated = SecretString::from("rotated-value".to_owned());
    world.coordinator.put_secret(&world.alice, &secret, &rotated, vec![name("db1")]).await.unwrap();
    world.coordinator.schedule_step().await.unwrap();
    // Whichever of the two it was offered to.
    let offered = world.last_attempt(run.id).await.worker;
    let (owner, other) =
        if offered == worker.id() { (&mut worker, &thief) } else { panic!("the first worker is idle") };
    world.coordinator.dispatch_step().await.unwrap();
    let mut work = owner.prepare_next().await;
    assert!(!format!("{:?}", work.bundle).contains(CANARY), "the bundle holds no payload");
    assert_eq!(code(other.control.claim(&other.session, work.request()).await), Code::NotFound);
    assert_eq!(code(other.prepare(work.job.clone()).await), Code::NotFound);
    owner.claim(&mut work).await.unwrap();
    let granted = &work.grant.as_ref().unwrap().secrets;
    assert_eq!(granted.len(), 1);
    assert_eq!((granted[0].path.as_str(), granted[0].value.expose_secret()), ("/db/password", CANARY));
    assert!(!format!("{:?}", work.grant).contains(CANARY));

    owner.publish_plan(&work).await;
    owner.succeed(&work).await;
    let evidence = world.coordinator.evidence(&world.alice, run.id, None).await.unwrap();
    assert!(!serde_json::to_string(&evidence).unwrap().contains(CANARY));
    assert!(!format!("{:?}", world.view(run.id).await).contains(CANARY));
    assert_nowhere(&world);
}

#[tokio::test]
async fn a_secret_is_approved_for_named_instances_only() {
    let world = World::new().await;
    database(&world).await;
    let value = SecretString::from(CANARY.to_owned());
    let secret = name("db-password");
    world.coordinator.create_instance(&world.alice, bound("db1")).await.unwrap();
    assert_eq!(code(world.try_create("db1", Operation::PlanOnly).await), Code::SecretUnavailable);
    world.coordinator.put_secret(&world.alice, &secret, &value, vec![name("db2")]).await.unwrap();
    assert_eq!(code(world.try_create("db1", Operation::PlanOnly).await), Code::SecretUnavailable);
    world.coordinator.put_secret(&world.alice, &secret, &value, vec![name("db1")]).await.unwrap();
    world.create("db1", Operation::PlanOnly).await;
}

/// T-051: the claim is refused before the fence is crossed, not after.
#[tokio::test]
async fn t051_a_run_whose_secret_is_gone_fails_before_any_tool_starts() {
    let world = World::new().await;
    database(&world).await;
    let value = SecretString::from(CANARY.to_owned());
    world
        .coordinator
        .put_secret(&world.alice, &name("db-password"), &value, vec![name("db1")])
        .await
        .unwrap();
    world.coordinator.create_instance(&world.alice, bound("db1")).await.unwrap();
    let mut worker = world.worker("w1").await;
    let run = world.create("db1", Operation::PlanOnly).await;
    world.step().await;
    let mut work = worker.prepare_next().await;
    world.blobs.lose("secret/").await;
    assert_eq!(code(worker.claim(&mut work).await), Code::SecretUnavailable);
    let view = world.view(run.id).await;
    assert_eq!(view.attempts[0].claim, None, "nobody holds the attempt, so nobody will end it");
    assert_eq!(
        (view.run.status, view.run.error.unwrap().code.as_str()),
        (RunStatus::Failed, "secret_unavailable")
    );
}

/// T-019: what can never be prepared does not go round and round in the queue.
#[tokio::test]
async fn t019_a_run_whose_source_is_gone_fails_with_the_reason() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::PlanOnly).await;
    world.step().await;
    world.blobs.lose("source/").await;
    let job = worker.job().await.unwrap();
    assert_eq!(code(worker.prepare(job).await), Code::ArtifactMissing);
    let view = world.view(run.id).await;
    assert_eq!(
        (view.run.status, view.run.error.unwrap().code.as_str()),
        (RunStatus::Failed, "artifact_missing")
    );
}
