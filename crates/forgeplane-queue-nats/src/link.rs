//! The connection to the broker, and whether it is there.

use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::{Client, ConnectOptions, Event, Request, Subject, rustls};
use bytes::Bytes;
use secrecy::ExposeSecret as _;
use tokio::sync::watch;

use crate::error::{ConnectError, Trouble};
use crate::options::{NatsAuth, NatsOptions};

/// How long one question to the broker may take.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// How long an answer to a delivery may take once the connection was lost. A broker that was killed may not remember the
/// delivery; it then says nothing and delivers again.
const ANSWER_AFTER_LOSS: Duration = Duration::from_secs(1);

/// A dead connection is noticed within about twice this.
const PING: Duration = Duration::from_secs(10);

/// The state of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LinkState {
    up: bool,
    /// How often the connection was lost: what the broker knew about this client was lost as often.
    pub(crate) losses: u64,
}

/// A connection that is made again whenever it breaks.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) client: Client,
    state: watch::Receiver<LinkState>,
}

impl Link {
    /// Connects once: at the start, a broker that is not there is an error to show and not to wait for.
    pub(crate) async fn connect(options: &NatsOptions, inbox_prefix: &str) -> Result<Self, ConnectError> {
        // Were two implementations of cryptography compiled in and none chosen, the TLS library would panic. An error
        // means that the program has chosen one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (events, state) = watch::channel(LinkState::default());
        let connect = with_auth(ConnectOptions::new(), options.auth.as_ref()).await?;
        let connect = with_tls(connect, options)?
            .name(&options.connection_name)
            .custom_inbox_prefix(inbox_prefix)
            .ping_interval(PING)
            .request_timeout(Some(ANSWER))
            .reconnect_delay_callback(|attempts| {
                backoff(attempts, Duration::from_millis(50), Duration::from_secs(4))
            })
            .event_callback(move |event| {
                note(&events, &event);
                std::future::ready(())
            });
        let client = connect.connect(options.servers.as_slice()).await?;
        let mut link = Self { client, state };
        // The event of the first connection is waited for, so that it is not taken for a later one.
        link.up().await.map_err(|gone| ConnectError::Unreachable(gone.into()))?;
        Ok(link)
    }

    /// Waits until the connection is there.
    ///
    /// # Errors
    /// When it will never be: the client has ended.
    pub(crate) async fn up(&mut self) -> Result<LinkState, Trouble> {
        self.state.wait_for(|it| it.up).await.map(|it| *it).map_err(|_| Trouble::Disconnected)
    }

    /// Waits until the connection is lost more often than it was in this state. Never returns if the client ended.
    pub(crate) async fn lost_since(&mut self, before: LinkState) {
        if self.state.wait_for(|it| it.losses > before.losses).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Does something that waits for the broker's word, and does it again when the connection is lost meanwhile: the
    /// word would never come.
    pub(crate) async fn through_losses<T, F>(
        &self,
        mut work: impl FnMut(LinkState) -> F,
    ) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, Trouble>>,
    {
        let mut link = self.clone();
        loop {
            let state = link.up().await?;
            tokio::select! {
                biased;
                done = work(state) => return done,
                () = link.lost_since(state) => {}
            }
        }
    }

    /// Sends an answer to a delivery and waits until the broker has it.
    pub(crate) async fn answer(&self, reply: &Subject, kind: AckKind) -> Result<(), Trouble> {
        let payload = Bytes::from(kind);
        let mut patience = ANSWER;
        let asking = self.through_losses(|_| {
            let request = Request::new().payload(payload.clone()).timeout(Some(patience));
            patience = ANSWER_AFTER_LOSS;
            async {
                self.client.send_request(reply.clone(), request).await?;
                Ok(())
            }
        });
        within(ANSWER, asking).await
    }
}

/// Gives up on something that takes longer than this.
pub(crate) async fn within<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    tokio::time::timeout(patience, work).await.unwrap_or(Err(Trouble::TimedOut))
}

async fn with_auth(connect: ConnectOptions, auth: Option<&NatsAuth>) -> Result<ConnectOptions, ConnectError> {
    Ok(match auth {
        None => connect,
        Some(NatsAuth::CredentialsFile(path)) => connect
            .credentials_file(path)
            .await
            .map_err(|source| ConnectError::File { path: path.clone(), source })?,
        Some(NatsAuth::NkeySeed(seed)) => connect.nkey(seed.expose_secret().to_owned()),
        Some(NatsAuth::Password { name, password }) => {
            connect.user_and_password(name.clone(), password.expose_secret().to_owned())
        }
        Some(NatsAuth::Token(token)) => connect.token(token.expose_secret().to_owned()),
    })
}

fn with_tls(connect: ConnectOptions, options: &NatsOptions) -> Result<ConnectOptions, ConnectError> {
    let tls = &options.tls;
    // Looked at here, because a file that cannot be read would only be told as a broken handshake.
    for path in [&tls.ca_file, &tls.cert_file, &tls.key_file].into_iter().flatten() {
        std::fs::File::open(path).map_err(|source| ConnectError::File { path: path.clone(), source })?;
    }
    let mut connect = connect.require_tls(tls.required);
    if let Some(ca) = &tls.ca_file {
        connect = connect.add_root_certificates(ca.clone());
    }
    if let (Some(cert), Some(key)) = (&tls.cert_file, &tls.key_file) {
        connect = connect.add_client_certificate(cert.clone(), key.clone());
    }
    Ok(connect)
}

/// Keeps the state of the connection, and writes down what happens to it.
fn note(state: &watch::Sender<LinkState>, event: &Event) {
    match event {
        Event::Connected => {
            tracing::info!("connected to the NATS server");
            state.send_modify(|it| it.up = true);
        }
        Event::Disconnected => {
            tracing::warn!("lost the connection to the NATS server; it is made again");
            state.send_modify(|it| *it = LinkState { up: false, losses: it.losses + 1 });
        }
        Event::ServerError(error) => tracing::warn!(%error, "the NATS server reports an error"),
        Event::ClientError(error) => tracing::warn!(%error, "the NATS connection reports an error"),
        other => tracing::info!(event = %other, "the NATS connection reports an event"),
    }
}

/// How long to wait before this attempt: nothing before the first, then longer and longer up to a limit, and
/// somewhere in the upper half of it, so that many that failed together do not come back together.
pub(crate) fn backoff(attempt: usize, first: Duration, limit: Duration) -> Duration {
    let Some(doublings) = attempt.checked_sub(2) else { return Duration::ZERO };
    let doublings = u32::try_from(doublings.min(16)).unwrap_or(16);
    let longest = first.saturating_mul(1 << doublings).min(limit);
    let mut random = [0; 4];
    // Without randomness the wait is as long as can be.
    let part = getrandom::fill(&mut random)
        .map_or(1.0, |()| 0.5 + f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX) / 2.0);
    longest.mul_f64(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_limit_and_differ() {
        let wait = |attempt| backoff(attempt, Duration::from_millis(50), Duration::from_secs(4));
        assert_eq!(wait(1), Duration::ZERO);
        assert!((25..=50).contains(&wait(2).as_millis()));
        assert!((100..=200).contains(&wait(4).as_millis()));
        for attempt in [9, 100, usize::MAX] {
            assert!((2_000..=4_000).contains(&wait(attempt).as_millis()));
        }
        assert_ne!(wait(usize::MAX), wait(usize::MAX));
    }
}
