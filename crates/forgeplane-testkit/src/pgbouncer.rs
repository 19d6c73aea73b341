//! A real PgBouncer in front of a [`PostgresServer`](crate::postgres_server::PostgresServer), giving out connections by
//! transaction: what a store may not assume about sessions shows here.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::postgres_server::{PostgresServer, copy, own, unprivileged};

/// A running pooler; ended when dropped.
#[derive(Debug)]
pub struct PgBouncer {
    home: TempDir,
    port: u16,
    password: &'static str,
    process: Child,
}

impl PgBouncer {
    /// Starts a pooler in front of a server. Panics if it cannot be started.
    #[must_use]
    pub fn start(server: &PostgresServer) -> Self {
        let home = tempfile::tempdir().unwrap();
        own(home.path());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let password = server.password();
        // Two server connections for many clients: consecutive transactions of a client meet different ones.
        let settings = format!(
            "[databases]\n\
             postgres = host=127.0.0.1 port={} user=forgeplane password={password}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = scram-sha-256\nauth_file = {home}/users\n\
             pool_mode = transaction\ndefault_pool_size = 4\nserver_round_robin = 1\n",
            server.port(),
            home = home.path().display(),
        );
        fs::write(home.path().join("pgbouncer.ini"), settings).unwrap();
        fs::write(home.path().join("users"), format!("\"forgeplane\" \"{password}\"\n")).unwrap();
        let (program, libraries) = program(home.path());
        let mut command = unprivileged(&program);
        if let Some(libraries) = libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command.arg("--quiet").arg(home.path().join("pgbouncer.ini"));
        let log = fs::File::create(home.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let process = command.spawn().unwrap();
        let mut pooler = Self { home, port, password, process };
        pooler.wait();
        pooler
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.process.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "PgBouncer does not start: {}",
                fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The server's only database, through the pooler.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://forgeplane:{}@127.0.0.1:{}/postgres", self.password, self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program and where its libraries are: from `FORGEPLANE_TEST_PGBOUNCER`, a directory into which the packages were
/// unpacked, else as it is installed. It is copied to where an unprivileged user can reach it.
fn program(home: &Path) -> (PathBuf, Option<PathBuf>) {
    let Some(unpacked) = std::env::var_os("FORGEPLANE_TEST_PGBOUNCER") else {
        let installed = PathBuf::from("/usr/sbin/pgbouncer");
        assert!(
            installed.exists(),
            "PgBouncer is not installed: install the package `pgbouncer`, or say in FORGEPLANE_TEST_PGBOUNCER where its packages were unpacked"
        );
        return (installed, None);
    };
    let own_copy = home.join("usr");
    copy(&Path::new(&unpacked).join("usr"), &own_copy);
    let libraries = fs::read_dir(own_copy.join("lib"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().ends_with("-linux-gnu"))
        .expect("the unpacked packages have a library directory");
    (own_copy.join("sbin/pgbouncer"), Some(libraries))
}
