//! The outbox: jobs that wait for publication, in the order of their ids, until somebody says it happened.

use forgeplane_core::id::{OutboxId, WorkerId};
use forgeplane_core::model::*;
use forgeplane_core::ports::Store;

use super::*;
use crate::fixtures::Fixtures;

fn waiting(make: &Fixtures) -> OutboxMessage {
    let run = make.run(&make.instance(&make.template(&make.project())));
    make.outbox(&make.attempt(&run, &make.worker()))
}

fn queueing(outbox: Vec<OutboxMessage>) -> Changeset {
    Changeset { outbox, ..Changeset::default() }
}

fn publishing(published: Vec<OutboxId>) -> Changeset {
    Changeset { published, ..Changeset::default() }
}

/// Messages are read oldest first, whatever the order they were written in, as many as asked for.
pub async fn messages_are_read_oldest_first(store: &dyn Store) {
    let make = Fixtures::new();
    let messages: Vec<_> = (0..5).map(|_| waiting(&make)).collect();
    let mut shuffled = messages.clone();
    shuffled.swap(0, 3);
    shuffled.swap(1, 4);
    commit_batch(store, shuffled.into_iter().map(|it| queueing(vec![it])).collect()).await;
    assert_eq!(all_outbox(store).await, messages);
    for limit in 0..=6 {
        let read = store.outbox(limit).await.expect("the store answers");
        assert_eq!(read, messages[..limit.min(5)], "{limit}");
    }
}

/// A worker's messages are read apart from those of others, in the same order.
pub async fn a_workers_messages_are_read_apart(store: &dyn Store) {
    let make = Fixtures::new();
    let (mine, others) = (waiting(&make), waiting(&make));
    let to = |worker: WorkerId| {
        let message = waiting(&make);
        OutboxMessage { job: Job { worker, ..message.job }, ..message }
    };
    let (second, third) = (to(mine.job.worker), to(mine.job.worker));
    commit(store, queueing(vec![third.clone(), others.clone(), mine.clone(), second.clone()])).await;
    let read = async |worker, limit| store.outbox_of(worker, limit).await.expect("the store answers");
    assert_eq!(read(mine.job.worker, 2).await, [mine.clone(), second.clone()]);
    assert_eq!(read(mine.job.worker, usize::MAX).await, [mine.clone(), second.clone(), third.clone()]);
    assert_eq!(read(others.job.worker, 9).await, [others]);
    assert_eq!(read(make.id(), 9).await, []);
    commit(store, publishing(vec![mine.id])).await;
    assert_eq!(read(mine.job.worker, 9).await, [second, third]);
}

/// Reading a message does not remove it; saying that it was published does, and nothing else goes with it.
pub async fn a_published_message_is_removed(store: &dyn Store) {
    let make = Fixtures::new();
    let messages: Vec<_> = (0..4).map(|_| waiting(&make)).collect();
    commit(store, queueing(messages.clone())).await;
    assert_eq!(all_outbox(store).await, messages);
    commit(store, publishing(vec![messages[1].id])).await;
    commit(store, publishing(vec![messages[2].id, messages[0].id])).await;
    assert_eq!(all_outbox(store).await, messages[3..]);
}

/// Two publishers may both say that a message was published.
pub async fn removing_twice_is_no_error(store: &dyn Store) {
    let make = Fixtures::new();
    let (message, other) = (waiting(&make), waiting(&make));
    commit(store, queueing(vec![message.clone(), other.clone()])).await;
    commit(store, publishing(vec![message.id])).await;
    commit(store, publishing(vec![message.id])).await;
    commit(store, publishing(vec![message.id, message.id, make.id()])).await;
    assert_eq!(all_outbox(store).await, [other]);
}

/// A removal of a changeset that conflicts did not happen.
pub async fn a_removal_is_part_of_its_changeset(store: &dyn Store) {
    let make = Fixtures::new();
    let message = waiting(&make);
    commit(store, queueing(vec![message.clone()])).await;
    let (project, absent) = (make.project(), make.project());
    let mut changes = publishing(vec![message.id]);
    changes.insert(project.clone()).update(1, absent.clone());
    refused_version(store, changes, Record::from(absent).key()).await;
    assert_eq!(all_outbox(store).await, [message]);
    is_absent(store, project).await;
}
