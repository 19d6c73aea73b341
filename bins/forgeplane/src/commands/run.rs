//! `forgeplane run`.

use std::process::ExitCode;

use forgeplane_core::evidence::Evidence;
use forgeplane_server::api::{Event, Explanation, NewRun, Page, Reason, Run, RunDetail};

use super::{Context, follow, input, label, more, segment};
use crate::args::RunCommand;
use crate::failure::Failure;
use crate::output;

pub async fn run(context: &Context, command: RunCommand) -> Result<ExitCode, Failure> {
    match command {
        RunCommand::Create {
            instance,
            operation,
            destroy,
            mode,
            inputs,
            timeout,
            priority,
            idempotency_key,
            wait,
        } => {
            let new = NewRun {
                instance,
                operation: label("OPERATION", &operation)?,
                destroy: destroy.then_some(true),
                mode: mode.map(|m| label("--mode", &m)).transpose()?,
                inputs: input::object("--input", &inputs)?,
                execution_timeout_s: timeout,
                priority,
            };
            let run: Run = context.client.post_once("/runs", &new, idempotency_key.as_deref()).await?;
            created(context, &run, wait).await
        }
        RunCommand::List { status, instance, page } => {
            let mut query: Vec<_> = status.map(|s| ("status", s)).into_iter().collect();
            query.extend(instance.map(|i| ("instance", i)));
            let page = context.page::<Run>("/runs", &page, query).await?;
            context.print(&page, list)
        }
        RunCommand::Show { run } => {
            let detail: RunDetail = context.client.get(&format!("/runs/{}", segment(&run)), &[]).await?;
            context.print(&detail, show)
        }
        RunCommand::Wait { run } => follow::wait(context, &segment(&run)).await,
        RunCommand::Logs { run, follow, attempt } => {
            follow::log(context, &segment(&run), follow, attempt).await
        }
        RunCommand::Cancel { run, reason, wait } => {
            let canceled: Run =
                context.client.post(&format!("/runs/{}/cancel", segment(&run)), &Reason { reason }).await?;
            created(context, &canceled, wait).await
        }
        RunCommand::Requeue { run, wait } => {
            let again: Run = context
                .client
                .post(&format!("/runs/{}/requeue", segment(&run)), &serde_json::json!({}))
                .await?;
            created(context, &again, wait).await
        }
        RunCommand::Promote { run, wait } => {
            let apply: Run = context
                .client
                .post(&format!("/runs/{}/promote", segment(&run)), &serde_json::json!({}))
                .await?;
            created(context, &apply, wait).await
        }
        RunCommand::Explain { run } => {
            let why: Explanation =
                context.client.get(&format!("/runs/{}/explain", segment(&run)), &[]).await?;
            context.print(&why, explain)
        }
        RunCommand::Plan { run } => {
            output::raw(&context.client.bytes(&format!("/runs/{}/plan", segment(&run)), &[]).await?)?;
            Ok(ExitCode::SUCCESS)
        }
        RunCommand::Events { run } => {
            let mut all: Page<Event> = Page { items: Vec::new(), next: None };
            let mut query: Vec<(&str, String)> = Vec::new();
            loop {
                let page: Page<Event> =
                    context.client.get(&format!("/runs/{}/events", segment(&run)), &query).await?;
                all.items.extend(page.items);
                match page.next {
                    Some(next) => query = vec![("after", next)],
                    None => break,
                }
            }
            context.print(&all, |page| {
                output::table(
                    ["#", "AT", "EVENT", "BY", "DETAILS"],
                    page.items.iter().map(|e| {
                        [
                            e.run_seq.to_string(),
                            output::time(e.at),
                            e.kind.clone(),
                            e.actor.to_string(),
                            details(&e.data),
                        ]
                    }),
                );
            })
        }
        RunCommand::Evidence { run, file } => {
            let evidence: Evidence =
                context.client.get(&format!("/runs/{}/evidence", segment(&run)), &[]).await?;
            match file {
                None => output::json(&evidence)?,
                Some(path) => {
                    use std::os::unix::fs::OpenOptionsExt as _;
                    let text = serde_json::to_vec_pretty(&evidence)
                        .map_err(|e| Failure::local("output", e.to_string()))?;
                    std::fs::OpenOptions::new()
                        .create(true)
                        .truncate(true)
                        .write(true)
                        .mode(0o600)
                        .open(&path)
                        .and_then(|mut f| std::io::Write::write_all(&mut f, &text))
                        .map_err(|e| Failure::local("io", format!("{}: {e}", path.display())))?;
                    eprintln!(
                        "evidence written to {}; verify it with: forgeplane verify {}",
                        path.display(),
                        path.display()
                    );
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints a run that a command made or moved, or follows it.
async fn created(context: &Context, run: &Run, wait: bool) -> Result<ExitCode, Failure> {
    if wait {
        return follow::wait(context, &run.id.to_string()).await;
    }
    context.print(run, |run| {
        println!("{} {} {}", run.id, what(run), run.status);
    })
}

/// The operation with its mode.
fn what(run: &Run) -> String {
    match (run.mode, run.destroy) {
        (Some(mode), _) => format!("{} ({mode})", run.operation),
        (None, true) => format!("{} (destroy)", run.operation),
        (None, false) => run.operation.to_string(),
    }
}

fn list(page: &Page<Run>) {
    output::table(
        ["RUN", "OPERATION", "STATUS", "CHANGES", "BY", "CREATED"],
        page.items.iter().map(|run| {
            [
                run.id.to_string(),
                what(run),
                run.status.to_string(),
                run.summary.as_ref().map_or_else(|| "-".into(), ToString::to_string),
                run.requested_by.to_string(),
                output::time(run.created_at),
            ]
        }),
    );
    more(page.next.as_ref());
}

/// A run with what belongs to it.
pub fn show(detail: &RunDetail) {
    let RunDetail { run, snapshot, attempts, approval, plan, unresolved } = detail;
    let status = if *unresolved {
        format!("{} (UNRESOLVED: its worker is missing)", run.status)
    } else {
        run.status.to_string()
    };
    output::view([
        ("run", Some(run.id.to_string())),
        ("operation", Some(what(run))),
        ("instance", Some(snapshot.instance_name.to_string())),
        ("status", Some(status)),
        ("error", run.error.as_ref().map(|e| format!("{}: {}", e.code, e.message))),
        ("changes", run.summary.as_ref().map(ToString::to_string)),
        ("requested", Some(format!("{} by {}", output::time(run.created_at), run.requested_by))),
        ("started", run.started_at.map(output::time)),
        ("finished", run.finished_at.map(output::time)),
        ("base state", run.state_object.map(|_| format!("generation {}", snapshot.base_generation))),
        ("inputs", serde_json::to_string(&snapshot.inputs).ok().filter(|i| i != "{}")),
        ("applies plan", run.plan.as_ref().map(|p| format!("{} ({})", p.run, p.digest))),
        ("plan", plan.as_ref().map(|p| format!("{} (see `forgeplane run plan {}`)", p.plan, run.id))),
        ("promoted to", run.promoted_to.map(|r| r.to_string())),
        (
            "stop",
            run.stop.as_ref().map(|s| {
                format!(
                    "{} by {}{}",
                    s.cause,
                    s.by,
                    s.reason.as_ref().map_or_else(String::new, |r| format!(": {r}"))
                )
            }),
        ),
        ("approval", approval.as_ref().map(|a| format!("{} {}", a.id, a.status))),
    ]);
    for review in approval.iter().flat_map(|a| &a.reviews) {
        let reason = review.reason.as_ref().map_or_else(String::new, |r| format!(": {r}"));
        output::view([("review", Some(format!("{} by {}{reason}", review.verdict, review.reviewer)))]);
    }
    if !attempts.is_empty() {
        output::table(
            ["ATTEMPT", "FENCE", "STATE", "WORKER", "OFFERED", "CLAIMED", "CLOSED"],
            attempts.iter().map(|a| {
                [
                    a.number.to_string(),
                    a.fence.to_string(),
                    a.state.to_string(),
                    a.worker.to_string(),
                    output::time(a.offered_at),
                    output::time_or_dash(a.claimed_at),
                    output::time_or_dash(a.closed_at),
                ]
            }),
        );
    }
}

fn explain(why: &Explanation) {
    println!("run {} is {}", why.run.id, why.run.status);
    if let Some(waiting) = &why.waiting {
        println!("because: {} [{}]", waiting.detail, waiting.code);
    }
    if let Some(since) = why.unresolved_since {
        println!(
            "its worker is missing since {}: the outcome is not known, and it is not executed again",
            output::time(since)
        );
    }
    if let Some(error) = &why.run.error {
        println!("{}: {}", error.code, output::neutral(&error.message, false));
    }
    for command in &why.allowed {
        let typed = match (command.as_str(), why.run.approval) {
            ("approve" | "reject", Some(approval)) => format!("forgeplane approval {command} {approval}"),
            ("cancel" | "requeue" | "promote", _) => format!("forgeplane run {command} {}", why.run.id),
            _ => continue,
        };
        println!("possible: {typed}");
    }
}

/// The details of an event in one line; absent ones left out.
fn details(data: &forgeplane_core::model::Object) -> String {
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    data.iter()
        .filter(|(_, v)| !v.is_null())
        .map(|(k, v)| format!("{k}={}", text(v)))
        .collect::<Vec<_>>()
        .join(" ")
}
