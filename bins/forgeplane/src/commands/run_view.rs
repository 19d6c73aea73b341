//! How runs are shown.

use forgeplane_server::api::{Explanation, Page, Run, RunDetail};

use super::more;
use crate::output;

/// The operation with its mode.
pub fn what(run: &Run) -> String {
    match (run.mode, run.destroy) {
        (Some(mode), _) => format!("{} ({mode})", run.operation),
        (None, true) => format!("{} (destroy)", run.operation),
        (None, false) => run.operation.to_string(),
    }
}

pub fn list(page: &Page<Run>) {
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

pub fn explain(why: &Explanation) {
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
            ("resolve", _) => match why.run.current_attempt {
                Some(attempt) => format!("forgeplane attempt show {attempt}, then `attempt resolve`"),
                None => continue,
            },
            ("cancel" | "requeue" | "promote", _) => format!("forgeplane run {command} {}", why.run.id),
            _ => continue,
        };
        println!("possible: {typed}");
    }
}

/// The details of an event in one line; absent ones left out.
pub fn details(data: &forgeplane_core::model::Object) -> String {
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    data.iter()
        .filter(|(_, v)| !v.is_null())
        .map(|(k, v)| format!("{k}={}", text(v)))
        .collect::<Vec<_>>()
        .join(" ")
}
