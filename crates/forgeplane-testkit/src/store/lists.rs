//! Lists: what each [`Select`] contains, and in which order.

use forgeplane_core::Timestamp;
use forgeplane_core::model::*;
use forgeplane_core::ports::{Page, Select, Store};

use super::*;
use crate::fixtures::Fixtures;

/// Requires that the list is exactly this.
async fn lists(store: &dyn Store, select: Select, expected: &[impl Into<Record> + Clone]) {
    let expected: Vec<Record> = expected.iter().cloned().map(Into::into).collect();
    assert_eq!(listed(store, &select, &Page::all()).await, expected, "{select:?}");
}

/// An empty list.
const NOTHING: &[Record] = &[];

/// A project's runs are listed newest first, by status and instance if asked.
pub async fn runs_of_a_project_newest_first(store: &dyn Store) {
    let make = Fixtures::new();
    let (project, other) = (make.project(), make.project());
    let template = make.template(&project);
    let (left, right) = (make.instance(&template), make.instance(&template));
    let first = make.run(&left);
    let second = Run { status: RunStatus::Running, ..make.run(&right) };
    let third = make.run(&right);
    let foreign = make.run(&make.instance(&make.template(&other)));
    // The order of insertion is not the order of the list.
    commit(store, inserting([second.clone(), foreign.clone(), third.clone(), first.clone()])).await;

    let runs = |status, instance| Select::Runs { project: project.id, status, instance };
    lists(store, runs(None, None), &[third.clone(), second.clone(), first.clone()]).await;
    lists(store, runs(Some(RunStatus::Queued), None), &[third.clone(), first.clone()]).await;
    lists(store, runs(None, Some(right.id)), &[third.clone(), second.clone()]).await;
    lists(store, runs(Some(RunStatus::Running), Some(right.id)), &[second]).await;
    lists(store, runs(Some(RunStatus::Running), Some(left.id)), NOTHING).await;
    lists(store, Select::Runs { project: other.id, status: None, instance: None }, &[foreign]).await;
    let of_foreign = Select::Runs { project: other.id, status: None, instance: Some(left.id) };
    lists(store, of_foreign, NOTHING).await;
}

/// A run is listed under every status it can have, and moves between lists with it.
pub async fn runs_by_every_status(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let mut run = make.run(&instance);
    commit(store, insert(run.clone())).await;
    for (status, version) in RunStatus::ALL.into_iter().zip(1..) {
        run.status = status;
        commit(store, update(version, run.clone())).await;
        for asked in RunStatus::ALL {
            let select = Select::Runs { project: run.project, status: Some(asked), instance: None };
            let expected = if asked == status { std::slice::from_ref(&run) } else { &[] };
            lists(store, select, expected).await;
        }
    }
}

/// The queue of all projects: highest priority, then longest waiting, then lowest id. A cursor is ignored.
pub async fn the_queue_by_priority_then_age_then_id(store: &dyn Store) {
    let make = Fixtures::new();
    let instances = [0, 1].map(|_| make.instance(&make.template(&make.project())));
    let queued = |project: usize, priority, at| Run {
        priority,
        queued_at: Some(Fixtures::at(at)),
        ..make.run(&instances[project])
    };
    let low = queued(0, -5, 100);
    let [late, early] = [queued(0, 0, 300), queued(1, 0, 200)];
    let [twin, younger_twin] = [queued(1, 0, 250), queued(0, 0, 250)];
    let [high, highest] = [queued(0, 7, 900), queued(1, i32::MAX, 950)];
    let lowest = queued(1, i32::MIN, 1);
    let running = Run { status: RunStatus::Running, ..queued(0, 9, 1) };
    let waiting = Run { status: RunStatus::PendingApproval, ..queued(0, 9, 1) };
    let all = [&low, &late, &younger_twin, &lowest, &running, &high, &twin, &waiting, &early, &highest];
    commit(store, inserting(all.map(Clone::clone))).await;

    let order = [highest, high, early, twin, younger_twin, late, low, lowest];
    lists(store, Select::QueuedRuns, &order).await;
    let page = Page { after: Some(order[3].id.to_string()), limit: 2 };
    let first: Vec<Record> = order[..2].iter().cloned().map(Into::into).collect();
    assert_eq!(listed(store, &Select::QueuedRuns, &page).await, first, "the queue is not pageable");
}

/// Times that do not fit into 31 or 32 bits of seconds, and the last one there is, are as good as any.
pub async fn c5_times_far_off_keep_their_order(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let seconds =
        [i64::from(i32::MAX), i64::from(i32::MAX) + 1, i64::from(u32::MAX), i64::from(u32::MAX) + 1];
    let times = seconds.map(|second| Timestamp::from_second(second).unwrap_or(Timestamp::MAX));
    let order: Vec<Run> = times
        .into_iter()
        .chain([Timestamp::MAX])
        .map(|at| Run { queued_at: Some(at), ..make.run(&instance) })
        .collect();
    let mixed = [3, 0, 4, 2, 1].map(|place: usize| order[place].clone());
    commit(store, inserting(mixed)).await;
    lists(store, Select::QueuedRuns, &order).await;
}

/// A run leaves the queue when it is claimed and comes back in its place.
pub async fn the_queue_follows_the_status(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let (first, second) = (make.run(&instance), make.run(&instance));
    commit(store, inserting([first.clone(), second.clone()])).await;
    commit(store, update(1, Run { status: RunStatus::Running, ..first.clone() })).await;
    lists(store, Select::QueuedRuns, std::slice::from_ref(&second)).await;
    let requeued = Run { queued_at: Some(make.now()), ..first };
    commit(store, update(2, requeued.clone())).await;
    lists(store, Select::QueuedRuns, &[second, requeued]).await;
}

/// Runs of all projects that wait for approval, oldest first.
pub async fn runs_pending_approval(store: &dyn Store) {
    let make = Fixtures::new();
    let pending = || Run {
        status: RunStatus::PendingApproval,
        ..make.run(&make.instance(&make.template(&make.project())))
    };
    let (first, second) = (pending(), pending());
    let queued = Run { status: RunStatus::Queued, ..pending() };
    commit(store, inserting([second.clone(), queued, first.clone()])).await;
    lists(store, Select::RunsPendingApproval, &[first, second]).await;
}

/// A run's attempts in their order, and all that are open.
pub async fn attempts_of_a_run_and_open_attempts(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let (run, other) = (make.run(&instance), make.run(&instance));
    let first = make.closed(&make.attempt(&run, &make.worker()));
    let claimed = Attempt { state: AttemptState::Claimed, number: 2, ..make.attempt(&run, &make.worker()) };
    let lost = Attempt { state: AttemptState::Unresolved, ..make.attempt(&other, &make.worker()) };
    let third = make.run(&instance);
    let offered = make.attempt(&third, &make.worker());
    commit(store, inserting([&offered, &claimed, &lost, &first].map(Clone::clone))).await;
    lists(store, Select::Attempts(run.id), &[first, claimed.clone()]).await;
    lists(store, Select::Attempts(other.id), std::slice::from_ref(&lost)).await;
    lists(store, Select::Attempts(make.id()), NOTHING).await;
    lists(store, Select::OpenAttempts, &[claimed.clone(), lost.clone(), offered.clone()]).await;
    let second_slot =
        Attempt { slot: 2, worker: claimed.worker, ..make.attempt(&make.run(&instance), &make.worker()) };
    commit(store, insert(second_slot.clone())).await;
    lists(store, Select::OpenAttemptsOf(claimed.worker), &[claimed.clone(), second_slot.clone()]).await;
    lists(store, Select::OpenAttemptsOf(make.id()), NOTHING).await;
    commit(store, update(1, make.closed(&claimed))).await;
    lists(store, Select::OpenAttempts, &[lost, offered, second_slot.clone()]).await;
    lists(store, Select::OpenAttemptsOf(claimed.worker), &[second_slot]).await;
}

/// A project's approvals newest first, by status if asked.
pub async fn approvals_of_a_project_newest_first(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let run = make.run(&instance);
    let statuses = [
        ApprovalStatus::Pending,
        ApprovalStatus::Approved,
        ApprovalStatus::Rejected,
        ApprovalStatus::Expired,
        ApprovalStatus::Withdrawn,
    ];
    let mut approvals: Vec<_> = statuses.map(|status| Approval { status, ..make.approval(&run) }).into();
    let foreign = make.approval(&make.run(&make.instance(&make.template(&make.project()))));
    commit(store, inserting(approvals.iter().chain([&foreign]).cloned())).await;
    approvals.reverse();
    lists(store, Select::Approvals { project: run.project, status: None }, &approvals).await;
    for approval in approvals {
        let select = Select::Approvals { project: run.project, status: Some(approval.status) };
        lists(store, select, &[approval]).await;
    }
}

/// A listed record carries its version.
pub async fn listed_records_carry_their_version(store: &dyn Store) {
    let make = Fixtures::new();
    let workers = [0, 1].map(|_| make.worker());
    commit(store, inserting(workers.clone())).await;
    commit(store, update(1, workers[1].clone())).await;
    commit(store, update(2, workers[1].clone())).await;
    let listed = store.list(&Select::Workers, &Page::all()).await.expect("the store answers");
    assert_eq!(listed.iter().map(|it| it.version).collect::<Vec<_>>(), [1, 3]);
}
