//! A real PostgreSQL server for a test: a cluster of its own in a temporary directory, on a free port of the loopback
//! interface, run by an unprivileged user, taken away when the value is dropped.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const PASSWORD: &str = "only-for-tests";

/// A running (or stopped) server.
#[derive(Debug)]
pub struct PostgresServer {
    home: TempDir,
    port: u16,
    /// Settings given on the command line, such as `fsync=off`.
    settings: Vec<String>,
    postmaster: Option<Child>,
}

impl PostgresServer {
    /// Starts a server. Panics if it cannot be: a test without its server has failed.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with settings, each `name=value`.
    #[must_use]
    pub fn start_with(settings: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        own(home.path());
        let data = home.path().join("data");
        copy(&template(), &data);
        let mut server = Self {
            home,
            port,
            settings: settings.iter().map(ToString::to_string).collect(),
            postmaster: None,
        };
        server.resume();
        server
    }

    /// Where it is, for the owner of its only database.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://forgeplane:{PASSWORD}@127.0.0.1:{}/postgres", self.port)
    }

    /// Its port on the loopback interface.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The password of the user `forgeplane`.
    #[must_use]
    pub const fn password(&self) -> &'static str {
        PASSWORD
    }

    /// The id of the postmaster's process; panics while the server is stopped.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.postmaster.as_ref().expect("the server runs").id()
    }

    /// Kills the postmaster at once, as a crash would; its children notice and end.
    pub fn kill(&mut self) {
        if let Some(mut postmaster) = self.postmaster.take() {
            postmaster.kill().unwrap();
            postmaster.wait().unwrap();
        }
    }

    /// Shuts it down without waiting for clients.
    pub fn stop(&mut self) {
        if let Some(mut postmaster) = self.postmaster.take() {
            // SIGINT: fast shutdown.
            let sent = Command::new("kill").arg("-INT").arg(postmaster.id().to_string()).status().unwrap();
            assert!(sent.success(), "the postmaster could not be told to stop");
            postmaster.wait().unwrap();
        }
    }

    /// Starts it again with the content it had.
    pub fn resume(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut postmaster = self.spawn();
            if self.answers(&mut postmaster, deadline) {
                self.postmaster = Some(postmaster);
                return;
            }
            // Children of a killed postmaster may still hold its memory.
            assert!(
                Instant::now() < deadline,
                "PostgreSQL does not start: {}",
                fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
            );
        }
    }

    /// Starts it again with other settings, each `name=value`.
    pub fn restart_with(&mut self, settings: &[&str]) {
        self.stop();
        self.settings = settings.iter().map(ToString::to_string).collect();
        self.resume();
    }

    /// A copy of everything it holds; it is shut down for that, and started again.
    #[must_use]
    pub fn back_up(&mut self) -> TempDir {
        self.stop();
        let backup = tempfile::tempdir().unwrap();
        copy(&self.home.path().join("data"), &backup.path().join("data"));
        self.resume();
        backup
    }

    /// Goes back to what it held then.
    pub fn restore(&mut self, backup: &TempDir) {
        self.stop();
        let data = self.home.path().join("data");
        fs::remove_dir_all(&data).unwrap();
        copy(&backup.path().join("data"), &data);
        self.resume();
    }

    /// Moves every table and index into this directory, which is made for that; new ones go there too.
    pub fn move_tables_to(&self, directory: &Path) {
        fs::create_dir(directory).unwrap();
        own(directory);
        for text in [
            format!("CREATE TABLESPACE elsewhere LOCATION '{}'", directory.display()),
            "ALTER TABLE ALL IN TABLESPACE pg_default SET TABLESPACE elsewhere".into(),
            "ALTER INDEX ALL IN TABLESPACE pg_default SET TABLESPACE elsewhere".into(),
            "ALTER DATABASE postgres SET default_tablespace = elsewhere".into(),
        ] {
            self.sql(&text);
        }
    }

    /// What a statement answers, as text without decoration.
    fn sql(&self, text: &str) -> String {
        let mut command = server_program("psql");
        command.args(["--quiet", "--no-align", "--tuples-only", "--dbname", &self.url(), "--command", text]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Keeps everybody from a table until the lock is dropped.
    pub fn lock_table(&self, table: &str) -> TableLock<'_> {
        let mut command = server_program("psql");
        command.args(["--quiet", "--dbname", &self.url()]);
        let mut session = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let text = format!("BEGIN; LOCK TABLE {table};\n");
        session.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        let lock = TableLock { server: self, session };
        lock.until("granted");
        lock
    }

    fn spawn(&self) -> Child {
        let log = File::options().create(true).append(true).open(self.home.path().join("log")).unwrap();
        let mut command = server_program("postgres");
        command.arg("-D").arg(self.home.path().join("data"));
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        command.arg("-k").arg(self.home.path());
        for setting in &self.settings {
            command.arg("-c").arg(setting);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command.spawn().unwrap()
    }

    /// Waits until the server accepts connections; `false` if it ended instead.
    fn answers(&self, postmaster: &mut Child, deadline: Instant) -> bool {
        loop {
            if postmaster.try_wait().unwrap().is_some() {
                return false;
            }
            let mut ready = server_program("pg_isready");
            ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
            if ready.status().unwrap().success() {
                return true;
            }
            assert!(Instant::now() < deadline, "PostgreSQL does not accept connections");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A session that keeps everybody from a table.
#[derive(Debug)]
pub struct TableLock<'server> {
    server: &'server PostgresServer,
    session: Child,
}

impl TableLock<'_> {
    /// Waits until somebody wants to write to the table.
    pub fn until_waited_for(&self) {
        self.until("NOT granted");
    }

    fn until(&self, which: &str) {
        let count = format!(
            "SELECT count(*) FROM pg_locks WHERE {which} AND relation IN
            (SELECT relation FROM pg_locks WHERE mode = 'AccessExclusiveLock')"
        );
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.server.sql(&count) == "0" {
            assert!(Instant::now() < deadline, "nobody has the lock, or nobody waits for it");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for TableLock<'_> {
    fn drop(&mut self) {
        let _ = self.session.kill();
        let _ = self.session.wait();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if let Some(mut postmaster) = self.postmaster.take() {
            // SIGQUIT: its children end at once, too. The directory goes away, so nothing need be written.
            let _ = Command::new("kill").arg("-QUIT").arg(postmaster.id().to_string()).status();
            let _ = postmaster.wait();
        }
    }
}

/// The directory of the server's programs: `FORGEPLANE_TEST_POSTGRES`, else the newest of the distribution.
fn programs() -> PathBuf {
    if let Some(given) = std::env::var_os("FORGEPLANE_TEST_POSTGRES") {
        return given.into();
    }
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path().join("bin"))).collect())
        .unwrap_or_default();
    versions.retain(|bin| bin.join("initdb").exists());
    versions.sort();
    versions.pop().expect("PostgreSQL is not installed: install the package `postgresql`, or say in FORGEPLANE_TEST_POSTGRES where its `initdb` is")
}

/// The user and group the server runs as if we are root, which it refuses to run as.
fn user() -> Option<(u32, u32)> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let root = status.lines().any(|l| l.starts_with("Uid:") && l.split_whitespace().nth(2) == Some("0"));
    if !root {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let find = |name: &str| {
        users
            .lines()
            .map(|l| l.split(':').collect::<Vec<_>>())
            .find(|fields| fields[0] == name)
            .map(|fields| (fields[2].parse().unwrap(), fields[3].parse().unwrap()))
    };
    Some(find("postgres").or_else(|| find("nobody")).expect("an unprivileged user `postgres` or `nobody`"))
}

fn server_program(program: &str) -> Command {
    unprivileged(&programs().join(program))
}

/// A command that is not run as root, in an empty environment.
pub(crate) fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").current_dir("/");
    if let Some((uid, gid)) = user() {
        command.uid(uid).gid(gid);
    }
    command
}

/// Gives a file to the user that servers run as.
pub(crate) fn own(path: &Path) {
    if let Some((uid, gid)) = user() {
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
    }
}

/// Copies a directory with everything in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "{} could not be copied", from.display());
}

/// A fresh cluster, made once and copied for every server: making one takes a second of processor time.
fn template() -> PathBuf {
    let version =
        programs().parent().and_then(|p| p.file_name()).unwrap_or_default().to_string_lossy().into_owned();
    let uid = user().map_or_else(|| "own".to_owned(), |(uid, _)| uid.to_string());
    let shared = std::env::temp_dir().join(format!("forgeplane-postgres-template-{version}-{uid}"));
    let lock_path = shared.with_extension("lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&lock_path).unwrap();
    lock.lock().unwrap();
    if shared.join("PG_VERSION").exists() {
        return shared;
    }
    let _ = fs::remove_dir_all(&shared);
    let making = shared.with_extension("making");
    let _ = fs::remove_dir_all(&making);
    fs::create_dir(&making).unwrap();
    own(&making);
    let password = making.with_extension("password");
    File::create(&password).unwrap().write_all(PASSWORD.as_bytes()).unwrap();
    own(&password);
    let mut command = server_program("initdb");
    command.arg("-D").arg(making.join("data")).args([
        "-U",
        "forgeplane",
        "-A",
        "scram-sha-256",
        "-E",
        "UTF8",
        "--no-sync",
    ]);
    command.arg("--pwfile").arg(&password);
    let made = command.output().unwrap();
    assert!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));
    fs::remove_file(&password).unwrap();
    fs::rename(making.join("data"), &shared).unwrap();
    fs::remove_dir(&making).unwrap();
    shared
}
