//! Operators decide what no worker will ever say.

use forgeplane_core::Code;
use forgeplane_core::id::AttemptId;
use forgeplane_core::model::*;
use forgeplane_core::ports::StoreExt as _;
use forgeplane_core::rules::resolve::Resolution;

use crate::support::*;

fn decision(outcome: OutcomeKind) -> Resolution {
    Resolution {
        outcome,
        reason: "the host burned down".to_owned(),
        asserted: vec!["worker host is off or wiped".to_owned()],
        generation: None,
    }
}

async fn unresolved(world: &World) -> (Run, TestWorker, Work) {
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::Destroy { mode: DestroyMode::Perform }).await;
    world.step().await;
    let work = worker.claim_next().await;
    world.pass(130);
    world.coordinator.sweep_step().await.unwrap();
    assert!(world.view(run.id).await.is_unresolved());
    (run, worker, work)
}

#[tokio::test]
async fn a_decision_needs_the_permission_a_reason_and_an_unresolved_attempt() {
    let world = World::new().await;
    let (run, worker, work) = unresolved(&world).await;
    let id = work.job.attempt;
    let failed = decision(OutcomeKind::Failed);
    for caller in [&world.alice, &world.bob] {
        assert_eq!(code(world.coordinator.resolve_attempt(caller, id, &failed).await), Code::Forbidden);
    }
    let stranger = Caller {
        project: world.coordinator.ensure_project(&name("other")).await.unwrap().id,
        ..world.root.clone()
    };
    assert_eq!(code(world.coordinator.resolve_attempt(&stranger, id, &failed).await), Code::NotFound);
    let nowhere = AttemptId::new(start_of_time(), [9; 10]);
    assert_eq!(code(world.coordinator.resolve_attempt(&world.root, nowhere, &failed).await), Code::NotFound);
    let mute = Resolution { reason: "  ".to_owned(), ..failed.clone() };
    assert_eq!(code(world.coordinator.resolve_attempt(&world.root, id, &mute).await), Code::InvalidField);
    for kind in [OutcomeKind::TimedOut, OutcomeKind::NotStarted] {
        let result = world.coordinator.resolve_attempt(&world.root, id, &decision(kind)).await;
        assert_eq!(code(result), Code::InvalidField);
    }
    // The worker comes back: there is nothing left to decide.
    world.pass(1);
    worker.heartbeat().await.unwrap();
    world.coordinator.sweep_step().await.unwrap();
    assert_eq!(code(world.coordinator.resolve_attempt(&world.root, id, &failed).await), Code::NotUnresolved);
    assert_eq!(world.status(run.id).await, RunStatus::Running);
}

#[tokio::test]
async fn d8_a_late_outcome_after_the_decision_is_kept_whatever_happened_since() {
    let world = World::new().await;
    let (run, worker, work) = unresolved(&world).await;
    let decided = world
        .coordinator
        .resolve_attempt(&world.root, work.job.attempt, &decision(OutcomeKind::Failed))
        .await;
    let decided = decided.unwrap();
    assert_eq!(
        (decided.status, decided.error.unwrap().code.as_str()),
        (RunStatus::Failed, "resolved_by_operator")
    );
    let workers = world.coordinator.workers(&world.root).await.unwrap();
    assert_eq!(workers[0].worker.quarantined.as_deref(), Some("execution_resolved_by_operator"));

    // Requeued and claimed by another worker, then the first one comes back with its story.
    world.coordinator.requeue(&world.alice, run.id).await.unwrap();
    let mut other = world.worker("w2").await;
    world.step().await;
    let second = other.claim_next().await;
    assert!(second.job.fence > work.job.fence);
    worker.heartbeat().await.unwrap();
    assert_eq!(code(worker.claim(&mut work.clone()).await), Code::AttemptClosed);
    assert_eq!(code(worker.log(&work, 0, "x").await), Code::AttemptClosed);
    let late = worker.sign(&work.outcome(OutcomeKind::Succeeded));
    for _ in 0..2 {
        let answer = worker.deliver(&late).await.unwrap();
        assert_eq!((answer.applied, answer.envelope_digest), (false, late.digest()));
    }
    // "It never started" is a story too.
    let never = worker.sign(&work.not_started(Some(work.nonce), true));
    assert!(!worker.deliver(&never).await.unwrap().applied);
    assert_eq!(world.status(run.id).await, RunStatus::Running);
    let kept = world.late_evidence(run.id).await;
    assert_eq!(kept.len(), 2);
    assert!(kept.iter().all(|e| e.why == "operator_decided" && e.attempt == work.job.attempt));
    let first = world.view(run.id).await.attempts[0].clone();
    assert_eq!(first.closing, Some(Closing::Decided { outcome: OutcomeKind::Failed }));

    // Its state documents are kept aside, and the newer attempt goes on undisturbed.
    assert_eq!(code(worker.put_state(&work, 0, state_document("l1", 7)).await), Code::AttemptClosed);
    assert_eq!(world.coordinator.orphan_states(&world.alice, "sandbox").await.unwrap().len(), 1);
    assert_eq!(world.state("sandbox").await.head, 0);
    other.save_state(&second, "l1").await;
    other.succeed(&second).await;
    assert_eq!(world.status(run.id).await, RunStatus::Succeeded);
}

#[tokio::test]
async fn d7_decision_and_outcome_at_once_close_the_attempt_once() {
    let (mut decided, mut receipted) = (0, 0);
    for round in 0..40 {
        let world = World::new().await;
        let (run, worker, work) = unresolved(&world).await;
        world.store.jitter.store(true, std::sync::atomic::Ordering::Relaxed);
        let envelope = worker.sign(&work.outcome(OutcomeKind::Succeeded));
        let canceled = decision(OutcomeKind::Canceled);
        let decide = async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            world.coordinator.resolve_attempt(&world.root, work.job.attempt, &canceled).await
        };
        let (resolved, answer) = tokio::join!(decide, worker.deliver(&envelope));
        let answer = answer.unwrap();
        let kept = world.late_evidence(run.id).await.len();
        match (resolved, answer.applied) {
            (Ok(_), false) => {
                decided += 1;
                assert_eq!((world.status(run.id).await, kept), (RunStatus::Canceled, 1));
            }
            (Err(error), true) => {
                receipted += 1;
                assert_eq!(error.refusal().code, Code::NotUnresolved);
                assert_eq!((world.status(run.id).await, kept), (RunStatus::Succeeded, 0));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(decided > 0 && receipted > 0, "both orders happen: {decided} and {receipted}");
}

#[tokio::test]
async fn success_by_decision_takes_two_people_and_the_state_it_left() {
    let world = World::new().await;
    let (run, worker, work) = unresolved(&world).await;
    let id = work.job.attempt;
    let head = world.state("sandbox").await.head;
    let blind = decision(OutcomeKind::Succeeded);
    let succeeded = Resolution { generation: Some(head), ..blind.clone() };
    let second = Caller { role: Role::Admin, ..world.carol.clone() };
    let confirm = |caller: &Caller| {
        let (coordinator, caller) = (world.coordinator.clone(), caller.clone());
        async move { coordinator.confirm_resolution(&caller, id).await }
    };
    assert_eq!(code(confirm(&second).await), Code::InvalidState);
    assert_eq!(code(world.coordinator.resolve_attempt(&world.root, id, &blind).await), Code::InvalidField);
    let proposed = world.coordinator.resolve_attempt(&world.root, id, &succeeded).await.unwrap();
    assert_eq!(proposed.status, RunStatus::Running);
    let view = world.coordinator.attempt(&world.alice, id).await.unwrap();
    assert_eq!(view.attempt.proposal.unwrap().by, world.root.actor());
    // Not by the same person, not without the permission, not from elsewhere.
    assert_eq!(code(confirm(&world.root).await), Code::Forbidden);
    assert_eq!(code(confirm(&world.carol).await), Code::Forbidden);
    let elsewhere = world.coordinator.ensure_project(&name("other")).await.unwrap().id;
    assert_eq!(code(confirm(&Caller { project: elsewhere, ..second.clone() }).await), Code::NotFound);
    assert_eq!(confirm(&second).await.unwrap().status, RunStatus::Succeeded);
    let stored = world.store.get_as::<OperatorDecision>(id).await.unwrap().unwrap();
    assert_eq!((&stored.actor, stored.confirmed_by.as_ref()), (&world.root.actor(), Some(&second.actor())));
    assert_eq!(stored.generation, Some(head));
    let history = world.history(run.id).await;
    assert_eq!(
        history[history.len() - 3..],
        ["attempt.resolution_proposed", "attempt.resolved", "run.succeeded"]
    );
    // The fence is behind: whatever the worker still brings changes no state.
    assert!(world.state("sandbox").await.high_water > work.job.fence);
    assert_eq!(code(worker.put_state(&work, head, state_document("l1", 7)).await), Code::AttemptClosed);
    assert_eq!(forgeplane_core::check::check(&*world.store).await.unwrap().violations, []);
}

#[tokio::test]
async fn a_proposal_ends_with_the_uncertainty_it_was_about() {
    let world = World::new().await;
    let (_, worker, work) = unresolved(&world).await;
    let id = work.job.attempt;
    let head = world.state("sandbox").await.head;
    let succeeded = Resolution { generation: Some(head), ..decision(OutcomeKind::Succeeded) };
    world.coordinator.resolve_attempt(&world.root, id, &succeeded).await.unwrap();
    // The worker comes back, writes, and is lost again: what was proposed is not what there is now.
    world.pass(1);
    worker.heartbeat().await.unwrap();
    world.coordinator.sweep_step().await.unwrap();
    worker.put_state(&work, head, state_document("l1", 7)).await.unwrap();
    world.pass(130);
    world.coordinator.sweep_step().await.unwrap();
    let second = Caller { role: Role::Admin, ..world.carol.clone() };
    assert_eq!(code(world.coordinator.confirm_resolution(&second, id).await), Code::InvalidState);
    assert_eq!(
        code(world.coordinator.resolve_attempt(&world.root, id, &succeeded).await),
        Code::InvalidField
    );
}

#[tokio::test]
async fn an_unresolved_execution_is_listed_and_everything_known_is_shown() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let run = world.create("sandbox", Operation::Destroy { mode: DestroyMode::Perform }).await;
    world.step().await;
    let work = worker.claim_next().await;
    let id = work.job.attempt;
    worker.log(&work, 0, "destroying").await.unwrap();
    worker.put_state(&work, 0, state_document("l1", 1)).await.unwrap();
    worker.heartbeat().await.unwrap();
    let named = world.now();
    let list = async |unresolved| -> Vec<AttemptId> {
        let found = world.coordinator.open_attempts(&world.alice, unresolved).await.unwrap();
        found.into_iter().map(|a| a.id).collect()
    };
    assert_eq!((list(false).await, list(true).await), (vec![id], vec![]));
    world.pass(130);
    world.coordinator.sweep_step().await.unwrap();
    assert_eq!(list(true).await, [id]);
    let view = world.coordinator.attempt(&world.alice, id).await.unwrap();
    assert_eq!((view.run.id, view.worker.name.as_str()), (run.id, "w1"));
    assert_eq!(view.worker_status, WorkerStatus::Offline);
    assert_eq!((view.last_contact, view.last_named), (Some(named), Some(named)));
    assert_eq!((view.log_bytes, view.generations.len()), (10, 1));
    assert!(view.receipt.is_none() && view.decision.is_none() && view.late.is_empty());
    // Nobody else's business.
    let other = world.coordinator.ensure_project(&name("other")).await.unwrap().id;
    let stranger = Caller { project: other, ..world.root.clone() };
    assert_eq!(code(world.coordinator.attempt(&stranger, id).await), Code::NotFound);
    assert_eq!(world.coordinator.open_attempts(&stranger, false).await.unwrap(), []);

    // What comes late is kept and shown; the decision stays.
    let failed = decision(OutcomeKind::Failed);
    world.coordinator.resolve_attempt(&world.root, id, &failed).await.unwrap();
    let late = worker.sign(&work.outcome(OutcomeKind::Succeeded));
    world.coordinator.submit_outcome(&world.root, id, late).await.unwrap();
    let view = world.coordinator.attempt(&world.alice, id).await.unwrap();
    assert_eq!(view.decision.unwrap().outcome, OutcomeKind::Failed);
    assert_eq!((view.late.len(), view.late[0].outcome), (1, OutcomeKind::Succeeded));
    assert_eq!(list(false).await, []);
}

/// `protocol.md` 1.11, 2: the signature counts, whoever brings the envelope.
#[tokio::test]
async fn an_operator_delivers_the_outcome_of_a_disconnected_worker() {
    let world = World::new().await;
    let (run, worker, work) = unresolved(&world).await;
    world.coordinator.disconnect_worker(&world.root, "w1").await.unwrap();
    let envelope = worker.sign(&work.outcome(OutcomeKind::Failed));
    assert_eq!(code(worker.deliver(&envelope).await), Code::WorkerDisabled);
    let submit = |caller: Caller| {
        let (coordinator, envelope, id) = (world.coordinator.clone(), envelope.clone(), work.job.attempt);
        async move { coordinator.submit_outcome(&caller, id, envelope).await }
    };
    assert_eq!(code(submit(world.alice.clone()).await), Code::Forbidden);
    let elsewhere = world.coordinator.ensure_project(&name("other")).await.unwrap().id;
    assert_eq!(code(submit(Caller { project: elsewhere, ..world.root.clone() }).await), Code::NotFound);
    let answer = submit(world.root.clone()).await.unwrap();
    assert_eq!((answer.applied, answer.envelope_digest), (true, envelope.digest()));
    assert_eq!(world.status(run.id).await, RunStatus::Failed);
}
