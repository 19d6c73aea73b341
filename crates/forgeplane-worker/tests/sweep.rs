//! Nothing of a tool is left, whatever it tried. Needs root, as the sandbox does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use fixture::{Bench, Lines, Witness, alive, python_path, until};
use forgeplane_core::evidence::Cleanup;
use forgeplane_worker::sandbox::{Running, Sandbox};

/// Starts a Python tool that prints one line when it is where the test wants it.
async fn python(bench: &Bench, script: &str) -> (Running, Lines) {
    let spec = bench.spec_of(python_path(), script, &[]);
    let mut running = bench.sandbox.spawn(spec).await.unwrap();
    let lines = Lines::new(running.take_stdout().unwrap());
    (running, lines)
}

#[tokio::test]
async fn e2_a_double_fork_in_its_own_session_does_not_survive() {
    let bench = Bench::new();
    let run = bench
        .run(
            "nohup setsid sh -c 'trap \"\" TERM HUP INT; (nohup sleep 600 & echo $! > pid)' >/dev/null 2>&1 </dev/null; exit 0",
            &[],
        )
        .await;
    assert_eq!(run.exit.code, Some(0));
    let pid =
        until(|| std::fs::read_to_string(bench.cwd().join("pid")).ok().filter(|pid| pid.ends_with('\n')));
    let daemon = std::path::Path::new("/proc").join(pid.trim());
    assert!(alive(&daemon), "it left the tool's process group and outlived the tool");
    assert!(!bench.survivors().is_empty());

    assert_eq!(bench.sandbox.sweep().await, Cleanup::Clean);
    assert!(!alive(&daemon));
    assert_eq!(bench.survivors(), [""; 0]);
}

#[tokio::test]
async fn e9_what_was_there_before_the_worker_is_killed() {
    let bench = Bench::new();
    let mut before = Witness::sleeping(bench.uid());
    let mut of_another = Witness::sleeping(bench.uid() + 100_000);
    assert!(before.runs());
    assert_eq!(bench.sandbox.sweep().await, Cleanup::Clean);
    assert!(!before.runs());
    assert!(of_another.runs(), "only the tool's user is swept");
}

#[tokio::test]
async fn e8_a_zombie_is_nothing_that_runs() {
    let bench = Bench::new();
    let mut dead =
        Command::new("/bin/true").uid(bench.uid()).gid(bench.uid()).current_dir("/").spawn().unwrap();
    let proc = std::path::PathBuf::from(format!("/proc/{}", dead.id()));
    until(|| (!alive(&proc)).then_some(()));
    assert!(proc.exists(), "nobody has reaped it");
    let started = Instant::now();
    assert_eq!(bench.sandbox.sweep().await, Cleanup::Clean);
    assert!(started.elapsed() < Duration::from_secs(5));
    dead.wait().unwrap();
}

#[tokio::test]
async fn e6_threads_that_outlive_the_main_thread_are_found() {
    let bench = Bench::new();
    let (mut running, mut lines) = python(
        &bench,
        "import ctypes, platform, threading, time\n\
         def stay():\n    time.sleep(0.2); print('main thread gone', flush=True); time.sleep(600)\n\
         threading.Thread(target=stay).start()\n\
         ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)",
    )
    .await;
    assert_eq!(lines.next().await, "main thread gone");
    assert!(!bench.survivors().is_empty());
    assert_eq!(bench.sandbox.sweep().await, Cleanup::Clean);
    assert_eq!(bench.survivors(), [""; 0]);
    assert_eq!(running.wait().await.unwrap().signal, Some(9));
}

#[tokio::test]
async fn e5_a_daemon_in_namespaces_of_its_own_does_not_survive() {
    let bench = Bench::new();
    let script = "setsid unshare --user --map-root-user --pid --fork --kill-child=INT sh -c 'echo inside $(id -u); exec sleep 600' & wait";
    let mut running = bench.start(script, &[]).await;
    let mut lines = Lines::new(running.take_stdout().unwrap());
    assert_eq!(lines.next().await, "inside 0");
    assert_eq!(bench.sandbox.sweep().await, Cleanup::Clean);
    assert_eq!(bench.survivors(), [""; 0]);
    assert_eq!(running.wait().await.unwrap().signal, Some(9));
}

#[tokio::test]
async fn e3_a_fork_bomb_is_gone_within_ten_seconds() {
    let bench = Bench::new();
    // 200 processes fork as fast as they can, and put a new one in the place of each that is killed.
    let (mut running, mut lines) = python(
        &bench,
        "import os, resource, signal\n\
         resource.setrlimit(resource.RLIMIT_NPROC, (200, 200))\n\
         for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:\n\
         \x20   try: signal.signal(number, signal.SIG_IGN)\n\
         \x20   except (OSError, ValueError): pass\n\
         signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
         print('boom', flush=True)\n\
         while True:\n\
         \x20   try:\n\
         \x20       if os.fork() == 0: os.setsid()\n\
         \x20   except OSError: pass",
    )
    .await;
    assert_eq!(lines.next().await, "boom");
    until(|| (bench.survivors().len() >= 190).then_some(()));

    let started = Instant::now();
    assert_eq!(bench.sandbox.sweep().await, Cleanup::Clean);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(bench.survivors(), [""; 0]);
    assert_eq!(running.wait().await.unwrap().signal, Some(9));
}

#[tokio::test]
async fn e4_a_tool_that_kills_everything_it_may_kills_only_its_own() {
    let bench = Bench::new();
    let (mut as_root, mut as_reaper) = (Witness::sleeping(0), Witness::sleeping(bench.uid() + 1));
    let mut as_tool = Witness::sleeping(bench.uid());
    let (mut running, mut lines) = python(
        &bench,
        "import os, signal\n\
         for _ in range(100):\n\
         \x20   try: os.kill(-1, signal.SIGKILL)\n\
         \x20   except (PermissionError, ProcessLookupError): pass\n\
         print('done', flush=True)",
    )
    .await;
    assert_eq!(lines.next().await, "done");
    assert_eq!(running.wait().await.unwrap().code, Some(0));
    until(|| (!as_tool.runs()).then_some(()));
    assert!(as_root.runs(), "the worker's user is out of reach");
    assert!(as_reaper.runs(), "the reaper is out of reach");
}

#[tokio::test]
async fn e4_a_tool_that_kills_all_the_time_cannot_stop_the_sweep() {
    let bench = Bench::new();
    let (mut running, mut lines) = python(
        &bench,
        "import os, resource, signal\n\
         resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))\n\
         print('killing', flush=True)\n\
         while True:\n\
         \x20   try: os.kill(-1, signal.SIGCONT)\n\
         \x20   except OSError: pass\n\
         \x20   try: os.kill(-1, signal.SIGUSR1 if os.fork() else signal.SIGKILL)\n\
         \x20   except OSError: pass",
    )
    .await;
    assert_eq!(lines.next().await, "killing");
    assert_eq!(bench.sandbox.sweep().await, Cleanup::Clean);
    assert_eq!(bench.survivors(), [""; 0]);
    assert!(running.wait().await.unwrap().signal.is_some());
}

#[tokio::test]
async fn sweeps_at_once_do_not_hurt_each_other() {
    let bench = Bench::new();
    let _left = Witness::sleeping(bench.uid());
    let (a, b, c) = tokio::join!(bench.sandbox.sweep(), bench.sandbox.sweep(), bench.sandbox.sweep());
    assert_eq!([a, b, c], [Cleanup::Clean; 3]);
}

#[tokio::test]
async fn a_helper_that_does_not_kill_leaves_the_user_dirty() {
    let bench = Bench::new();
    let isolation = bench.sandbox.isolation();
    let lazy = Sandbox::new(isolation, Some("/bin/true".into())).unwrap();
    let mut survivor = Witness::sleeping(bench.uid());
    let broken = Sandbox::new(isolation, Some("/bin/false".into())).unwrap();
    assert_eq!(tokio::join!(lazy.sweep(), broken.sweep()), (Cleanup::Dirty, Cleanup::Dirty));
    assert!(survivor.runs());
    // The next real sweep recovers.
    assert_eq!(bench.sandbox.sweep().await, Cleanup::Clean);
}
