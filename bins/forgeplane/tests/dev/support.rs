//! A `forgeplane dev` of a test's own, and its command line.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long something may take that must happen; only a failing test waits that long.
const PATIENCE: Duration = Duration::from_secs(90);

/// A directory with everything a test needs.
pub struct House {
    pub directory: tempfile::TempDir,
}

/// A running `forgeplane dev`; killed when dropped.
pub struct Dev {
    pub child: Child,
    pub url: String,
}

impl Drop for Dev {
    fn drop(&mut self) {
        // Already ended in most tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Dev {
    /// Ends it as an operator would.
    pub fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    /// Ends it as a power loss would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl House {
    pub fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("fp-dev-")
            .permissions(std::fs::Permissions::from_mode(0o711))
            .tempdir()
            .unwrap();
        Self { directory }
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// The command line, as one user.
    pub fn forgeplane(&self, user: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forgeplane"));
        command.args(["--as", user, "--data-dir"]).arg(self.data()).stdin(Stdio::null());
        for name in ["FORGEPLANE_URL", "FORGEPLANE_TOKEN", "FORGEPLANE_TOKEN_FILE", "FORGEPLANE_DATA_DIR"] {
            command.env_remove(name);
        }
        command
    }

    pub fn run(&self, user: &str, args: &[&str]) -> Output {
        self.forgeplane(user).args(args).output().unwrap()
    }

    /// Runs a command that must succeed, and gives its output.
    pub fn ok(&self, user: &str, args: &[&str]) -> String {
        let output = self.run(user, args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, user: &str, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
        serde_json::from_str(&self.ok(user, &args)).unwrap()
    }

    /// Runs a command that must end with this exit code and error code, and gives its message.
    pub fn fails(&self, user: &str, args: &[&str], exit: i32, code: &str) -> String {
        let output = self.run(user, args);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(exit), "{args:?}: {message}");
        assert!(message.contains(&format!("error[{code}]")), "{args:?}: expected {code}: {message}");
        message
    }

    /// `forgeplane dev` with its usual arguments, not started.
    pub fn dev_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forgeplane"));
        command
            .args(["dev", "--data-dir"])
            .arg(self.data())
            .env("FORGEPLANE_LISTEN", "127.0.0.1:0")
            .arg("--workspace-root")
            .arg(self.directory.path().join("work"))
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null());
        command
    }

    /// Starts `forgeplane dev` with a tool and waits until it is ready.
    pub fn dev(&self, tool: &Path) -> Dev {
        let mut command = self.dev_command();
        command.arg("--tool").arg(format!("terraform={}", tool.display()));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Owned from here on, so that it is ended whatever becomes of the test.
        let mut dev = Dev { url: String::new(), child };
        for line in BufReader::new(dev.child.stdout.take().unwrap()).lines() {
            if let Some(url) = line.unwrap().strip_prefix("ready: ") {
                dev.url = url.to_owned();
                return dev;
            }
        }
        let mut message = String::new();
        dev.child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        panic!("`forgeplane dev` ended before it was ready: {message}");
    }

    /// Pushes these files as template `app` and makes an instance `app` of it.
    pub fn app(&self, main: &str, push: &[&str]) {
        let source = self.directory.path().join("source");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("main.tf"), main).unwrap();
        let source = source.to_str().unwrap();
        let mut args = vec!["template", "push", source, "--tool", "terraform", "--name", "app"];
        args.extend(push);
        self.ok("operator", &args);
        self.ok("operator", &["instance", "create", "app", "--template", "app"]);
    }

    /// Creates a run and gives its id.
    pub fn create(&self, user: &str, args: &[&str]) -> String {
        let args: Vec<&str> = ["run", "create", "app"].into_iter().chain(args.iter().copied()).collect();
        self.json(user, &args)["id"].as_str().unwrap().to_owned()
    }

    /// Asks again until a run's detail satisfies something. The command line has no call that waits for a
    /// status that is not terminal.
    pub fn until(&self, run: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let detail = self.json("operator", &["run", "show", run]);
            if holds(&detail) {
                return detail;
            }
            assert!(begun.elapsed() < PATIENCE, "{detail:#}");
        }
    }

    /// Asks again until the log contains a text.
    pub fn until_logged(&self, run: &str, text: &str) {
        let begun = Instant::now();
        while !self.ok("operator", &["run", "logs", run]).contains(text) {
            assert!(begun.elapsed() < PATIENCE, "{text:?} never came");
        }
    }

    /// A fake `terraform`; `$LEDGER` is a file that it can write to.
    pub fn fake_terraform(&self, body: &str) -> PathBuf {
        let ledger = self.directory.path().join("ledger");
        std::fs::write(&ledger, "").unwrap();
        std::fs::set_permissions(&ledger, std::fs::Permissions::from_mode(0o666)).unwrap();
        let path = self.directory.path().join("terraform");
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in --version) echo 'Terraform v1.99.0'; exit 0;; init) exit 0;; esac\nLEDGER={}\n{body}\n",
            ledger.display()
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub fn ledger(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("ledger")).unwrap()
    }
}

pub fn terraform() -> PathBuf {
    std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|dir| dir.join("terraform"))
        .find(|path| path.is_file())
        .expect("these tests run a real Terraform: put `terraform` into PATH")
}
