//! `forgeplane worker`.

use std::process::ExitCode;

use forgeplane_server::api::{AcceptLoss, CreatedEnrollment, NewEnrollment, Page, Worker, WorkerDetail};
use secrecy::ExposeSecret as _;

use super::{Context, label, segment};
use crate::args::WorkerCommand;
use crate::failure::Failure;
use crate::output;

pub async fn run(context: &Context, command: WorkerCommand) -> Result<ExitCode, Failure> {
    let (worker, verb) = match &command {
        WorkerCommand::List => return list(context).await,
        WorkerCommand::Enroll { pool, expires } => return enroll(context, pool, *expires).await,
        WorkerCommand::AcceptLoss { worker, reason } => return accept_loss(context, worker, reason).await,
        WorkerCommand::Drain { worker } => (worker, "drain"),
        WorkerCommand::Reactivate { worker } => (worker, "reactivate"),
        WorkerCommand::RotateKey { worker } => (worker, "rotate-key"),
        WorkerCommand::Disconnect { worker, compromised: false } => (worker, "disconnect"),
        WorkerCommand::Disconnect { worker, compromised: true } => (worker, "distrust"),
    };
    let worker: Worker =
        context.client.post(&format!("/workers/{}/{verb}", segment(worker)), &serde_json::json!({})).await?;
    context.print(&worker, |worker| println!("{} {}: {verb}", worker.id, worker.name))
}

async fn accept_loss(context: &Context, worker: &str, reason: &str) -> Result<ExitCode, Failure> {
    let accept = AcceptLoss { reason: reason.to_owned() };
    let worker: Worker =
        context.client.post(&format!("/workers/{}/accept-loss", segment(worker)), &accept).await?;
    context.print(&worker, |worker| println!("{} {}: the loss is accepted", worker.id, worker.name))
}

async fn enroll(context: &Context, pool: &str, expires: Option<u64>) -> Result<ExitCode, Failure> {
    let new = NewEnrollment { pool: label("--pool", pool)?, expires_in_s: expires };
    let created: CreatedEnrollment = context.client.post("/workers/enrollments", &new).await?;
    context.print(&created, |created| {
        eprintln!(
            "enrollment token for one worker of pool {}, until {}; it is shown only this once:",
            created.pool,
            output::time(created.expires_at)
        );
        println!("{}", created.token.secret().expose_secret());
    })
}

async fn list(context: &Context) -> Result<ExitCode, Failure> {
    let page: Page<WorkerDetail> = context.client.get("/workers", &[]).await?;
    context.print(&page, |page| {
        output::table(
            ["NAME", "POOL", "STATUS", "TOOLS", "JOBS", "LAST SEEN", "ID"],
            page.items.iter().map(|w| {
                let tools: Vec<_> =
                    w.worker.capabilities.iter().map(|(tool, version)| format!("{tool} {version}")).collect();
                let mut status = w.status.to_string();
                if let Some(reason) = &w.worker.quarantined {
                    status = format!("{status} (quarantined: {reason})");
                }
                if let Some(what) = &w.short_of {
                    status = format!("{status} (short of {what})");
                }
                if let Some(fence) = w.worker.lost_fence {
                    status = format!("{status} (COMMITS LOST: fence {fence})");
                }
                if w.worker.unsafe_no_isolation {
                    status.push_str(" UNSAFE");
                }
                [
                    w.worker.name.to_string(),
                    w.worker.pool.to_string(),
                    status,
                    if tools.is_empty() { "[]".into() } else { tools.join(", ") },
                    format!("{}/{}", w.attempts.len(), w.capacity),
                    output::time_or_dash(w.last_seen),
                    w.worker.id.to_string(),
                ]
            }),
        );
    })
}
