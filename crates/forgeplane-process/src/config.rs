//! Configuration: defaults, a TOML file, the environment, flags; later ones win.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use figment::providers::{Format as _, Serialized, Toml};
use figment::util::nest;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Failure, LogFormat};

/// The flags that every process has.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigArgs {
    /// Configuration file (TOML); also the environment variable that ends in `_CONFIG`
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the configuration in force, secrets blotted out, and end
    #[arg(long)]
    pub print_config: bool,
    /// Overrule one setting, such as `--set log.filter=debug`; not for secrets, which other users could see
    #[arg(long = "set", global = true, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
}

/// Where a process tells operators' tools of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbesConfig {
    /// The listener for [`serve_probes`](crate::serve_probes); none if absent.
    pub listen: Option<SocketAddr>,
}

impl ProbesConfig {
    /// On this port of the loopback interface.
    #[must_use]
    pub fn local(port: u16) -> Self {
        Self { listen: Some(SocketAddr::from(([127, 0, 0, 1], port))) }
    }
}

/// What a process logs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// How lines look.
    pub format: LogFormat,
    /// Which are written, as `tracing` filters them.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".into() }
    }
}

/// Everything a process was told, merged.
#[derive(Debug)]
pub struct Sources {
    figment: Figment,
}

/// One setting, from a variable or a flag.
struct Given {
    from: String,
    path: String,
    value: Value,
}

impl Given {
    fn new(from: String, path: String, text: String) -> Self {
        let last = path.rsplit('.').next().unwrap_or(&path);
        // A password of digits is a text all the same.
        let value = if is_secret(last) { text.into() } else { parse(&text) };
        Self { from, path, value }
    }
}

impl Provider for Given {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.from.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(nest(&self.path, self.value.clone()).into_dict().unwrap_or_default()))
    }
}

/// What a text says: a number, a truth value, a list, or itself.
fn parse(text: &str) -> Value {
    match text.parse() {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

/// Whether a setting of this name is nobody else's business.
fn is_secret(name: &str) -> bool {
    let names = ["password", "token", "seed", "secret"];
    !name.ends_with("_file") && names.iter().any(|secret| name.contains(secret))
}

fn invalid(error: impl ToString) -> Failure {
    Failure::new("config_invalid", error.to_string())
}

impl Sources {
    /// Merges `defaults`, the file, the variables that begin with `prefix` (`<prefix>API__LISTEN` is `api.listen`) and
    /// the flags.
    ///
    /// # Errors
    /// A file that is not there, a flag that is no setting.
    pub fn read(prefix: &str, defaults: &impl Serialize, args: &ConfigArgs) -> Result<Self, Failure> {
        let mut figment = Figment::from(Serialized::defaults(defaults));
        let from_environment = std::env::var_os(format!("{prefix}CONFIG")).map(PathBuf::from);
        if let Some(file) = args.config.as_ref().or(from_environment.as_ref()) {
            if !file.is_file() {
                return Err(Failure::new("config_missing", format!("there is no file {}", file.display())));
            }
            keep_private(file)?;
            figment = figment.merge(Toml::file_exact(file));
        }
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.to_str().filter(|name| *name != format!("{prefix}CONFIG")) else {
                continue;
            };
            let Some(path) = name.strip_prefix(prefix) else { continue };
            let value = value
                .into_string()
                .map_err(|_| Failure::new("config_invalid", format!("the value of {name} is not text")))?;
            let path = path.to_ascii_lowercase().replace("__", ".");
            figment = figment.merge(Given::new(format!("environment variable {name}"), path, value));
        }
        for flag in &args.set {
            let (path, value) = flag
                .split_once('=')
                .ok_or_else(|| Failure::new("flag_invalid", format!("--set {flag}: expected NAME=VALUE")))?;
            let from = format!("flag --set {path}");
            figment = figment.merge(Given::new(from, path.to_owned(), value.to_owned()));
        }
        Ok(Self { figment })
    }

    /// The configuration.
    ///
    /// # Errors
    /// A setting that nobody knows, one that is missing, a value that does not fit. No secret is told.
    pub fn extract<C: DeserializeOwned>(&self) -> Result<C, Failure> {
        self.figment.extract().map_err(|error| {
            let failure = match error.path.last().filter(|name| is_secret(name)) {
                Some(_) => invalid(format!("`{}` is not a text", error.path.join("."))),
                None => invalid(error),
            };
            failure.way_out("`--print-config` shows what is in force; the names are in docs/configuration.md")
        })
    }

    /// What is in force, as a file would say it, with secrets blotted out.
    ///
    /// # Errors
    /// When a file or variable cannot be read at all.
    pub fn print(&self) -> Result<String, Failure> {
        // What is not set is left out: TOML has no word for it.
        let settings: Dict = self.figment.extract().map_err(invalid)?;
        let mut table = toml::Table::try_from(&settings).map_err(invalid)?;
        blot(&mut table);
        toml::to_string_pretty(&table).map_err(invalid)
    }
}

/// Refuses a configuration file that holds secrets and that everybody on the host can read, tools included.
fn keep_private(file: &Path) -> Result<(), Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| Failure::new("file_unreadable", format!("{}: {e}", file.display())))?;
    // One that is no TOML is told of where it is read.
    let Ok(table) = text.parse::<toml::Table>() else { return Ok(()) };
    let mut blotted = table.clone();
    blot(&mut blotted);
    if blotted == table { Ok(()) } else { refuse_exposed("the configuration", file) }
}

fn refuse_exposed(what: &str, file: &Path) -> Result<(), Failure> {
    let mode = std::fs::metadata(file).map(|metadata| metadata.permissions().mode());
    let mode = mode.map_err(|e| Failure::new("file_unreadable", format!("{}: {e}", file.display())))?;
    if mode & 0o007 == 0 {
        return Ok(());
    }
    let problem =
        format!("{what}: {} holds a secret, and everybody on this host can read it", file.display());
    Err(Failure::new("secret_exposed", problem)
        .way_out("take the permissions of others away with `chmod o=`"))
}

/// Replaces secrets.
fn blot(table: &mut toml::Table) {
    for (name, value) in table {
        match value {
            toml::Value::Table(inner) => blot(inner),
            toml::Value::Array(items) => items.iter_mut().for_each(blot_url),
            value if is_secret(name) => *value = "***".into(),
            value => blot_url(value),
        }
    }
}

/// Replaces the password in a URL, whatever the setting is called.
fn blot_url(value: &mut toml::Value) {
    let toml::Value::String(text) = value else { return };
    let Some((scheme, rest)) = text.split_once("://") else { return };
    let Some((who, place)) = rest.rsplit_once('@') else { return };
    let user = who.split_once(':').map_or(who, |(user, _)| user);
    *value = format!("{scheme}://{user}:***@{place}").into();
}

/// Whether a path can be read at all; used for files that a setting names.
///
/// # Errors
/// [`Failure`] with the setting's name.
pub fn read_file(setting: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|e| Failure::new("file_unreadable", format!("`{setting}`: {}: {e}", path.display())))
}

/// As [`read_file`], for a file that is a secret: a key, a token.
///
/// # Errors
/// As [`read_file`]; also when everybody on the host can read it.
pub fn read_secret_file(setting: &str, path: &Path) -> Result<SecretString, Failure> {
    let bytes = read_file(setting, path)?;
    refuse_exposed(&format!("`{setting}`"), path)?;
    String::from_utf8(bytes)
        .map(SecretString::from)
        .map_err(|_| Failure::new("file_unreadable", format!("`{setting}`: {} is not text", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_that_everybody_can_read_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::write(&file, "name = \"x\"\nurl = \"nats://host\"\n").unwrap();
        mode(0o644);
        keep_private(&file).unwrap();
        for secret in [
            "[nats.auth]\npassword = \"p\"",
            "url = \"postgres://user:p@host/db\"",
            "enrollment_token = \"t\"",
        ] {
            std::fs::write(&file, secret).unwrap();
            mode(0o644);
            let failure = keep_private(&file).unwrap_err();
            assert_eq!(failure.code(), "secret_exposed", "{secret}");
            mode(0o640);
            keep_private(&file).unwrap();
        }
        mode(0o604);
        assert_eq!(read_secret_file("workers.key", &file).unwrap_err().code(), "secret_exposed");
        mode(0o600);
        assert!(read_secret_file("workers.key", &file).is_ok());
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        name: String,
        limit: Limit,
        #[serde(default)]
        password: Option<SecretString>,
        #[serde(default)]
        urls: Vec<String>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Limit {
        jobs: u32,
    }

    #[derive(Serialize)]
    struct Defaults {
        limit: Limit,
    }

    fn read(set: &[&str], file: Option<&Path>) -> Result<Sources, Failure> {
        let set = set.iter().map(|s| (*s).to_owned()).collect();
        let args = ConfigArgs { config: file.map(Path::to_path_buf), print_config: false, set };
        Sources::read("FORGEPLANE_NO_SUCH_PROCESS_", &Defaults { limit: Limit { jobs: 4 } }, &args)
    }

    #[test]
    fn flags_overrule_the_file_and_the_file_the_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(&file, "name = \"file\"\n[limit]\njobs = 5\n").unwrap();
        let config: Settings = read(&["limit.jobs=6"], Some(&file)).unwrap().extract().unwrap();
        assert_eq!((config.name.as_str(), config.limit.jobs), ("file", 6));
        let config: Settings = read(&["name=flag"], None).unwrap().extract().unwrap();
        assert_eq!((config.name.as_str(), config.limit.jobs), ("flag", 4));
        assert_eq!(read(&[], Some(Path::new("/nowhere"))).unwrap_err().code(), "config_missing");
        assert_eq!(read(&["name"], None).unwrap_err().code(), "flag_invalid");
    }

    #[test]
    fn what_does_not_fit_is_told_by_name_and_source() {
        for (set, words) in [
            (&["name=x", "limit.job=1"][..], &["job", "--set limit.job"][..]),
            (&["name=x", "limit.jobs=many"], &["limit.jobs", "many"]),
            (&["limit.jobs=1"], &["name"]),
        ] {
            let error = read(set, None).unwrap().extract::<Settings>().unwrap_err();
            assert_eq!(error.code(), "config_invalid");
            for word in words {
                assert!(error.to_string().contains(word), "{error}");
            }
        }
    }

    #[test]
    fn secrets_are_texts_and_never_told() {
        let sources = read(&["name=x", "password=12345", "urls=[nats://u:12345@h:1,plain]"], None).unwrap();
        let config: Settings = sources.extract().unwrap();
        assert!(config.password.is_some());
        assert_eq!(config.urls.len(), 2);
        let printed = sources.print().unwrap();
        assert!(!printed.contains("12345"), "{printed}");
        assert!(printed.contains("nats://u:***@h:1") && printed.contains("plain"), "{printed}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(&file, "name = \"x\"\npassword = 12345\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let error = read(&[], Some(&file)).unwrap().extract::<Settings>().unwrap_err();
        assert!(error.to_string().contains("password") && !error.to_string().contains("12345"), "{error}");
    }
}
