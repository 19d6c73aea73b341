//! `forgeplane attempt`.

use std::path::Path;
use std::process::ExitCode;

use forgeplane_core::evidence::Envelope;
use forgeplane_server::api::{Attempt, AttemptDetail, Page, Resolve, SubmittedOutcome};
use serde_json::Value;

use super::{Context, label, segment};
use crate::args::AttemptCommand;
use crate::failure::Failure;
use crate::output;

pub async fn run(context: &Context, command: AttemptCommand) -> Result<ExitCode, Failure> {
    match command {
        AttemptCommand::List { unresolved } => {
            let query = [("unresolved", unresolved.to_string())];
            let page: Page<Attempt> = context.client.get("/attempts", &query).await?;
            context.print(&page, list)
        }
        AttemptCommand::Show { attempt } => {
            let detail: AttemptDetail = context.client.get(&path(&attempt, ""), &[]).await?;
            context.print(&detail, show)
        }
        AttemptCommand::Resolve { attempt, outcome, reason, asserted, generation } => {
            let resolve = Resolve { outcome: label("--outcome", &outcome)?, reason, asserted, generation };
            let detail: AttemptDetail = context.client.post(&path(&attempt, "/resolve"), &resolve).await?;
            context.print(&detail, show)
        }
        AttemptCommand::Confirm { attempt } => {
            let nothing = serde_json::json!({});
            let detail: AttemptDetail = context.client.post(&path(&attempt, "/confirm"), &nothing).await?;
            context.print(&detail, show)
        }
        AttemptCommand::Submit { attempt, file } => {
            let envelope = read(&file)?;
            let submitted: SubmittedOutcome =
                context.client.post(&path(&attempt, "/outcome"), &envelope).await?;
            context.print(&submitted, |it| {
                let what =
                    if it.applied { "it ends the attempt" } else { "kept as evidence; it changes nothing" };
                println!("{} {}: {what}", it.attempt, it.envelope);
            })
        }
    }
}

fn path(attempt: &str, verb: &str) -> String {
    format!("/attempts/{}{verb}", segment(attempt))
}

/// An envelope, from a file of its own or from a worker's journal.
fn read(file: &Path) -> Result<Envelope, Failure> {
    let unreadable = |e: String| Failure::local("outcome_unreadable", format!("{}: {e}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|e| unreadable(e.to_string()))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| unreadable(e.to_string()))?;
    let envelope = value.get("envelope").and_then(Value::as_str).unwrap_or(&text);
    Envelope::from_json(envelope).map_err(|e| {
        unreadable(e.to_string()).way_out("give an outcome's envelope, or a journal entry that is signed")
    })
}

fn list(page: &Page<Attempt>) {
    output::table(
        ["ATTEMPT", "RUN", "STATE", "FENCE", "WORKER", "CLAIMED", "MISSING SINCE"],
        page.items.iter().map(|a| {
            [
                a.id.to_string(),
                a.run.to_string(),
                a.state.to_string(),
                a.fence.to_string(),
                a.worker.to_string(),
                output::time_or_dash(a.claimed_at),
                output::time_or_dash(a.unresolved_since),
            ]
        }),
    );
}

fn show(detail: &AttemptDetail) {
    let attempt = &detail.attempt;
    let asserted = |asserted: &[String]| {
        if asserted.is_empty() { String::new() } else { format!(" (asserts: {})", asserted.join("; ")) }
    };
    let at_generation = |g: Option<u64>| g.map_or_else(String::new, |g| format!(", state generation {g}"));
    output::view([
        ("attempt", Some(attempt.id.to_string())),
        (
            "run",
            Some(format!("{} ({}, {})", attempt.run, super::run_view::what(&detail.run), detail.run.status)),
        ),
        ("state", Some(attempt.state.to_string())),
        ("fence", Some(attempt.fence.to_string())),
        ("worker", Some(format!("{} {} ({})", attempt.worker, detail.worker_name, detail.worker_status))),
        ("claimed", attempt.claimed_at.map(output::time)),
        ("missing since", attempt.unresolved_since.map(output::time)),
        ("worker last heard of", detail.last_contact.map(output::time)),
        ("claim last named", detail.last_named.map(output::time)),
        ("deadline", attempt.deadline.map(output::time)),
        ("log", Some(format!("{} bytes", detail.log_bytes))),
        (
            "state written",
            Some(
                detail
                    .generations
                    .iter()
                    .map(|g| format!("generation {} ({} resources)", g.generation, g.resources))
                    .collect::<Vec<_>>()
                    .join(", "),
            )
            .filter(|text| !text.is_empty()),
        ),
        (
            "proposed",
            attempt.proposal.as_ref().map(|p| {
                format!(
                    "succeeded, by {}{}: {}{}",
                    p.by,
                    at_generation(p.generation),
                    p.reason,
                    asserted(&p.asserted)
                )
            }),
        ),
        (
            "decided",
            detail.decision.as_ref().map(|d| {
                let second = d.confirmed_by.as_ref().map_or_else(String::new, |by| format!(" and {by}"));
                format!(
                    "{} by {}{second}{}: {}{}",
                    d.outcome,
                    d.by,
                    at_generation(d.generation),
                    d.reason,
                    asserted(&d.asserted)
                )
            }),
        ),
        (
            "receipt",
            detail.receipt.as_ref().map(|r| format!("{} {} ({})", r.outcome, r.envelope, output::time(r.at))),
        ),
    ]);
    for late in &detail.late {
        let what = format!("{}, {} at {}: {}", late.outcome, late.why, output::time(late.at), late.envelope);
        output::view([("late statement", Some(what))]);
    }
}
