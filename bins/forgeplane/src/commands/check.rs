//! `forgeplane check`: the invariants of a store, without its coordinator.

use std::process::ExitCode;
use std::sync::Arc;

use forgeplane_core::check::{Report, check};
use forgeplane_core::ports::Store;
use forgeplane_store_postgres::{PostgresOptions, PostgresStore};
use forgeplane_store_sqlite::SqliteStore;

use crate::args::{CheckOptions, Format, Global};
use crate::failure::{Failure, RUN_FAILED};
use crate::output;

/// Where the database is: not an argument, because other users of the machine see those.
const POSTGRES_URL: &str = "FORGEPLANE_CHECK_POSTGRES_URL";

pub async fn run(global: &Global, options: &CheckOptions) -> Result<ExitCode, Failure> {
    let store = open(options).await?;
    let report =
        check(&*store).await.map_err(|error| Failure::not_reachable(error.code(), error.to_string()))?;
    match global.output {
        Format::Json => output::json(&report)?,
        Format::Table => show(&report),
    }
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::from(RUN_FAILED) })
}

async fn open(options: &CheckOptions) -> Result<Arc<dyn Store>, Failure> {
    if let Some(path) = &options.sqlite {
        let store = SqliteStore::open_read_only(path)
            .map_err(|error| Failure::local(error.code(), error.to_string()))?;
        return Ok(Arc::new(store));
    }
    let url = std::env::var(POSTGRES_URL).map_err(|_| {
        Failure::local("store_url_invalid", format!("{POSTGRES_URL} is not set"))
            .way_out("let it say where the database is: postgres://user:password@host:5432/database")
    })?;
    let options = PostgresOptions { read_only: true, ..PostgresOptions::new(url) };
    let store = PostgresStore::open(&options)
        .await
        .map_err(|error| Failure::not_reachable(error.code(), error.to_string()))?;
    Ok(Arc::new(store))
}

fn show(report: &Report) {
    let broken = report.violations.len();
    output::view([
        ("projects", Some(report.projects.to_string())),
        ("runs", Some(format!("{} ({} not ended)", report.runs, report.live_runs))),
        ("attempts", Some(report.attempts.to_string())),
        ("receipts", Some(format!("{} (each verified)", report.receipts))),
        ("events", Some(report.events.to_string())),
        ("state generations", Some(report.generations.to_string())),
        ("workers", Some(report.workers.to_string())),
        ("violations", Some(broken.to_string())),
    ]);
    if broken > 0 {
        output::table(
            ["INVARIANT", "RECORD", "WHAT IS WRONG"],
            report.violations.iter().map(|v| [v.invariant.to_owned(), v.subject.clone(), v.detail.clone()]),
        );
    }
}
