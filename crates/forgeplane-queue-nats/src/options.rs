//! Where the broker is, how to prove who one is, and how jobs are kept.

use std::path::PathBuf;
use std::time::Duration;

use forgeplane_core::id::WorkerId;
use secrecy::SecretString;
use serde::Deserialize;

/// How to reach the broker and how it keeps the jobs.
///
/// Every option has a default; a configuration file with an unknown option is refused. `Debug` shows no secret.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsOptions {
    /// Addresses of the broker, such as `nats://host:4222` or `tls://host:4222`, without user or password.
    pub servers: Vec<String>,
    /// How the connection is encrypted.
    pub tls: NatsTls,
    /// How to prove who one is; absent: not at all.
    pub auth: Option<NatsAuth>,
    /// Name the broker shows for this connection.
    pub connection_name: String,
    /// Where answers of the broker are received: the first part of every reply subject. Absent: `_INBOX` for the
    /// coordinator, `_INBOX_<worker id>` for a worker.
    pub inbox_prefix: Option<String>,
    /// Name of the stream.
    pub stream: String,
    /// First part of the subjects of jobs; the last one is the worker's id.
    pub prefix: String,
    /// On how many servers each job is kept: 1 to 5. Only the coordinator uses this and what follows, except for
    /// `ack_wait`.
    pub replicas: usize,
    /// A job that was delivered and has not been answered for this long is delivered again. Whole seconds in a
    /// configuration file; the same for the coordinator and its workers.
    #[serde(rename = "ack_wait_seconds", deserialize_with = "seconds")]
    pub ack_wait: Duration,
    /// How long the broker remembers message ids to swallow duplicates. Whole seconds in a configuration file.
    #[serde(rename = "duplicate_window_seconds", deserialize_with = "seconds")]
    pub duplicate_window: Duration,
    /// At most this many jobs wait; publishing fails beyond.
    pub max_messages: u32,
    /// At most this many bytes of jobs wait; publishing fails beyond.
    pub max_bytes: u64,
}

impl Default for NatsOptions {
    fn default() -> Self {
        Self {
            servers: vec!["nats://127.0.0.1:4222".into()],
            tls: NatsTls::default(),
            auth: None,
            connection_name: "forgeplane".into(),
            inbox_prefix: None,
            stream: "FORGEPLANE_JOBS".into(),
            prefix: "fp.jobs".into(),
            replicas: 1,
            ack_wait: Duration::from_secs(60),
            duplicate_window: Duration::from_secs(120),
            max_messages: 1_000_000,
            max_bytes: 1 << 30,
        }
    }
}

/// How the connection is encrypted.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsTls {
    /// Whether to refuse a broker without TLS.
    pub required: bool,
    /// PEM file with the authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the client certificate and its chain.
    pub cert_file: Option<PathBuf>,
    /// PEM file with the private key of the client certificate.
    pub key_file: Option<PathBuf>,
}

/// How to prove who one is.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NatsAuth {
    /// A credentials file: a user JWT and its nkey seed.
    CredentialsFile(PathBuf),
    /// The seed of a user nkey, `SU…`.
    NkeySeed(SecretString),
    /// A user and a password.
    #[serde(rename = "user")]
    Password {
        /// The user.
        name: String,
        /// The password.
        password: SecretString,
    },
    /// A token.
    Token(SecretString),
}

/// What the broker must let a worker do, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPermissions {
    /// Subjects it may publish to.
    pub publish: Vec<String>,
    /// Subjects it may subscribe to.
    pub subscribe: Vec<String>,
}

/// An option that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the option `{option}` of the NATS queue cannot be used: {why}")]
pub struct InvalidOptions {
    /// Its name.
    pub option: &'static str,
    /// What is wrong and what to do.
    pub why: &'static str,
}

impl NatsOptions {
    /// What a worker's user on the broker needs: to pull from its own consumer, to answer its own deliveries and
    /// to receive answers. Neither creating consumers nor reading the stream, which would reach others' jobs.
    #[must_use]
    pub fn worker_permissions(&self, worker: WorkerId) -> WorkerPermissions {
        let stream = &self.stream;
        WorkerPermissions {
            publish: vec![
                format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{worker}"),
                format!("$JS.ACK.{stream}.{worker}.>"),
            ],
            subscribe: vec![format!("{}.>", self.worker_inbox(worker))],
        }
    }

    /// Where a worker receives answers.
    pub(crate) fn worker_inbox(&self, worker: WorkerId) -> String {
        self.inbox_prefix.clone().unwrap_or_else(|| format!("_INBOX_{worker}"))
    }

    /// The subject of a worker's jobs.
    pub(crate) fn subject(&self, worker: WorkerId) -> String {
        format!("{}.{worker}", self.prefix)
    }

    pub(crate) fn check(&self) -> Result<(), InvalidOptions> {
        let refuse = |option, why| Err(InvalidOptions { option, why });
        if self.servers.is_empty() {
            return refuse("servers", "give at least one address");
        }
        // An address is written into logs.
        if self.servers.iter().any(|it| it.contains('@')) {
            return refuse("servers", "an address must not hold credentials: use the option `auth`");
        }
        if !is_token(&self.stream) {
            return refuse("stream", "use letters, digits, `-` and `_`");
        }
        if !self.prefix.split('.').all(is_token) {
            return refuse("prefix", "use words of letters, digits, `-` and `_` with dots between them");
        }
        if self.inbox_prefix.as_ref().is_some_and(|it| !it.split('.').all(is_token)) {
            return refuse(
                "inbox_prefix",
                "use words of letters, digits, `-` and `_` with dots between them",
            );
        }
        if !(1..=5).contains(&self.replicas) {
            return refuse("replicas", "use 1 to 5");
        }
        if self.ack_wait < Duration::from_secs(1) {
            return refuse("ack_wait_seconds", "use at least 1");
        }
        if self.duplicate_window < Duration::from_millis(100) {
            return refuse("duplicate_window_seconds", "use at least 1");
        }
        if self.max_messages == 0 {
            return refuse("max_messages", "use at least 1");
        }
        if self.max_bytes == 0 || i64::try_from(self.max_bytes).is_err() {
            return refuse("max_bytes", "use 1 to 9223372036854775807");
        }
        if self.tls.cert_file.is_some() != self.tls.key_file.is_some() {
            return refuse("tls", "give `cert_file` and `key_file` together");
        }
        Ok(())
    }
}

/// Whether this is one part of a subject that means nothing but itself.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn seconds<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    u64::deserialize(from).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_file_carries_the_options() {
        let options: NatsOptions = serde_json::from_str(
            r#"{"servers": ["tls://broker:4222"], "tls": {"required": true, "ca_file": "/ca.pem"},
                "auth": {"user": {"name": "coordinator", "password": "pa55"}}, "ack_wait_seconds": 30}"#,
        )
        .unwrap();
        assert_eq!(options.ack_wait, Duration::from_secs(30));
        assert_eq!(options.stream, "FORGEPLANE_JOBS");
        assert!(options.tls.required);
        options.check().unwrap();
        assert!(!format!("{options:?}").contains("pa55"));
    }

    #[test]
    fn an_unknown_option_is_refused() {
        for text in [r#"{"server": []}"#, r#"{"tls": {"ca": "x"}}"#, r#"{"auth": {"pass": "x"}}"#] {
            assert!(serde_json::from_str::<NatsOptions>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn g25_a_name_that_means_more_than_itself_on_the_broker_is_refused() {
        for name in ["", "*", ">", "a b", "a\r\nPUB x 0", "a.>", "a..b", ".", "é"] {
            let prefix = NatsOptions { prefix: name.into(), ..NatsOptions::default() };
            assert_eq!(prefix.check().unwrap_err().option, "prefix", "{name:?}");
            let stream = NatsOptions { stream: name.into(), ..NatsOptions::default() };
            assert_eq!(stream.check().unwrap_err().option, "stream", "{name:?}");
            let inbox = NatsOptions { inbox_prefix: Some(name.into()), ..NatsOptions::default() };
            assert_eq!(inbox.check().unwrap_err().option, "inbox_prefix", "{name:?}");
        }
    }

    #[test]
    fn credentials_in_an_address_are_refused() {
        let options = NatsOptions { servers: vec!["nats://me:pa55@broker".into()], ..NatsOptions::default() };
        let error = options.check().unwrap_err();
        assert_eq!(error.option, "servers");
        assert!(!error.to_string().contains("pa55"));
    }
}
