//! `forgeplane run`.

use std::process::ExitCode;

use forgeplane_core::evidence::Evidence;
use forgeplane_server::api::{Event, Explanation, NewRun, Page, Reason, Run, RunDetail};

use super::run_view::{details, explain, list, show, what};
use super::{Context, follow, input, label, segment};
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
