//! Clocks that are wrong.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use forgeplane_testkit::installation::{Installation, Process};
use serde_json::Value;

use crate::support::{Site, options, patient_tool, word};

/// What a process loads to live in another time: its wall clock is off, and nothing else is.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, at);
    const char *off = getenv("CLOCK_OFF_BY_S");
    if (result == 0 && clock == CLOCK_REALTIME && off) at->tv_sec += atol(off);
    return result;
}
"#;

fn shim(installation: &Installation) -> PathBuf {
    let (source, library) =
        (installation.directory().join("shim.c"), installation.directory().join("shim.so"));
    fs::write(&source, SHIM).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
    let output = compile.output().expect("`cc`, which also links Rust programs, is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// Starts a process again with a clock that is off by so many seconds.
fn live_elsewhen(process: &mut Process, shim: &std::path::Path, off_s: i64, ready: &str) {
    process.terminate();
    process.command().env("LD_PRELOAD", shim).env("CLOCK_OFF_BY_S", off_s.to_string());
    process.start(ready);
}

const TEN_YEARS_S: i64 = 10 * 365 * 24 * 3_600;

/// C1: a worker whose clock is ten years off does its work, and nothing that the coordinator decides depends on it.
#[tokio::test(flavor = "multi_thread")]
async fn c1_a_workers_clock_decides_nothing() {
    let soon = ["settings.heartbeat_s = 1", "settings.worker_offline_after_s = 10"];
    let tool = "[ \"$1\" = plan ] && echo $ATTEMPT >> $LEDGER; exit 0";
    let (mut site, coordinators) = Site::start(options(true, &soon), tool, &["alpha"]);
    let alpha = &coordinators[0];
    let mut worker = site.worker("w1", &[alpha]);
    let shim = shim(&site.installation);
    site.app(alpha);
    for off in [TEN_YEARS_S, -TEN_YEARS_S] {
        live_elsewhen(&mut worker.process, &shim, off, "ready");
        // It does live then: its log says so.
        let log = worker.process.log();
        let last = log.lines().rfind(|line| line.starts_with("20")).unwrap().to_owned();
        let before = site.get(alpha, "/workers").await["items"][0]["last_seen"].clone();
        let run = site.preview(alpha, &format!("{off}")).await;
        let view = site.until_status(alpha, &run, "succeeded").await;
        assert_eq!(view["attempts"].as_array().unwrap().len(), 1, "{view:#}");
        // Contact is told in the coordinator's time, and goes on.
        site.until_workers(alpha, |workers| workers[0]["last_seen"] != before).await;
        let year = |time: &Value| time.as_str().unwrap()[..4].to_owned();
        let now = year(&view["run"]["created_at"]);
        assert_ne!(last[..4], now, "{last}");
        let workers = site.get(alpha, "/workers").await;
        assert_eq!(year(&workers["items"][0]["last_seen"]), now);
        assert_eq!(year(&view["run"]["finished_at"]), now);
    }
    site.installation.check().unwrap();
}

/// C2: coordinators whose clocks are five minutes apart agree on everything: the time is the database's.
#[tokio::test(flavor = "multi_thread")]
async fn c2_coordinators_five_minutes_apart_agree() {
    let (_dir, go) = word();
    let soon = ["settings.heartbeat_s = 1", "settings.worker_offline_after_s = 10"];
    let (mut site, mut coordinators) =
        Site::start(options(false, &soon), &patient_tool(&go), &["alpha", "beta"]);
    let shim = shim(&site.installation);
    live_elsewhen(&mut coordinators[1].process, &shim, 300, "workers: ");
    let (alpha, beta) = (&coordinators[0], &coordinators[1]);
    let _worker = site.worker("w1", &[alpha]);
    site.app(alpha);
    let run = site.preview(beta, "first").await;
    site.until_ledger("started").await;
    // The other one would call the worker lost by its own clock; it looks after everything every second.
    for _ in 0..3 {
        let seen = site.get(beta, "/workers").await["items"][0]["last_seen"].clone();
        let workers = site.until_workers(beta, |workers| workers[0]["last_seen"] != seen).await;
        assert_eq!(workers[0]["status"], "busy", "{workers:#?}");
    }
    assert_eq!(site.run(beta, &run).await["unresolved"], false);
    fs::write(&go, "").unwrap();
    let view = site.until_status(beta, &run, "succeeded").await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1);
    // Times are in order, whoever wrote them.
    let times: Vec<_> =
        ["created_at", "finished_at"].map(|at| view["run"][at].as_str().unwrap().to_owned()).into();
    assert!(times.is_sorted(), "{times:?}");
    site.installation.check().unwrap();
}
