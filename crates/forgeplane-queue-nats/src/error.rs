//! Why the broker cannot be used.

use std::io;
use std::path::PathBuf;

use async_nats::error::Error;
use async_nats::{ConnectErrorKind, jetstream};
use forgeplane_core::id::WorkerId;
use forgeplane_core::ports::{BoxError, QueueError};

use crate::options::InvalidOptions;

/// Why a connection to the broker was not made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// An option cannot be used.
    #[error(transparent)]
    Options(#[from] InvalidOptions),
    /// A file that the options name cannot be read.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The broker does not accept who one says one is.
    #[error(
        "the NATS server refused the credentials: check the option `auth` and the server's list of users"
    )]
    Unauthorized(#[source] BoxError),
    /// The connection cannot be encrypted as demanded.
    #[error(
        "no TLS connection to the NATS server was made ({0}): check the server's certificate and the option `tls`"
    )]
    Tls(#[source] BoxError),
    /// No server answers.
    #[error("no NATS server can be reached ({0}): check the option `servers` and that one is running")]
    Unreachable(#[source] BoxError),
    /// The broker answers, but keeps no jobs.
    #[error(
        "the NATS server offers no JetStream to this user ({0}): enable it in the server's configuration"
    )]
    NoJetStream(#[source] BoxError),
    /// There is a stream of this name that cannot hold jobs.
    #[error(
        "the stream {stream} has {field} {found} where {wanted} is needed, which cannot be changed: use another name in the option `stream`, or remove the stream"
    )]
    IncompatibleStream {
        /// Its name.
        stream: String,
        /// What is different.
        field: &'static str,
        /// What it is.
        found: String,
        /// What it must be.
        wanted: String,
    },
    /// The stream could not be made.
    #[error("the NATS server did not make the stream for the jobs: {0}")]
    Stream(#[source] BoxError),
}

impl ConnectError {
    /// Stable machine code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Options(_) => "nats_invalid_options",
            Self::File { .. } => "nats_file_unreadable",
            Self::Unauthorized(_) => "nats_unauthorized",
            Self::Tls(_) => "nats_tls",
            Self::Unreachable(_) => "nats_unreachable",
            Self::NoJetStream(_) => "nats_no_jetstream",
            Self::IncompatibleStream { .. } => "nats_incompatible_stream",
            Self::Stream(_) => "nats_stream_not_made",
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Stream(_))
    }
}

impl From<async_nats::ConnectError> for ConnectError {
    fn from(error: async_nats::ConnectError) -> Self {
        match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                Self::Unauthorized(error.into())
            }
            ConnectErrorKind::Tls => Self::Tls(error.into()),
            // A failed handshake arrives as an IO error around the one of the TLS library.
            _ if is_tls(&error) => Self::Tls(error.into()),
            _ => Self::Unreachable(error.into()),
        }
    }
}

fn is_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.is_some_and(|it| it.is::<async_nats::rustls::Error>()) || error.source().is_some_and(is_tls)
}

/// What goes wrong while the queue is used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("there is no connection to the NATS server; it is made again in the background")]
    Disconnected,
    #[error("the NATS server did not answer in time")]
    TimedOut,
    #[error("the stream cannot be made again: {0}")]
    Stream(#[from] ConnectError),
    #[error("the NATS server refused the consumer: {0}")]
    Consumer(#[from] jetstream::stream::ConsumerError),
    #[error("the NATS server did not take the job: {0}")]
    Publish(#[from] jetstream::context::PublishError),
    #[error("the NATS server did not take the answer to a delivery: {0}")]
    Answer(#[from] async_nats::RequestError),
    #[error("workers do not publish jobs: publish on the coordinator's end")]
    WorkersDoNotPublish,
    #[error("this connection belongs to {0}: connect as the other worker")]
    AnotherWorker(WorkerId),
}

impl From<Trouble> for QueueError {
    fn from(trouble: Trouble) -> Self {
        Self(trouble.into())
    }
}

/// The broker's own error code, where it answered with one.
pub(crate) trait ServerCode {
    fn server_code(&self) -> Option<jetstream::ErrorCode>;
}

impl ServerCode for Error<jetstream::stream::ConsumerErrorKind> {
    fn server_code(&self) -> Option<jetstream::ErrorCode> {
        match self.kind() {
            jetstream::stream::ConsumerErrorKind::JetStream(error) => Some(error.error_code()),
            _ => None,
        }
    }
}
