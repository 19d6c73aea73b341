//! Who may join.

use ed25519_dalek::{Signer as _, SigningKey};
use forgeplane_core::Code;
use forgeplane_core::evidence::registration_message;
use forgeplane_core::model::*;
use forgeplane_core::ports::*;
use forgeplane_core::rules::Settings;
use futures_util::future::join_all;
use secrecy::SecretString;

use crate::support::*;

async fn try_register(world: &World, introduction: &Introduction) -> Result<u64, ControlError> {
    introduction.register(&world.coordinator.in_process()).await.map(|r| r.session.incarnation)
}

async fn workers(world: &World) -> Vec<Worker> {
    world
        .store
        .list_as::<Worker>(&Select::Workers, &Page::all())
        .await
        .unwrap()
        .into_iter()
        .map(|w| w.value)
        .collect()
}

#[tokio::test]
async fn g12_only_a_fresh_token_of_the_pool_admits_a_worker() {
    let world = World::new().await;
    let mut who = Introduction::of("w1", 1);
    assert_eq!(code(try_register(&world, &who).await), Code::EnrollmentRefused);
    who.token = Some(SecretString::from("fpe_guessed".to_owned()));
    assert_eq!(code(try_register(&world, &who).await), Code::EnrollmentRefused);
    who.token = Some(world.enrollment("other").await);
    assert_eq!(code(try_register(&world, &who).await), Code::EnrollmentRefused);
    who.token = Some(world.enrollment("default").await);
    world.pass(3_600);
    assert_eq!(code(try_register(&world, &who).await), Code::EnrollmentRefused);
    assert_eq!(workers(&world).await, []);
    who.token = Some(world.enrollment("default").await);
    world.pass(3_599);
    assert_eq!(try_register(&world, &who).await.unwrap(), 1);
}

#[tokio::test]
async fn g12_a_used_token_admits_the_same_key_again_and_nobody_else() {
    let world = World::new().await;
    let who = Introduction { token: Some(world.enrollment("default").await), ..Introduction::of("w1", 1) };
    assert_eq!(try_register(&world, &who).await.unwrap(), 1);
    // The answer was lost: the node is not stranded.
    assert_eq!(try_register(&world, &who).await.unwrap(), 2);
    let thief = Introduction { token: who.token.clone(), ..Introduction::of("w2", 2) };
    assert_eq!(code(try_register(&world, &thief).await), Code::EnrollmentRefused);
    // Afterwards the key is enough.
    let later = Introduction { token: None, ..who.clone() };
    assert_eq!(try_register(&world, &later).await.unwrap(), 3);
    assert_eq!(workers(&world).await.len(), 1);
}

#[tokio::test]
async fn g12_a_hundred_uses_of_one_token_at_once_make_one_identity() {
    let world = World::new().await;
    let token = world.enrollment("default").await;
    world.store.jitter.store(true, std::sync::atomic::Ordering::Relaxed);
    let everybody: Vec<_> = (0..100)
        .map(|n| Introduction { token: Some(token.clone()), ..Introduction::of(&format!("w{n}"), n) })
        .collect();
    let results = join_all(everybody.iter().map(|who| try_register(&world, who))).await;
    let (joined, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((joined.len(), refused.len()), (1, 99));
    for result in refused {
        assert_eq!(code(result), Code::EnrollmentRefused);
    }
    assert_eq!(workers(&world).await.len(), 1);
}

#[tokio::test]
async fn two_workers_of_one_name_are_refused() {
    let world = World::new().await;
    world.worker("w1").await;
    let other = Introduction { token: Some(world.enrollment("default").await), ..Introduction::of("w1", 77) };
    assert_eq!(code(try_register(&world, &other).await), Code::NameTaken);
    // The token was not used up by the refusal.
    let renamed = Introduction { name: name("w2"), ..other };
    assert_eq!(try_register(&world, &renamed).await.unwrap(), 1);
}

#[tokio::test]
async fn a_registration_is_signed_by_the_key_it_names_over_a_fresh_challenge() {
    let world = World::new().await;
    let control = world.coordinator.in_process();
    let key = SigningKey::from_bytes(&[5; 32]);
    let make = |challenge: &Challenge, signed: &[u8], signer: &SigningKey| Registration {
        name: name("w1"),
        pool: name("default"),
        capabilities: [("tofu".to_owned(), "1.0".to_owned())].into(),
        max_jobs: 1,
        unsafe_no_isolation: false,
        public_key: key.verifying_key().to_bytes(),
        enrollment_token: None,
        challenge: challenge.clone(),
        proof: signer.sign(signed).to_bytes(),
        certificate: None,
    };
    let refused = |registration| {
        let control = control.clone();
        async move { code(control.register(registration).await.map(|_| ())) }
    };
    let challenge = control.challenge().await.unwrap();
    let message = registration_message(&challenge.0, "w1", "default");
    let thief = SigningKey::from_bytes(&[6; 32]);
    assert_eq!(refused(make(&challenge, &message, &thief)).await, Code::Unauthenticated);
    // A proof for another name, pool or challenge.
    for (challenge_text, called, pool) in
        [(challenge.0.as_str(), "w2", "default"), (&challenge.0, "w1", "other"), ("00", "w1", "default")]
    {
        let message = registration_message(challenge_text, called, pool);
        assert_eq!(refused(make(&challenge, &message, &key)).await, Code::Unauthenticated);
    }
    // Challenges nobody issued.
    let mut changed = challenge.0.clone();
    changed.replace_range(changed.len() - 1.., if changed.ends_with('0') { "1" } else { "0" });
    for text in ["", "zz", "00", &changed] {
        let invented = Challenge(text.to_owned());
        let message = registration_message(text, "w1", "default");
        assert_eq!(refused(make(&invented, &message, &key)).await, Code::Unauthenticated, "{text:?}");
    }
    // With everything right only the token is missing; a minute later the challenge is too old.
    assert_eq!(refused(make(&challenge, &message, &key)).await, Code::EnrollmentRefused);
    world.pass(61);
    assert_eq!(refused(make(&challenge, &message, &key)).await, Code::Unauthenticated);
}

#[tokio::test]
async fn d14_capability_labels_are_normalized_and_junk_is_refused() {
    let world = World::new().await;
    for junk in ["OpenTofu ", "tofu\0", "TERRAFORM", "", "chef"] {
        let capabilities = [(junk.to_owned(), "1".to_owned())].into();
        let token = Some(world.enrollment("default").await);
        let who = Introduction { token, capabilities, ..Introduction::of("w1", 1) };
        assert_eq!(code(try_register(&world, &who).await), Code::UnknownCapability, "{junk:?}");
    }
    let capabilities = [("opentofu".to_owned(), "1.9".to_owned())].into();
    let worker = world.worker_as(Introduction { capabilities, ..Introduction::of("w1", 1) }).await;
    let stored = workers(&world).await.pop().unwrap();
    assert_eq!(stored.capabilities.keys().collect::<Vec<_>>(), [&Tool::Tofu]);
    // A worker that found nothing may join, and gets nothing.
    let nothing = Introduction { capabilities: [].into(), ..worker.introduction() };
    try_register(&world, &nothing).await.unwrap();
    assert!(workers(&world).await.pop().unwrap().capabilities.is_empty());
    let idle = Introduction { max_jobs: 0, ..worker.introduction() };
    assert_eq!(code(try_register(&world, &idle).await), Code::InvalidField);
}

#[tokio::test]
async fn a_disconnected_worker_stays_out_with_its_key() {
    let world = World::new().await;
    let worker = world.worker("w1").await;
    world.coordinator.disconnect_worker(&world.root, "w1").await.unwrap();
    assert_eq!(code(worker.heartbeat().await), Code::WorkerDisabled);
    let token = Some(world.enrollment("default").await);
    let with_token = Introduction { token, ..worker.introduction() };
    let error = try_register(&world, &with_token).await.unwrap_err().refusal();
    assert_eq!(error.code, Code::WorkerDisabled);
    // What the refusal advises works.
    assert!(error.way_out.unwrap().contains("another name"));
    let anew = Introduction { name: name("w1-new"), key: SigningKey::from_bytes(&[44; 32]), ..with_token };
    assert_eq!(try_register(&world, &anew).await.unwrap(), 1);
}

#[tokio::test]
async fn a_worker_neither_moves_to_another_pool_nor_takes_another_name() {
    let world = World::new().await;
    let worker = world.worker("w1").await;
    let moved = Introduction { pool: name("production"), ..worker.introduction() };
    assert_eq!(code(try_register(&world, &moved).await), Code::InvalidField);
    let renamed = Introduction { name: name("w9"), ..worker.introduction() };
    assert_eq!(code(try_register(&world, &renamed).await), Code::InvalidField);
}

#[tokio::test]
async fn an_unisolated_worker_joins_only_where_that_is_allowed() {
    for allowed in [false, true] {
        let settings = Settings { unsafe_allow_no_isolation: allowed, ..Settings::default() };
        let world = World::with(settings).await;
        let control = world.coordinator.in_process();
        let key = SigningKey::from_bytes(&[5; 32]);
        let challenge = control.challenge().await.unwrap();
        let proof = key.sign(&registration_message(&challenge.0, "w1", "default")).to_bytes();
        let registration = Registration {
            name: name("w1"),
            pool: name("default"),
            capabilities: [].into(),
            max_jobs: 1,
            unsafe_no_isolation: true,
            public_key: key.verifying_key().to_bytes(),
            enrollment_token: Some(world.enrollment("default").await),
            challenge,
            proof,
            certificate: None,
        };
        let result = control.register(registration).await.map(|_| ());
        if allowed {
            result.unwrap();
        } else {
            assert_eq!(code(result), Code::WorkerDisabled);
        }
    }
}
