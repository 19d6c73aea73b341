//! What a registration may say about a worker.

use forgeplane_core::Code;
use forgeplane_core::model::Tool;

use crate::support::*;

/// D14: what a worker reports is shown to people, in terminals too.
#[tokio::test]
async fn d14_a_tool_version_that_is_not_a_short_line_of_text_is_refused() {
    let world = World::new().await;
    let control = world.coordinator.in_process();
    let token = Some(world.enrollment("default").await);
    let with = |version: &str| Introduction {
        token: token.clone(),
        capabilities: [("terraform".to_owned(), version.to_owned())].into(),
        ..Introduction::of("w1", 1)
    };
    for junk in ["1.11.4\n", "\u{1b}[2J", "1.0\0", "\u{202e}4.11.1", &"1".repeat(129)] {
        assert_eq!(code(with(junk).register(&control).await), Code::InvalidField, "{junk:?}");
    }
    for fine in ["", "1.11.4", "core 2.19.0", "1.10.0-beta1+ent", &"1".repeat(128)] {
        with(fine).register(&control).await.unwrap();
        let workers = world.coordinator.workers(&world.root).await.unwrap();
        assert_eq!((workers.len(), workers[0].worker.capabilities[&Tool::Terraform].as_str()), (1, fine));
    }
}

/// D12, I15: of sessions of one worker only the newest opens anything, whichever order they are used in.
#[tokio::test]
async fn d12_many_registrations_at_once_leave_one_session_alive() {
    use forgeplane_core::ports::{ControlPlane as _, Heartbeat};
    let world = World::new().await;
    let worker = world.worker("w1").await;
    let who = worker.introduction();
    world.store.jitter.store(true, std::sync::atomic::Ordering::Relaxed);
    let registered = futures_util::future::join_all((0..8).map(|_| who.register(&worker.control))).await;
    let sessions: Vec<_> = registered.into_iter().map(|r| r.unwrap().session).collect();
    let newest = sessions.iter().map(|s| s.incarnation).max().unwrap();
    for session in sessions.iter().chain([&worker.session]) {
        let answer = worker.control.heartbeat(session, Heartbeat::default()).await;
        if session.incarnation == newest {
            answer.unwrap();
        } else {
            assert_eq!(code(answer), Code::Unauthenticated);
        }
    }
    let mut incarnations: Vec<_> = sessions.iter().map(|s| s.incarnation).collect();
    incarnations.sort_unstable();
    assert_eq!(incarnations, (2..=9).collect::<Vec<_>>());
}
