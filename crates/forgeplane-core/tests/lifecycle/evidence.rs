//! What anybody can verify with a file and nothing else.

use forgeplane_core::evidence::Evidence;
use forgeplane_core::id::{ApprovalId, ProjectId, RunId};
use forgeplane_core::model::*;

use crate::support::*;

async fn of_an_apply() -> (World, Run, Evidence) {
    let world = World::new().await;
    world.network().await;
    let mut worker = world.worker("w1").await;
    let apply = world.approved_apply(&mut worker, "network").await;
    world.step().await;
    let work = worker.claim_next().await;
    worker.save_state(&work, "l1").await;
    worker.succeed(&work).await;
    let evidence = world.coordinator.evidence(&world.alice, apply.id, None).await.unwrap();
    (world, apply, evidence)
}

#[tokio::test]
async fn evidence_of_an_apply_verifies_offline() {
    let (world, apply, evidence) = of_an_apply().await;
    let text = serde_json::to_string(&evidence).unwrap();
    let verified = serde_json::from_str::<Evidence>(&text).unwrap().verify().unwrap();
    assert_eq!((verified.outcome.run, verified.outcome.outcome), (apply.id, OutcomeKind::Succeeded));
    assert_eq!(verified.snapshot.digest(), apply.snapshot);
    assert_eq!(verified.outcome.plan, apply.plan.map(|p| p.digest));
    assert_eq!(verified.coordinator_key, forgeplane_core::evidence::key_id(&world.coordinator.public_key()));
    let attempt = world.last_attempt(apply.id).await;
    assert_eq!(verified.worker_key, attempt.key);
    // Whoever reads the receipt finds the very bytes that were signed.
    let records = world.store.records();
    let Record::Receipt(receipt) = &records[&Key::of::<Receipt>(attempt.id)] else { panic!() };
    assert_eq!(receipt.envelope, evidence.outcome.to_json());
    assert_eq!(receipt.envelope_digest, evidence.outcome.digest());
}

#[tokio::test]
async fn g11_no_signed_byte_of_the_evidence_can_be_changed() {
    let (_, _, evidence) = of_an_apply().await;
    let text = serde_json::to_string(&evidence).unwrap();
    let signed = text.find(",\"approval\":").unwrap();
    for index in 0..signed {
        for flip in [0x01, 0x20, 0x80] {
            let mut bytes = text.clone().into_bytes();
            bytes[index] ^= flip;
            let verdict = serde_json::from_slice::<Evidence>(&bytes)
                .map_err(|e| e.to_string())
                .and_then(|e| e.verify().map_err(|e| e.to_string()));
            if let Ok(verified) = verdict {
                let around =
                    String::from_utf8_lossy(&bytes[index.saturating_sub(20)..(index + 20).min(signed)]);
                panic!("byte {index} ^ {flip:#x} was accepted: …{around}… {verified:?}");
            }
        }
    }
}

/// The approval record is the coordinator's word, but what it approved is bound by signatures.
#[tokio::test]
async fn g27_evidence_with_another_approval_is_refused() {
    let (world, _, evidence) = of_an_apply().await;
    let good = evidence.approval.clone().unwrap();
    let requester = good.requester.clone();
    let other_run = RunId::new(start_of_time(), [3; 10]);
    type Change = Box<dyn Fn(&mut Approval)>;
    let changes: Vec<(&str, Change)> = vec![
        ("run", Box::new(move |a| a.run = other_run)),
        ("project", Box::new(|a| a.project = ProjectId::new(start_of_time(), [3; 10]))),
        ("source plan", Box::new(move |a| a.source_plan = Some(other_run))),
        ("plan digest", Box::new(|a| a.plan_digest = Some(digest("another plan")))),
        ("no plan digest", Box::new(|a| a.plan_digest = None)),
        ("base generation", Box::new(|a| a.base_generation += 1)),
        ("snapshot", Box::new(|a| a.snapshot = digest("another snapshot"))),
        ("policy", Box::new(|a| a.policy.required = 0)),
        ("pending", Box::new(|a| a.status = ApprovalStatus::Pending)),
        ("rejected", Box::new(|a| a.status = ApprovalStatus::Rejected)),
        ("expired", Box::new(|a| a.status = ApprovalStatus::Expired)),
        ("no reviews", Box::new(|a| a.reviews.clear())),
        ("a rejecting review", Box::new(|a| a.reviews[0].verdict = Verdict::Reject)),
        ("the requester's review", Box::new(move |a| a.reviews[0].reviewer = requester.clone())),
    ];
    for (what, change) in changes {
        let mut approval = good.clone();
        change(&mut approval);
        let changed = Evidence { approval: Some(approval), ..evidence.clone() };
        assert!(changed.verify().is_err(), "evidence with {what} changed was accepted");
    }
    let without = Evidence { approval: None, ..evidence.clone() };
    assert!(without.verify().is_err(), "evidence of a gated run was accepted without its approval");
    let _ = (world, ApprovalId::PREFIX);
}

/// Parts of two valid pieces of evidence do not make a third.
#[tokio::test]
async fn g7_parts_of_different_runs_do_not_mix() {
    let world = World::new().await;
    world.sandbox().await;
    let mut worker = world.worker("w1").await;
    let mut found = Vec::new();
    for _ in 0..2 {
        let run = world.create("sandbox", Operation::Destroy { mode: DestroyMode::Perform }).await;
        world.step().await;
        let work = worker.claim_next().await;
        worker.end(&work, OutcomeKind::Failed).await;
        found.push(world.coordinator.evidence(&world.alice, run.id, None).await.unwrap());
    }
    let (one, two) = (&found[0], &found[1]);
    one.verify().unwrap();
    two.verify().unwrap();
    for mixed in [
        Evidence { outcome: two.outcome.clone(), ..one.clone() },
        Evidence { bundle: two.bundle.clone(), ..one.clone() },
        Evidence { snapshot: two.snapshot.clone(), ..one.clone() },
        Evidence { worker_key: one.coordinator_key.clone(), ..one.clone() },
        Evidence { coordinator_key: one.worker_key.clone(), ..one.clone() },
        Evidence { outcome: one.bundle.clone(), bundle: one.outcome.clone(), ..one.clone() },
    ] {
        assert!(mixed.verify().is_err(), "{mixed:?}");
    }
}
