//! The worker's link to its coordinator: one session, renewed when it ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forgeplane_core::evidence::Envelope;
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Name;
use forgeplane_core::ports::*;
use forgeplane_core::{Code, Refusal};
use secrecy::SecretString;
use tokio::sync::{Mutex, RwLock};

use crate::error::WorkerError;
use crate::identity::Identity;

/// What the worker says of itself when it registers.
#[derive(Debug, Clone)]
pub(crate) struct Introduction {
    pub(crate) name: Name,
    pub(crate) pool: Name,
    pub(crate) capabilities: BTreeMap<String, String>,
    pub(crate) unsafe_no_isolation: bool,
    pub(crate) enrollment_token: Option<SecretString>,
}

/// A registered link. Calls renew an ended session once and go on; what runs is not touched by that.
pub(crate) struct Link {
    control: Arc<dyn ControlPlane>,
    identity: Arc<Identity>,
    introduction: Introduction,
    session: RwLock<Session>,
    renewing: Mutex<()>,
    pub(crate) worker: WorkerId,
    pub(crate) coordinator_key: [u8; 32],
    pub(crate) heartbeat: Duration,
}

async fn register(
    control: &dyn ControlPlane,
    identity: &Identity,
    introduction: &Introduction,
) -> Result<Registered, ControlError> {
    let challenge = control.challenge().await?;
    let proof = identity.prove(&challenge, &introduction.name, &introduction.pool);
    control
        .register(Registration {
            name: introduction.name.clone(),
            pool: introduction.pool.clone(),
            capabilities: introduction.capabilities.clone(),
            // All runs of a worker share one IaC user id, so it runs one at a time.
            max_jobs: 1,
            unsafe_no_isolation: introduction.unsafe_no_isolation,
            public_key: identity.public_key(),
            enrollment_token: introduction.enrollment_token.clone(),
            challenge,
            proof,
        })
        .await
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Link {$(
            $(#[$doc])*
            pub(crate) async fn $name(&self, $($arg: $type),*) -> Result<$answer, ControlError> {
                let session = self.session.read().await.clone();
                match self.control.$name(&session, $($arg.clone()),*).await {
                    Err(ControlError::Refused(refusal)) if refusal.code == Code::Unauthenticated => {
                        let session = self.renew(session.incarnation).await?;
                        self.control.$name(&session, $($arg),*).await
                    }
                    other => other,
                }
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
    conclude(envelope: Envelope) -> ReceiptAnswer;
}

impl Link {
    /// Registers, pins the coordinator's key, and opens the link.
    pub(crate) async fn open(
        control: Arc<dyn ControlPlane>,
        identity: Arc<Identity>,
        introduction: Introduction,
    ) -> Result<Self, WorkerError> {
        let registered = register(&*control, &identity, &introduction).await?;
        identity.pin_coordinator(registered.coordinator_key)?;
        Ok(Self {
            control,
            identity,
            introduction,
            worker: registered.session.worker,
            coordinator_key: registered.coordinator_key,
            heartbeat: registered.heartbeat,
            session: RwLock::new(registered.session),
            renewing: Mutex::new(()),
        })
    }

    /// Waits for orders other than those known.
    pub(crate) async fn orders(&self, known: &Orders) -> Result<Orders, ControlError> {
        let session = self.session.read().await.clone();
        match self.control.orders(&session, known).await {
            Err(ControlError::Refused(refusal)) if refusal.code == Code::Unauthenticated => {
                let session = self.renew(session.incarnation).await?;
                self.control.orders(&session, known).await
            }
            other => other,
        }
    }

    /// A new session, unless somebody else has renewed it since `incarnation`.
    async fn renew(&self, incarnation: u64) -> Result<Session, ControlError> {
        let _one = self.renewing.lock().await;
        let current = self.session.read().await.clone();
        if current.incarnation != incarnation {
            return Ok(current);
        }
        let registered = register(&*self.control, &self.identity, &self.introduction).await?;
        if registered.coordinator_key != self.coordinator_key {
            return Err(Refusal::new(
                Code::InvalidEvidence,
                "the coordinator's key changed while this worker ran",
            )
            .into());
        }
        tracing::info!(incarnation = registered.session.incarnation, "registered again");
        *self.session.write().await = registered.session.clone();
        Ok(registered.session)
    }
}
