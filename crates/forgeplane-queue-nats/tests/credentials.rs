//! A broker that is run with an operator: users prove themselves by a credentials file.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod broker;

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use broker::{coordinator_with, make_job, options, take, worker_jobs};
use forgeplane_core::ports::JobQueue as _;
use forgeplane_queue_nats::{NatsAuth, NatsOptions, NatsQueue};
use forgeplane_testkit::fixtures::Fixtures;
use forgeplane_testkit::nats_server::{NatsServer, NatsServerOptions};
use forgeplane_testkit::run::story;
use nkeys::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;

/// What the issuer says about the subject, signed.
fn jwt(issuer: &KeyPair, subject: &KeyPair, claims: Value) -> String {
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let (iss, sub) = (issuer.public_key(), subject.public_key());
    let head = encode(json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let body = encode(json!({"jti": sub, "iat": 1, "iss": iss, "sub": sub, "name": "test", "nats": claims}));
    let signature = issuer.sign(format!("{head}.{body}").as_bytes()).unwrap();
    format!("{head}.{body}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn account(operator: &KeyPair, account: &KeyPair, storage: i64) -> String {
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
        "leaf": -1, "mem_storage": storage, "disk_storage": storage, "streams": storage, "consumer": storage,
    });
    jwt(operator, account, json!({"type": "account", "version": 2, "limits": limits}))
}

/// Writes the credentials file of a new user with these permissions.
fn user(account: &KeyPair, dir: &TempDir, name: &str, permissions: Value) -> NatsAuth {
    let user = KeyPair::new_user();
    let mut claims = json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1});
    claims.as_object_mut().unwrap().extend(permissions.as_object().unwrap().clone());
    let file = dir.path().join(name);
    let content = format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        jwt(account, &user, claims),
        user.seed().unwrap()
    );
    fs::write(&file, content).unwrap();
    NatsAuth::CredentialsFile(file)
}

#[test]
fn coordinator_and_worker_prove_themselves_by_credentials_files() {
    story(async {
        let (operator, system, jobs) =
            (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
        let server = NatsServer::start_with(&NatsServerOptions {
            config: format!(
                "operator: {}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload {{ {system}: {}, {jobs}: {} }}",
                jwt(&operator, &operator, json!({"type": "operator", "version": 2})),
                account(&operator, &system, 0),
                account(&operator, &jobs, -1),
                system = system.public_key(),
                jobs = jobs.public_key(),
            ),
            ..NatsServerOptions::default()
        });
        let dir = tempfile::tempdir().unwrap();
        let (worker, job) = make_job(&Fixtures::new());
        let needed = NatsOptions::default().worker_permissions(worker);
        let narrow = json!({"pub": {"allow": needed.publish}, "sub": {"allow": needed.subscribe}});

        let coordinator = user(&jobs, &dir, "coordinator.creds", json!({}));
        let queue = coordinator_with(&server, Some(coordinator)).await;
        queue.publish(&job).await.unwrap();
        let as_worker = NatsOptions { auth: Some(user(&jobs, &dir, "w.creds", narrow)), ..options(&server) };
        take(&mut worker_jobs(as_worker, worker).await, &job).await;

        // Signed by an account the operator does not know.
        let stranger = user(&KeyPair::new_account(), &dir, "stranger.creds", json!({}));
        let as_stranger = NatsOptions { auth: Some(stranger), ..options(&server) };
        assert_eq!(NatsQueue::connect(as_stranger).await.unwrap_err().code(), "nats_unauthorized");
    });
}
