//! Server-sent events: a follower reads the store at its client's pace, so a slow client holds up nobody.
//!
//! A follower subscribes to the coordinator's wake-ups *before* it reads, so nothing committed in between
//! is missed; and reads again every few seconds anyway, for what other coordinators committed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use forgeplane_core::coordinator::Listener;
use forgeplane_core::id::RunId;
use futures_util::stream::{Stream, unfold};
use serde::Serialize;
use tokio::time::Instant;

use crate::App;
use crate::api::{Attempt, Event, LogEnd, LogFrame};
use crate::auth::Who;
use crate::error::ApiError;

/// How often a follower reads without having been woken, and checks its token.
const REPAIR: Duration = Duration::from_secs(5);
/// How often an idle stream shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How much log a follower reads at a time, bytes.
const LOG_BATCH: usize = 256 << 10;
/// How many events a follower reads at a time.
const EVENT_BATCH: usize = 200;

/// What every follower has.
pub(crate) struct Follower {
    pub(crate) app: App,
    pub(crate) who: Who,
    /// Of the request that opened the stream, for a problem that ends it.
    pub(crate) request_id: String,
    events: Listener,
    logs: Listener,
    checked: Instant,
    ready: VecDeque<SseEvent>,
    done: bool,
}

/// What one read found.
enum Found {
    /// Something to send, or more to read at once.
    Something,
    /// Nothing yet.
    Nothing,
}

impl Follower {
    pub(crate) fn new(app: App, who: Who, request_id: String) -> Self {
        let signals = app.coordinator.signals();
        let (events, logs) = (signals.events(), signals.logs());
        Self {
            app,
            who,
            request_id,
            events,
            logs,
            checked: Instant::now(),
            ready: VecDeque::new(),
            done: false,
        }
    }

    fn send<T: Serialize>(&mut self, name: &str, id: Option<u64>, data: &T) {
        let mut event = SseEvent::default().event(name);
        if let Some(id) = id {
            event = event.id(id.to_string());
        }
        match event.json_data(data) {
            Ok(event) => self.ready.push_back(event),
            Err(error) => {
                // Our own types always serialize; ending is better than a gap.
                tracing::error!(%error, "an event cannot be written");
                self.done = true;
            }
        }
    }

    /// Ends the stream with the problem that ends it.
    fn fail(&mut self, error: &ApiError) {
        error.log();
        let problem = error.problem(&self.request_id);
        self.send("problem", None, &problem);
        self.done = true;
    }

    /// A token that was revoked or expired ends its streams too.
    async fn check_token(&mut self) -> Result<(), ApiError> {
        if self.checked.elapsed() < REPAIR {
            return Ok(());
        }
        self.checked = Instant::now();
        match self.who.recheck(&self.app).await {
            Err(error) if error.is_retryable() => Ok(()),
            other => other,
        }
    }

    async fn pause(&mut self, for_logs: bool) {
        let logs = async {
            if for_logs {
                self.logs.changed().await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.events.changed() => {}
            () = logs => {}
            () = tokio::time::sleep(REPAIR) => {}
            () = self.app.shutdown.cancelled() => {}
        }
    }
}

/// Something that is read again and again.
trait Source: Send + 'static {
    const WAKES_ON_LOGS: bool;

    fn follower(&mut self) -> &mut Follower;

    /// Reads on from where it was and sends what is new.
    fn read(&mut self) -> impl Future<Output = Result<Found, ApiError>> + Send;
}

async fn next_event<S: Source>(mut source: S) -> Option<(Result<SseEvent, Infallible>, S)> {
    loop {
        let follower = source.follower();
        if let Some(event) = follower.ready.pop_front() {
            return Some((Ok(event), source));
        }
        if follower.done || follower.app.shutdown.is_cancelled() {
            return None;
        }
        if let Err(error) = follower.check_token().await {
            follower.fail(&error);
            continue;
        }
        follower.events.mark_unchanged();
        follower.logs.mark_unchanged();
        match source.read().await {
            Ok(Found::Something) => {}
            Ok(Found::Nothing) => source.follower().pause(S::WAKES_ON_LOGS).await,
            Err(error) if error.is_retryable() => {
                error.log();
                source.follower().pause(S::WAKES_ON_LOGS).await;
            }
            Err(error) => source.follower().fail(&error),
        }
    }
}

fn stream<S: Source>(source: S) -> Sse<impl Stream<Item = Result<SseEvent, Infallible>>> {
    Sse::new(unfold(source, next_event)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive"))
}

struct LogSource {
    follower: Follower,
    run: RunId,
    attempt: Option<u32>,
    from: u64,
}

/// Follows the log of a run's newest (or a numbered) attempt from byte `from` to its end.
pub(crate) fn logs(
    follower: Follower,
    run: RunId,
    attempt: Option<u32>,
    from: u64,
) -> Sse<impl Stream<Item = Result<SseEvent, Infallible>>> {
    stream(LogSource { follower, run, attempt, from })
}

impl Source for LogSource {
    const WAKES_ON_LOGS: bool = true;

    fn follower(&mut self) -> &mut Follower {
        &mut self.follower
    }

    async fn read(&mut self) -> Result<Found, ApiError> {
        let (app, who) = (&self.follower.app, &self.follower.who);
        let slice = app.coordinator.log(&who.caller, self.run, self.attempt, self.from, LOG_BATCH).await?;
        if let Some(attempt) = &slice.attempt {
            if attempt.claim.is_none() && self.attempt.is_none() {
                // An attempt that was never claimed has no log; the run's next attempt may have one.
                let waits = !slice.complete || !self.run_is_over().await?;
                if waits {
                    return Ok(Found::Nothing);
                }
            }
            // From here on it is this attempt: offsets of another one mean something else.
            self.attempt = Some(attempt.number);
        }
        let number = self.attempt.unwrap_or_default();
        for chunk in &slice.chunks {
            if let Some(frame) = LogFrame::from_chunk(chunk, number, self.from) {
                self.follower.send("log", Some(frame.end), &frame);
            }
        }
        let moved = slice.next > self.from;
        self.from = self.from.max(slice.next);
        if slice.complete {
            let end = LogEnd { attempt: slice.attempt.map(Attempt::from), next: self.from };
            self.follower.send("end", None, &end);
            self.follower.done = true;
            return Ok(Found::Something);
        }
        Ok(if moved { Found::Something } else { Found::Nothing })
    }
}

impl LogSource {
    async fn run_is_over(&self) -> Result<bool, ApiError> {
        let view = self.follower.app.coordinator.run(&self.follower.who.caller, self.run).await?;
        Ok(view.run.status.is_terminal())
    }
}

struct EventSource {
    follower: Follower,
    after: u64,
}

/// Follows the events of the caller's project after sequence number `after`, for as long as the client
/// stays.
pub(crate) fn events(
    follower: Follower,
    after: u64,
) -> Sse<impl Stream<Item = Result<SseEvent, Infallible>>> {
    stream(EventSource { follower, after })
}

impl Source for EventSource {
    const WAKES_ON_LOGS: bool = false;

    fn follower(&mut self) -> &mut Follower {
        &mut self.follower
    }

    async fn read(&mut self) -> Result<Found, ApiError> {
        let (app, who) = (&self.follower.app, &self.follower.who);
        let found = app.coordinator.events(&who.caller, None, self.after, EVENT_BATCH).await?;
        let Some(last) = found.last() else { return Ok(Found::Nothing) };
        self.after = last.seq;
        for event in found {
            self.follower.send("event", Some(event.seq), &Event::from(event));
        }
        Ok(Found::Something)
    }
}
