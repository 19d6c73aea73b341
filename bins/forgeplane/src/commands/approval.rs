//! `forgeplane approval`.

use std::process::ExitCode;

use forgeplane_server::api::{Approval, Reason};

use super::{Context, more, segment};
use crate::args::ApprovalCommand;
use crate::failure::Failure;
use crate::output;

pub async fn run(context: &Context, command: ApprovalCommand) -> Result<ExitCode, Failure> {
    match command {
        ApprovalCommand::List { status, page } => {
            let query = status.map(|s| ("status", s)).into_iter().collect();
            let page = context.page::<Approval>("/approvals", &page, query).await?;
            context.print(&page, |page| {
                output::table(
                    ["APPROVAL", "STATUS", "RUN", "REQUESTED BY", "REVIEWED BY", "CREATED"],
                    page.items.iter().map(|a| {
                        let reviewers: Vec<_> = a.reviews.iter().map(|r| r.reviewer.to_string()).collect();
                        [
                            a.id.to_string(),
                            a.status.to_string(),
                            a.run.to_string(),
                            a.requester.to_string(),
                            if reviewers.is_empty() { "-".into() } else { reviewers.join(", ") },
                            output::time(a.created_at),
                        ]
                    }),
                );
                more(page.next.as_ref());
            })
        }
        ApprovalCommand::Show { approval } => {
            let approval: Approval =
                context.client.get(&format!("/approvals/{}", segment(&approval)), &[]).await?;
            context.print(&approval, show)
        }
        ApprovalCommand::Approve { approval, reason } => decide(context, &approval, "approve", reason).await,
        ApprovalCommand::Reject { approval, reason } => decide(context, &approval, "reject", reason).await,
    }
}

async fn decide(
    context: &Context,
    approval: &str,
    verdict: &str,
    reason: Option<String>,
) -> Result<ExitCode, Failure> {
    let path = format!("/approvals/{}/{verdict}", segment(approval));
    let approval: Approval = context.client.post(&path, &Reason { reason }).await?;
    context.print(&approval, show)
}

fn show(approval: &Approval) {
    output::view([
        ("approval", Some(approval.id.to_string())),
        ("status", Some(approval.status.to_string())),
        ("run", Some(approval.run.to_string())),
        ("plan", approval.source_plan.map(|r| r.to_string())),
        ("plan digest", approval.plan_digest.map(|d| d.to_string())),
        ("base state", Some(format!("generation {}", approval.base_generation))),
        ("snapshot", Some(approval.snapshot.to_string())),
        ("requested", Some(format!("{} by {}", output::time(approval.created_at), approval.requester))),
        ("required", Some(approval.policy.required.to_string())),
        ("expires", approval.expires_at.map(output::time)),
        ("closed", approval.closed_at.map(output::time)),
    ]);
    for review in &approval.reviews {
        let reason = review.reason.as_ref().map_or_else(String::new, |r| format!(": {r}"));
        output::view([(
            "review",
            Some(format!("{} by {} {}{reason}", review.verdict, review.reviewer, output::time(review.at))),
        )]);
    }
}
