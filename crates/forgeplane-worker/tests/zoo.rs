//! Programs that try to outlive their run, each in its own way. None does, and the worker is not touched. Needs root, as
//! the sandbox does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use fixture::{Bench, Lines, Witness, python_path};
use forgeplane_core::evidence::Cleanup;

/// What every script begins with. `ready()` says that the program is where it wants to be; `stay()` stays there.
const PRELUDE: &str = r#"
import ctypes, fcntl, mmap, os, platform, resource, select, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def ready():
    os.write(1, b'ready\n')
def stay():
    while True: time.sleep(600)
def daemon():
    # What is still in the tool's group goes with the tool, so the tool waits until it is not.
    there, here = os.pipe()
    if os.fork():
        os.read(there, 1); os._exit(0)
    os.setsid()
    if os.fork(): os._exit(0)
    os.write(here, b'x')
def deaf():
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
def unshare(flags):
    if libc.unshare(flags): os._exit(9)
NEWNS, NEWUSER, NEWPID, NEWNET, NEWIPC, NEWUTS = 0x20000, 0x10000000, 0x20000000, 0x40000000, 0x8000000, 0x4000000
"#;

/// Name, and what it does.
const ZOO: &[(&str, &str)] = &[
    ("a child in the background", "
if os.fork() == 0:
    ready(); stay()
stay()"),
    ("a daemon", "
daemon(); os.chdir('/'); ready(); stay()"),
    ("a daemon without any descriptor", "
daemon(); ready(); os.closerange(0, 1024); stay()"),
    ("a daemon that hears no signal", "
deaf(); daemon(); ready(); stay()"),
    ("a daemon that blocks every signal", "
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); daemon(); ready(); stay()"),
    ("a process that stopped itself", "
if os.fork() == 0:
    ready(); os.kill(os.getpid(), signal.SIGSTOP); stay()
stay()"),
    ("a process under a tracer", "
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); stay()
os.waitpid(child, os.WUNTRACED); ready(); stay()"),
    ("a program whose file is gone", "
import shutil
shutil.copy('/bin/sleep', 'copy')
if os.fork() == 0:
    os.execv('copy', ['copy', '600'])
time.sleep(0.1); os.unlink('copy'); ready(); stay()"),
    ("a program that never was a file", "
fd = os.memfd_create('x')
os.write(fd, open('/bin/sleep', 'rb').read())
if os.fork() == 0:
    ready(); os.execv(fd, ['x', '600']) if os.execv in os.supports_fd else os.execv('/proc/self/fd/%d' % fd, ['x', '600'])
stay()"),
    ("two that start each other again", "
daemon()
deaf()
def pair():
    while True:
        child = os.fork()
        if child == 0: continue
        try: os.waitpid(child, 0)
        except OSError: pass
resource.setrlimit(resource.RLIMIT_NPROC, (50, 50))
ready()
while True:
    try: pair()
    except OSError: pass"),
    ("a comet: every process starts the next one and ends", "
daemon()
ready()
while True:
    try:
        if os.fork(): os._exit(0)
    except OSError: pass"),
    ("a bomb", "
deaf()
resource.setrlimit(resource.RLIMIT_NPROC, (150, 150))
ready()
while True:
    try: os.fork()
    except OSError: pass"),
    ("threads without their main thread", "
def last():
    time.sleep(0.1); ready(); stay()
threading.Thread(target=last).start()
libc.syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)"),
    ("many threads", "
for _ in range(100): threading.Thread(target=stay).start()
ready(); stay()"),
    ("the init of a process namespace", "
unshare(NEWUSER | NEWPID)
if os.fork() == 0:
    deaf(); ready(); stay()
stay()"),
    ("a process in every namespace there is", "
unshare(NEWUSER | NEWPID | NEWNS | NEWNET | NEWIPC | NEWUTS)
if os.fork() == 0:
    os.setsid(); ready(); stay()
stay()"),
    ("namespaces within namespaces", "
for _ in range(5):
    uid, gid = os.geteuid(), os.getegid()
    unshare(NEWUSER | NEWNS)
    for file, text in [('setgroups', 'deny'), ('uid_map', '0 %d 1' % uid), ('gid_map', '0 %d 1' % gid)]:
        open('/proc/self/' + file, 'w').write(text)
daemon(); ready(); stay()"),
    ("one that calls itself a kernel thread", "
daemon(); libc.prctl(15, b'kworker/0:1', 0, 0, 0); ready(); stay()"),
    ("one that looks after its own orphans", "
libc.prctl(36, 1, 0, 0, 0)
for _ in range(3):
    if os.fork() == 0:
        if os.fork(): os._exit(0)
        stay()
ready(); stay()"),
    ("one that its parent's death does not end", "
libc.prctl(1, 0, 0, 0, 0); daemon(); ready(); stay()"),
    ("one that asked to come last", "
daemon(); os.nice(19); os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); ready(); stay()"),
    ("one that changes its process group all the time", "
daemon(); ready()
while True:
    if os.fork() == 0:
        os.setpgid(0, 0); time.sleep(0.01); os._exit(0)
    try: os.waitpid(-1, os.WNOHANG)
    except OSError: pass
    time.sleep(0.001)"),
    ("children that nobody waits for", "
for _ in range(50):
    if os.fork() == 0: os._exit(0)
ready(); stay()"),
    ("one that waits for a pipe that nobody opens", "
os.mkfifo('fifo')
if os.fork() == 0:
    ready(); open('fifo')
stay()"),
    ("one that listens at an abstract address", "
daemon()
s = socket.socket(socket.AF_UNIX); s.bind('\\0fp-zoo-%d' % os.getuid()); s.listen()
ready(); s.accept()"),
    ("one that holds its memory", "
daemon(); m = mmap.mmap(-1, 1 << 22); libc.mlockall(3); ready(); stay()"),
    ("one born as its grandparent's child", "
if platform.machine() == 'x86_64':
    # clone(CLONE_PARENT | SIGCHLD): the child of whoever started the tool.
    child = libc.syscall(56, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)
else:
    child = libc.syscall(220, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)
if child == 0:
    ready(); stay()
stay()"),
    ("one that kills whatever it may", "
daemon(); ready()
while True:
    try: os.kill(-1, signal.SIGCONT)
    except OSError: pass
    time.sleep(0.001)"),
    ("one that is started again by a timer signal", "
daemon()
def again(*_):
    if os.fork() == 0: pass
signal.signal(signal.SIGALRM, again)
resource.setrlimit(resource.RLIMIT_NPROC, (50, 50))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
ready()
while True:
    try: time.sleep(600)
    except OSError: pass"),
];

/// E2 to E6, and whatever else there is: gone with one sweep, whatever it is.
#[tokio::test]
async fn e2_to_e6_nothing_in_the_zoo_survives() {
    assert!(ZOO.len() >= 25);
    let mut here = Witness::sleeping(0);
    for (name, script) in ZOO {
        let bench = Bench::new();
        let spec = bench.spec_of(python_path(), &format!("{PRELUDE}{script}"), &[]);
        let mut running = bench.sandbox.spawn(spec).await.unwrap();
        let mut lines = Lines::new(running.take_stdout().unwrap());
        let mut complaints = Lines::new(running.take_stderr().unwrap());
        if lines.next_or_end().await.as_deref() != Some("ready") {
            let mut why = Vec::new();
            while let Some(line) = complaints.next_or_end().await {
                why.push(line);
            }
            panic!("{name} does not get where it wants to be: {why:#?}");
        }
        assert_eq!(bench.sandbox.sweep().await, Cleanup::Clean, "{name}");
        assert_eq!(bench.survivors(), [""; 0], "{name}");
        running.wait().await.unwrap();
        // Not even the dead are left to the worker.
        assert_eq!(bench.sandbox.clear().await, Cleanup::Clean, "{name}");
        assert_eq!(bench.children(), 0, "{name}");
        assert!(here.runs(), "{name} has ended a process of somebody else");
    }
}

/// E14: what one run leaves that is no process, the next run does not find.
#[tokio::test]
async fn e14_nothing_that_is_left_reaches_the_next_run() {
    let bench = Bench::new();
    let leave = r#"
IPC_CREAT = 0o1000
path = 'fp-zoo-%d' % os.getuid()
for place in ['/tmp', '/var/tmp', '/dev/shm']:
    os.makedirs('%s/%s/deep/er' % (place, path))
    open('%s/%s/deep/er/file' % (place, path), 'w').write('left')
    open('%s/%s.file' % (place, path), 'w').write('left')
    os.symlink('/etc/passwd', '%s/%s.link' % (place, path))
    os.chmod('%s/%s/deep' % (place, path), 0)
key = os.getuid()
assert libc.shmget(key, 4096, IPC_CREAT | 0o600) >= 0
assert libc.semget(key, 1, IPC_CREAT | 0o600) >= 0
assert libc.msgget(key, IPC_CREAT | 0o600) >= 0
number = {'x86_64': 248, 'aarch64': 217}[platform.machine()]
print('key', libc.syscall(number, b'user', b'left', b'secret', 6, -4) > 0, flush=True)
"#;
    let look = r#"
import glob
path = 'fp-zoo-%d' % os.getuid()
found = [f for place in ['/tmp', '/var/tmp', '/dev/shm'] for f in glob.glob('%s/%s*' % (place, path))]
key = os.getuid()
if libc.shmget(key, 0, 0) >= 0: found.append('shared memory')
if libc.semget(key, 0, 0) >= 0: found.append('semaphores')
if libc.msgget(key, 0) >= 0: found.append('messages')
number = {'x86_64': 250, 'aarch64': 219}[platform.machine()]
if libc.syscall(number, 10, -4, b'user', b'left', 0) > 0: found.append('a key')
print('found', found, flush=True)
"#;
    let run = async |script: &str| {
        let spec = bench.spec_of(python_path(), &format!("{PRELUDE}{script}"), &[]);
        let mut running = bench.sandbox.spawn(spec).await.unwrap();
        let mut lines = Lines::new(running.take_stdout().unwrap());
        let line = lines.next().await;
        assert_eq!(running.wait().await.unwrap().code, Some(0), "{line}");
        line
    };
    // The test's own directory belongs to the tool's user, and is not what this is about.
    std::os::unix::fs::chown(bench.cwd(), Some(0), Some(0)).unwrap();
    let keys = run(leave).await == "key True";
    let before = run(look).await;
    for left in ["/tmp/", "/var/tmp/", "/dev/shm/", "shared memory", "semaphores", "messages"] {
        assert!(before.contains(left), "{left} was not left: {before}");
    }
    assert_eq!(before.contains("a key"), keys, "{before}");
    assert_eq!(bench.sandbox.clear().await, Cleanup::Clean);
    assert_eq!(run(look).await, "found []");
}

/// E10: a program with the setuid bit of root gives nothing, whether it came with the tool or with the system.
#[tokio::test]
async fn e10_setuid_programs_give_no_privilege() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    let own = bench.cwd().join("id");
    std::fs::copy("/usr/bin/id", &own).unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let run = bench.run("./id -u; su -c 'id -u' root </dev/null 2>/dev/null; exit 0", &[]).await;
    assert_eq!(run.stdout, format!("{}\n", bench.uid()));
}

/// E12: nothing of the worker's processes can be read or traced, and its command line tells nothing.
#[tokio::test]
async fn e12_the_workers_process_is_closed() {
    let bench = Bench::new();
    let pid = std::process::id();
    let script = format!(
        "for file in environ mem maps fd/0 cwd/. root/. syscall stack; do cat /proc/{pid}/$file >/dev/null 2>&1 && echo $file; done; \
         ls /proc/{pid}/fd >/dev/null 2>&1 && echo fds; kill -0 {pid} 2>/dev/null && echo signals; exit 0"
    );
    assert_eq!(bench.run(&script, &[]).await.stdout, "");
    let trace = format!("print(libc.ptrace(16, {pid}, 0, 0))");
    let spec = bench.spec_of(python_path(), &format!("{PRELUDE}{trace}"), &[]);
    let mut running = bench.sandbox.spawn(spec).await.unwrap();
    let mut lines = Lines::new(running.take_stdout().unwrap());
    assert_eq!(lines.next().await, "-1");
    running.wait().await.unwrap();
}
