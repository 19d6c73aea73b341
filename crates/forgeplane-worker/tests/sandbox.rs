//! Tools in their box: real processes, real UIDs. Needs root, as the sandbox does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use fixture::{Bench, field, sandbox_error};
use forgeplane_core::evidence::Cleanup;
use forgeplane_worker::sandbox::{Exit, Isolation, Sandbox};

const CODE_0: Exit = Exit { code: Some(0), signal: None };

#[tokio::test]
async fn e11_the_tool_inherits_nothing_of_the_worker() {
    let bench = Bench::new();
    // An inheritable descriptor, as a careless library of the embedding program may leave one.
    let leaked = std::fs::File::open("/dev/zero").unwrap();
    nix::fcntl::fcntl(&leaked, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();

    let run = bench
        .run(
            "cat /proc/self/status; echo FDS $(ls /proc/self/fd | tr '\\n' ' '); echo PWD $(pwd); echo CORE $(ulimit -c); \
             echo STDIN $(readlink /proc/$$/fd/0); tr '\\0' '\\n' < /proc/$$/environ | sed 's/^/ENV /'; \
             exit 7",
            &[("ONLY", "this"), ("LD_DEBUG_OUTPUT", "/nonexistent")],
        )
        .await;

    let uid = bench.uid().to_string();
    let four = [uid.as_str(); 4].join("\t");
    assert_eq!(run.exit, Exit { code: Some(7), signal: None });
    assert_eq!(field(&run.stdout, "Uid:"), four);
    assert_eq!(field(&run.stdout, "Gid:"), four);
    assert_eq!(field(&run.stdout, "Groups:"), "");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(&run.stdout, set), "0000000000000000", "{set}");
    }
    assert_eq!(field(&run.stdout, "NoNewPrivs:"), "1");
    assert_eq!(field(&run.stdout, "Umask:"), "0077");
    // Signals 32 and 33 belong to the C library, which lets nobody touch them.
    let ignored = u64::from_str_radix(field(&run.stdout, "SigIgn:"), 16).unwrap();
    assert_eq!(ignored & !(0b11 << 31), 0);
    assert_eq!(field(&run.stdout, "SigBlk:"), "0000000000000000");
    // 3 is the folder that `ls` itself reads.
    assert_eq!(field(&run.stdout, "FDS "), "0 1 2 3");
    assert_eq!(field(&run.stdout, "STDIN "), "/dev/null");
    assert_eq!(field(&run.stdout, "PWD "), bench.cwd().to_str().unwrap());
    assert_eq!(field(&run.stdout, "CORE "), "0");
    let env: Vec<_> = run.stdout.lines().filter_map(|line| line.strip_prefix("ENV ")).collect();
    assert_eq!(env, ["ONLY=this", "LD_DEBUG_OUTPUT=/nonexistent"]);
    drop(leaked);
}

#[tokio::test]
async fn t_056_a_tool_that_asks_gets_an_end_of_file() {
    let run = Bench::new().run("read answer; echo \"got $?\"; cat; echo done", &[]).await;
    assert_eq!((run.stdout.as_str(), run.exit), ("got 1\ndone\n", CODE_0));
}

#[tokio::test]
async fn exit_codes_and_signals_are_told_apart() {
    let bench = Bench::new();
    for (script, exit) in [
        ("exit 0", CODE_0),
        ("exit 2", Exit { code: Some(2), signal: None }),
        ("exit 255", Exit { code: Some(255), signal: None }),
        ("kill -TERM $$", Exit { code: None, signal: Some(15) }),
        ("kill -KILL $$", Exit { code: None, signal: Some(9) }),
    ] {
        let mut running = bench.start(script, &[]).await;
        assert_eq!(running.wait().await.unwrap(), exit, "{script}");
        assert_eq!(running.wait().await.unwrap(), exit, "asking again gives the same answer");
    }
}

#[tokio::test]
async fn a_setup_that_fails_is_no_exit_code() {
    let bench = Bench::new();
    let mut spec = bench.spec("true", &[]);
    spec.program = "/nonexistent/tool".into();
    assert_eq!(sandbox_error(bench.sandbox.spawn(spec).await), ("execve".to_owned(), nix::libc::ENOENT));

    let mut spec = bench.spec("true", &[]);
    spec.cwd = bench.cwd().join("absent");
    assert_eq!(sandbox_error(bench.sandbox.spawn(spec).await), ("chdir".to_owned(), nix::libc::ENOENT));

    let closed = bench.cwd().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    let mut spec = bench.spec("true", &[]);
    spec.cwd = closed;
    assert_eq!(sandbox_error(bench.sandbox.spawn(spec).await), ("chdir".to_owned(), nix::libc::EACCES));

    // A tool that fails at once is a tool that ran.
    assert_eq!(bench.run("exit 127", &[]).await.exit.code, Some(127));
}

#[tokio::test]
async fn d4_twenty_cancels_are_one_interrupt() {
    let bench = Bench::new();
    let mut running = bench
        .start("n=0; trap 'n=$((n+1))' INT; echo ready; i=0; while [ $i -lt 10 ]; do sleep 0.1; i=$((i+1)); done; echo seen $n", &[])
        .await;
    let mut out = fixture::Lines::new(running.take_stdout().unwrap());
    assert_eq!(out.next().await, "ready");
    let sent = (0..20).filter(|_| running.interrupt()).count();
    assert_eq!(sent, 1);
    assert_eq!(out.next().await, "seen 1");
    assert_eq!(running.wait().await.unwrap(), CODE_0);
    assert!(!running.interrupt(), "a command that has ended gets no signal");
}

#[tokio::test]
async fn e20_wrapper_and_tool_each_see_the_interrupt_once() {
    let bench = Bench::new();
    let tool = "n=0; trap 'n=$((n+1)); echo tool $n' INT; echo ready; while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; echo tool ends";
    let mut running =
        bench.start("trap 'echo wrapper' INT; sh -c \"$TOOL\"; echo wrapper ends", &[("TOOL", tool)]).await;
    let mut out = fixture::Lines::new(running.take_stdout().unwrap());
    assert_eq!(out.next().await, "ready");
    assert!(running.interrupt());
    for expected in ["tool 1", "tool ends", "wrapper", "wrapper ends"] {
        assert_eq!(out.next().await, expected);
    }
    assert_eq!(running.wait().await.unwrap(), CODE_0);
}

#[tokio::test]
async fn e1_a_tool_that_ignores_the_interrupt_is_killed() {
    let bench = Bench::new();
    let mut running =
        bench.start("trap '' INT TERM HUP; echo ready; while :; do sleep 0.05; done", &[]).await;
    let mut out = fixture::Lines::new(running.take_stdout().unwrap());
    assert_eq!(out.next().await, "ready");
    assert!(running.interrupt());
    let waited = tokio::time::timeout(Duration::from_millis(300), running.wait()).await;
    assert!(waited.is_err(), "it goes on after the interrupt");
    running.kill();
    assert_eq!(running.wait().await.unwrap(), Exit { code: None, signal: Some(9) });
    running.kill();
}

#[tokio::test]
async fn a_command_whose_handle_is_dropped_is_killed() {
    let bench = Bench::new();
    let mut running = bench.start("echo $$; exec sleep 600", &[]).await;
    let mut out = fixture::Lines::new(running.take_stdout().unwrap());
    out.next().await;
    drop(running);
    assert!(out.ended().await, "the pipe ends with the process");
}

#[tokio::test]
async fn a_start_that_nobody_waits_for_leaves_nothing_running() {
    let bench = Bench::new();
    for patience in 0..40 {
        let spec = bench.spec("exec sleep 600", &[]);
        let started = tokio::time::timeout(Duration::from_micros(patience * 100), bench.sandbox.spawn(spec));
        drop(started.await);
    }
    // Starts are served in turn: when this one has run, every abandoned one has been started and ended.
    let mut last = bench.start("true", &[]).await;
    last.wait().await.unwrap();
    fixture::until(|| bench.survivors().is_empty().then_some(()));
}

#[tokio::test]
async fn a_tool_outlives_the_sandbox_value_but_not_its_handle() {
    let bench = Bench::new();
    let sandbox = Sandbox::new(bench.sandbox.isolation(), Some(fixture::HELPER.into())).unwrap();
    let spec = bench.spec("for n in 1 2 3; do echo $n; sleep 0.1; done", &[]);
    let mut running = sandbox.spawn(spec).await.unwrap();
    drop(sandbox);
    let mut out = fixture::Lines::new(running.take_stdout().unwrap());
    for expected in ["1", "2", "3"] {
        assert_eq!(out.next().await, expected);
    }
    assert_eq!(running.wait().await.unwrap(), CODE_0);
}

#[tokio::test]
async fn e22_what_keeps_the_pipe_open_does_not_keep_the_run_open() {
    let bench = Bench::new();
    let mut running = bench.start("sleep 600 & echo started", &[]).await;
    let mut out = fixture::Lines::new(running.take_stdout().unwrap());
    assert_eq!(out.next().await, "started");
    assert_eq!(running.wait().await.unwrap(), CODE_0);
    assert!(out.ended().await, "the rest of the group ends with its leader");
}

#[tokio::test]
async fn e12_the_tool_cannot_read_what_is_roots() {
    let bench = Bench::new();
    let key = bench.cwd().join("worker.key");
    std::fs::write(&key, "private").unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let worker = std::process::id();
    let run = bench
        .run(
            &format!(
                "for f in {} /proc/{worker}/environ /proc/{worker}/mem /proc/{worker}/maps; do cat $f && echo LEAK $f; done; \
                 ls /proc/{worker}/fd && echo LEAK fd; kill -0 {worker} && echo LEAK kill; exit 0",
                key.display()
            ),
            &[("SECRET", "in-the-environment")],
        )
        .await;
    assert_eq!(run.stdout, "");
    assert_eq!(run.exit, CODE_0);
}

#[tokio::test]
async fn without_isolation_nothing_is_promised_but_the_environment_is_still_clean() {
    let sandbox = Sandbox::new(Isolation::UnsafeNone, Some(fixture::HELPER.into())).unwrap();
    let bench = Bench::with(sandbox);
    let run = bench
        .run("echo $(id -u); env -u PWD -u SHLVL -u _ -u OLDPWD; grep NoNewPrivs /proc/self/status; ps -o sid= $$ | tr -d ' ' | grep -qx $$ && echo own session", &[("A", "b")])
        .await;
    assert_eq!(run.stdout, format!("{}\nA=b\nNoNewPrivs:\t1\nown session\n", nix::unistd::getuid()));
    assert_eq!(bench.sandbox.sweep().await, Cleanup::Unverified);
}

#[test]
fn e19_isolation_that_cannot_work_is_refused() {
    let refused = |uid, gid, reaper_uid| {
        let isolation = Isolation::Uid { uid, gid, reaper_uid };
        Sandbox::new(isolation, Some(fixture::HELPER.into()))
            .err()
            .map(|error| (error.code(), error.to_string()))
    };
    assert_eq!(refused(200, 200, 201), None);
    for (uid, gid, reaper) in
        [(0, 5, 6), (5, 0, 6), (5, 5, 0), (5, 5, 5), (u32::MAX, 5, 6), (5, u32::MAX, 6), (5, 5, u32::MAX)]
    {
        let (code, message) = refused(uid, gid, reaper).expect("refused");
        assert_eq!(code, "invalid_ids", "{message}");
    }
    let absent = Sandbox::new(Isolation::UnsafeNone, Some("/nonexistent/helper".into())).unwrap_err();
    assert_eq!(absent.code(), "helper_missing");
    let unprepared = Sandbox::new(Isolation::UnsafeNone, None).unwrap_err();
    assert_eq!(unprepared.code(), "helper_unavailable");
    assert!(unprepared.to_string().contains("run_if_helper"), "{unprepared}");
}

#[tokio::test]
async fn a_helper_that_is_no_helper_is_found_out() {
    let sandbox = Sandbox::new(Isolation::UnsafeNone, Some("/bin/true".into())).unwrap();
    let bench = Bench::with(sandbox);
    let error = bench.sandbox.spawn(bench.spec("true", &[])).await.unwrap_err();
    assert_eq!(error.code(), "helper_died");
}

#[test]
fn the_helper_started_by_hand_explains_itself() {
    let output = std::process::Command::new(fixture::HELPER).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("started by a Forgeplane worker"));
}

#[test]
fn the_death_of_the_worker_takes_the_tool_along() {
    // This test runs itself again as the worker that will be killed.
    if std::env::var_os("FORGEPLANE_TEST_DOOMED_WORKER").is_some() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let bench = Bench::new();
            let mut running = bench.start("echo $$; exec sleep 600", &[]).await;
            let pid = fixture::Lines::new(running.take_stdout().unwrap()).next().await;
            std::fs::write(std::env::var_os("FORGEPLANE_TEST_DOOMED_WORKER").unwrap(), pid).unwrap();
            running.wait().await.unwrap();
        });
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let mut worker = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_death_of_the_worker_takes_the_tool_along", "--nocapture"])
        .env("FORGEPLANE_TEST_DOOMED_WORKER", &file)
        .spawn()
        .unwrap();
    let tool = fixture::until(|| std::fs::read_to_string(&file).ok().filter(|pid| !pid.is_empty()));
    let proc = Path::new("/proc").join(&tool);
    assert!(proc.exists());
    worker.kill().unwrap();
    worker.wait().unwrap();
    let started = Instant::now();
    fixture::until(|| (!fixture::alive(&proc)).then_some(()));
    assert!(started.elapsed() < Duration::from_secs(5));
}
