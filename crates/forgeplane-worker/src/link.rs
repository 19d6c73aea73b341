//! The worker's link to its coordinator: one session, renewed when it ends.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ed25519_dalek::{Signer as _, SigningKey};
use forgeplane_core::evidence::{Envelope, KeyRotation, registration_message};
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Name;
use forgeplane_core::ports::*;
use forgeplane_core::{Code, Refusal};
use secrecy::SecretString;
use tokio::sync::{Mutex, RwLock};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::WorkerError;
use crate::identity::Identity;
use crate::retry::Pause;

/// What the worker says of itself when it registers.
#[derive(Debug, Clone)]
pub(crate) struct Introduction {
    pub(crate) name: Name,
    pub(crate) pool: Name,
    pub(crate) capabilities: BTreeMap<String, String>,
    pub(crate) unsafe_no_isolation: bool,
    pub(crate) enrollment_token: Option<SecretString>,
}

/// What is known of this worker's registrations after the first.
#[derive(Default)]
struct Renewals {
    /// Tries since the last one that was answered; each may have been carried out.
    tries: u64,
    /// When somebody else registered with this identity, lately.
    foreign: Vec<Instant>,
}

/// For how many heartbeats after its start a worker gives way to another one with its identity at once.
const NEWCOMER: u32 = 6;
/// How often somebody else may register with this identity before it serves no more, and within which time. A proxy may
/// repeat one of our own registrations, but not again and again.
const FOREIGN: (usize, Duration) = (3, Duration::from_secs(120));

/// A registered link. Calls renew an ended session once and go on; what runs is not touched by that.
pub(crate) struct Link {
    entropy: Arc<dyn Entropy>,
    control: Arc<dyn ControlPlane>,
    identity: Arc<Identity>,
    introduction: Introduction,
    session: RwLock<Session>,
    renewing: Mutex<Renewals>,
    opened: Instant,
    /// Why this worker's identity serves no more, once that is known.
    refusal: OnceLock<Refusal>,
    /// Cancelled together with that.
    pub(crate) out_of_service: CancellationToken,
    pub(crate) worker: WorkerId,
    pub(crate) coordinator_key: [u8; 32],
    pub(crate) heartbeat: Duration,
}

/// Registers with the key in force. If that is not the coordinator's any more, the answer to a rotation may have been
/// lost: then with the one that was to follow.
async fn register(
    control: &dyn ControlPlane,
    identity: &Identity,
    introduction: &Introduction,
) -> Result<Registered, WorkerError> {
    let refused = match register_with(control, &identity.signing_key(), introduction).await {
        Err(ControlError::Refused(refusal)) if refusal.code == Code::KeyUnusable => refusal,
        other => return Ok(other?),
    };
    let Some(next) = identity.next_key()? else { return Err(ControlError::Refused(refused).into()) };
    match register_with(control, &next, introduction).await {
        Ok(registered) => {
            identity.adopt(next)?;
            Ok(registered)
        }
        Err(ControlError::Refused(_)) => Err(ControlError::Refused(refused).into()),
        Err(unavailable) => Err(unavailable.into()),
    }
}

async fn register_with(
    control: &dyn ControlPlane,
    key: &SigningKey,
    introduction: &Introduction,
) -> Result<Registered, ControlError> {
    let challenge = control.challenge().await?;
    let message = registration_message(&challenge.0, introduction.name.as_str(), introduction.pool.as_str());
    let proof = key.sign(&message).to_bytes();
    control
        .register(Registration {
            name: introduction.name.clone(),
            pool: introduction.pool.clone(),
            capabilities: introduction.capabilities.clone(),
            // All runs of a worker share one IaC user id, so it runs one at a time.
            max_jobs: 1,
            unsafe_no_isolation: introduction.unsafe_no_isolation,
            public_key: key.verifying_key().to_bytes(),
            enrollment_token: introduction.enrollment_token.clone(),
            challenge,
            proof,
            certificate: None,
        })
        .await
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Link {$(
            $(#[$doc])*
            pub(crate) async fn $name(&self, $($arg: $type),*) -> Result<$answer, ControlError> {
                let session = self.session.read().await.clone();
                let answer = match self.control.$name(&session, $($arg.clone()),*).await {
                    Err(ControlError::Refused(refusal)) if refusal.code == Code::Unauthenticated => {
                        let session = self.renew(session.incarnation).await?;
                        self.control.$name(&session, $($arg),*).await
                    }
                    other => other,
                };
                answer.map_err(|error| self.unless_about_us(error))
            }
        )*}
    };
}

calls! {
    heartbeat(heartbeat: Heartbeat) -> Orders;
    bundle(attempt: AttemptRef) -> Bundle;
    claim(request: ClaimRequest) -> ClaimGrant;
    append_log(append: LogAppend) -> u64;
    put_state(write: StateWrite) -> u64;
    put_artifact(upload: ArtifactUpload) -> ();
    rotate_key(rotation: Envelope) -> ();
    conclude(envelope: Envelope) -> ReceiptAnswer;
}

impl Link {
    /// Registers, pins the coordinator's key, and opens the link.
    pub(crate) async fn open(
        entropy: Arc<dyn Entropy>,
        control: Arc<dyn ControlPlane>,
        identity: Arc<Identity>,
        introduction: Introduction,
    ) -> Result<Self, WorkerError> {
        let registered = register(&*control, &identity, &introduction).await?;
        identity.pin_coordinator(registered.coordinator_key)?;
        Ok(Self {
            entropy,
            control,
            identity,
            introduction,
            worker: registered.session.worker,
            coordinator_key: registered.coordinator_key,
            heartbeat: registered.heartbeat,
            session: RwLock::new(registered.session),
            renewing: Mutex::default(),
            opened: Instant::now(),
            refusal: OnceLock::new(),
            out_of_service: CancellationToken::new(),
        })
    }

    /// The pauses between tries to reach the coordinator.
    pub(crate) fn pause(&self) -> Pause {
        Pause::new(Arc::clone(&self.entropy))
    }

    /// Waits for orders other than those known.
    pub(crate) async fn orders(&self, known: &Orders) -> Result<Orders, ControlError> {
        let session = self.session.read().await.clone();
        let answer = match self.control.orders(&session, known).await {
            Err(ControlError::Refused(refusal)) if refusal.code == Code::Unauthenticated => {
                let session = self.renew(session.incarnation).await?;
                self.control.orders(&session, known).await
            }
            other => other,
        };
        answer.map_err(|error| self.unless_about_us(error))
    }

    /// Replaces the key. The next one is on disk before the coordinator hears of it, and takes the old one's place when
    /// the coordinator has it; whatever is lost on the way, one of the two registers this worker.
    pub(crate) async fn replace_key(&self) -> Result<(), WorkerError> {
        let (old, next) = (self.identity.signing_key(), self.identity.make_next_key()?);
        let rotation = KeyRotation {
            worker: self.worker,
            old_key: self.identity.key_id(),
            new_key: hex::encode(next.verifying_key().to_bytes()),
        };
        let unsigned = |error| ControlError::Unavailable(Box::new(error));
        let envelope = Envelope::sign(&rotation, &old)
            .and_then(|signed| signed.countersign::<KeyRotation>(&next))
            .map_err(unsigned)?;
        self.rotate_key(envelope).await?;
        self.identity.adopt(next)?;
        tracing::info!(key = %self.identity.key_id(), "the key was replaced");
        Ok(())
    }

    /// A new session, unless somebody else has renewed it since `incarnation`.
    async fn renew(&self, incarnation: u64) -> Result<Session, ControlError> {
        let mut renewals = self.renewing.lock().await;
        let current = self.session.read().await.clone();
        if current.incarnation != incarnation {
            return Ok(current);
        }
        renewals.tries += 1;
        let registered = register(&*self.control, &self.identity, &self.introduction).await.map_err(
            |error| match error {
                WorkerError::Control(error) => self.unless_about_us(error),
                local => ControlError::Unavailable(local.into()),
            },
        )?;
        if registered.coordinator_key != self.coordinator_key {
            return Err(self.retire(Refusal::new(
                Code::InvalidEvidence,
                "the coordinator's key changed while this worker ran",
            )));
        }
        tracing::info!(incarnation = registered.session.incarnation, "registered again");
        *self.session.write().await = registered.session.clone();
        let since = registered.session.incarnation.saturating_sub(current.incarnation);
        if since > std::mem::take(&mut renewals.tries) {
            self.is_not_alone(&mut renewals)?;
        }
        Ok(registered.session)
    }

    /// Somebody else has registered with this identity: a copy of the state directory is in use elsewhere. Whoever started
    /// last gives way at once; if that does not end it, both serve no more, because neither knows what the other one does.
    fn is_not_alone(&self, renewals: &mut Renewals) -> Result<(), ControlError> {
        let now = Instant::now();
        renewals.foreign.retain(|at| now - *at < FOREIGN.1);
        renewals.foreign.push(now);
        tracing::error!(worker = %self.worker, "another worker has registered with this worker's identity");
        if self.opened.elapsed() > self.heartbeat * NEWCOMER && renewals.foreign.len() < FOREIGN.0 {
            return Ok(());
        }
        Err(self.retire(
            Refusal::new(Code::IdentityInUse, "another worker uses this worker's identity")
                .way_out("give each worker a state directory of its own, and never start a copy of one"),
        ))
    }

    /// A refusal of *this worker* says nothing about the attempt a call was for: taken for an answer, it
    /// would make the worker drop an intent or an outcome that the coordinator still waits for.
    fn unless_about_us(&self, error: ControlError) -> ControlError {
        match error {
            ControlError::Refused(refusal) => match refusal.code {
                Code::WorkerDisabled | Code::KeyUnusable | Code::EnrollmentRefused => self.retire(refusal),
                Code::Unauthenticated => ControlError::Unavailable(refusal.into()),
                _ => ControlError::Refused(refusal),
            },
            unavailable @ ControlError::Unavailable(_) => unavailable,
        }
    }

    fn retire(&self, refusal: Refusal) -> ControlError {
        let _ = self.refusal.set(refusal.clone());
        self.out_of_service.cancel();
        ControlError::Unavailable(refusal.into())
    }

    /// Why the coordinator has taken this worker out of service, if it has.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        self.refusal.get()
    }
}
