//! `forgeplane verify`: offline, with a file and nothing else.

use std::path::Path;
use std::process::ExitCode;

use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::{Evidence, VerifiedEvidence};
use forgeplane_core::model::Verdict;
use serde_json::json;

use super::label;
use crate::args::{Format, Global};
use crate::failure::Failure;
use crate::output;

pub fn run(
    global: &Global,
    file: &Path,
    coordinator_key: Option<&str>,
    worker_key: Option<&str>,
) -> Result<ExitCode, Failure> {
    let unreadable = |e: String| Failure::local("evidence_unreadable", format!("{}: {e}", file.display()));
    let text = std::fs::read(file).map_err(|e| unreadable(e.to_string()))?;
    let evidence: Evidence = serde_json::from_slice(&text).map_err(|e| unreadable(e.to_string()))?;
    let verified = evidence.verify().map_err(|e| {
        Failure::refused("evidence_invalid", format!("the evidence does not hold: {e}"), None)
    })?;
    trusted("coordinator", coordinator_key, verified.coordinator_key)?;
    trusted("worker", worker_key, verified.worker_key)?;
    match global.output {
        Format::Json => output::json(&json!({
            "verified": true,
            "outcome": verified.outcome,
            "worker_key": verified.worker_key,
            "coordinator_key": verified.coordinator_key,
            "approval": evidence.approval,
        }))?,
        Format::Table => show(&evidence, &verified),
    }
    Ok(ExitCode::SUCCESS)
}

fn trusted(whose: &str, expected: Option<&str>, found: Digest) -> Result<(), Failure> {
    let Some(text) = expected else { return Ok(()) };
    let expected: Digest = label(&format!("--{whose}-key"), text)?;
    if expected == found {
        return Ok(());
    }
    Err(Failure::refused(
        "evidence_invalid",
        format!("the {whose} key is {found}, not the trusted {expected}"),
        None,
    ))
}

fn show(evidence: &Evidence, verified: &VerifiedEvidence) {
    let outcome = &verified.outcome;
    println!("verified: both signatures hold, and every part speaks of the same execution");
    let approval = evidence.approval.as_ref().map(|approval| {
        let by: Vec<_> = approval
            .reviews
            .iter()
            .filter(|r| r.verdict == Verdict::Approve)
            .map(|r| r.reviewer.to_string())
            .collect();
        format!("{} by {} (asked for by {})", approval.status.as_str(), by.join(", "), approval.requester)
    });
    output::view([
        ("run", Some(outcome.run.to_string())),
        (
            "attempt",
            Some(format!("{} (number {}, fence {})", outcome.attempt, outcome.number, outcome.fence)),
        ),
        ("operation", Some(verified.snapshot.operation.to_string())),
        ("outcome", Some(outcome.outcome.as_str().to_owned())),
        ("changes", outcome.summary.map(|s| s.to_string())),
        ("plan digest", outcome.plan.map(|d| d.to_string())),
        ("state", outcome.generation.map(|g| format!("generation {g}"))),
        ("tool", outcome.tool.as_ref().map(|t| format!("{} {} ({})", t.tool, t.version, t.digest))),
        ("log", Some(format!("{} bytes, {}", outcome.log_bytes, outcome.log))),
        ("approval", approval),
        ("worker key", Some(verified.worker_key.to_string())),
        ("coordinator key", Some(verified.coordinator_key.to_string())),
    ]);
}
