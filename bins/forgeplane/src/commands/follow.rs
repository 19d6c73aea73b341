//! Following a run to its end, and its log.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forgeplane_server::api::{Event, LogFrame, LogSlice, LogStream, Page, RunDetail, RunStatus};

use super::Context;
use super::run_view::show;
use crate::args::Format;
use crate::failure::{Failure, RUN_FAILED};
use crate::output;

/// How long a lost event stream may hide a change.
const REPAIR: Duration = Duration::from_secs(5);

/// Follows a run until it is terminal; status changes go to standard error. Ctrl-C only stops watching.
pub async fn wait(context: &Context, run: &str) -> Result<ExitCode, Failure> {
    let path = format!("/runs/{run}");
    let watching = async {
        let (mut told, mut seen) = (None, 0);
        loop {
            // Before the run is read: whatever happens after that ends the wait below.
            seen = newest_event(context, &path, seen).await?;
            let detail: RunDetail = context.client.get(&path, &[]).await?;
            let status = detail.run.status;
            if told != Some(status) {
                tell(&detail);
                told = Some(status);
            }
            if is_terminal(status) {
                return Ok::<_, Failure>(detail);
            }
            let query = [("after", seen.to_string())];
            let news = context.client.follow("/events/stream", &query, |_, data| {
                Ok(parse::<Event>(data)?.run == Some(detail.run.id))
            });
            // The repair only covers a stream that is lost.
            let _ = tokio::time::timeout(REPAIR, news).await;
        }
    };
    let detail = tokio::select! {
        detail = watching => detail?,
        _ = tokio::signal::ctrl_c() => {
            eprintln!("no longer watching; the run goes on. To stop it: forgeplane run cancel {run}");
            return Ok(ExitCode::from(130));
        }
    };
    let succeeded = detail.run.status == RunStatus::Succeeded;
    match context.format {
        Format::Json => output::json(&detail)?,
        Format::Table => show(&detail),
    }
    Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::from(RUN_FAILED) })
}

/// The sequence number of the run's newest event: where to follow from.
async fn newest_event(context: &Context, path: &str, mut seen: u64) -> Result<u64, Failure> {
    loop {
        let page: Page<Event> =
            context.client.get(&format!("{path}/events"), &[("after", seen.to_string())]).await?;
        seen = page.items.last().map_or(seen, |e| e.seq);
        if page.next.is_none() {
            return Ok(seen);
        }
    }
}

fn tell(detail: &RunDetail) {
    let run = &detail.run;
    match (run.status, &detail.approval) {
        (RunStatus::PendingApproval, Some(approval)) => {
            eprintln!("{}: pending_approval: waits for: forgeplane approval approve {}", run.id, approval.id);
        }
        (status, _) => eprintln!("{}: {status}", run.id),
    }
}

const fn is_terminal(status: RunStatus) -> bool {
    matches!(status, RunStatus::Succeeded | RunStatus::Failed | RunStatus::Canceled | RunStatus::TimedOut)
}

fn parse<T: serde::de::DeserializeOwned>(data: &str) -> Result<T, Failure> {
    serde_json::from_str(data)
        .map_err(|e| Failure::not_reachable("answer_unreadable", format!("an event cannot be read: {e}")))
}

/// Prints the log of a run.
pub async fn log(
    context: &Context,
    run: &str,
    follow: bool,
    attempt: Option<u32>,
) -> Result<ExitCode, Failure> {
    let mut query: Vec<(&str, String)> = attempt.map(|a| ("attempt", a.to_string())).into_iter().collect();
    if follow {
        let mut problem = None;
        context
            .client
            .follow(&format!("/runs/{run}/log/stream"), &query, |event, data| match event {
                "log" => {
                    print(context, &parse(data)?)?;
                    Ok(false)
                }
                "problem" => {
                    problem = Some(data.to_owned());
                    Ok(true)
                }
                other => Ok(other == "end"),
            })
            .await?;
        return match problem {
            None => Ok(ExitCode::SUCCESS),
            Some(problem) => {
                Err(Failure::not_reachable("stream_ended", format!("the log stream ended: {problem}")))
            }
        };
    }
    query.push(("from", "0".into()));
    loop {
        let slice: LogSlice = context.client.get(&format!("/runs/{run}/log"), &query).await?;
        for frame in &slice.frames {
            print(context, frame)?;
        }
        if slice.frames.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        query.pop();
        query.push(("from", slice.next.to_string()));
    }
}

fn print(context: &Context, frame: &LogFrame) -> Result<(), Failure> {
    if context.format == Format::Json {
        let line = serde_json::to_string(frame).map_err(|e| Failure::local("output", e.to_string()))?;
        println!("{line}");
        return Ok(());
    }
    let bytes = STANDARD.decode(&frame.base64).unwrap_or_else(|_| frame.text.clone().into_bytes());
    if frame.stream == LogStream::Worker && std::io::stdout().is_terminal() {
        return output::raw(&[b"\x1b[2m", bytes.as_slice(), b"\x1b[0m"].concat());
    }
    output::raw(&bytes)
}
