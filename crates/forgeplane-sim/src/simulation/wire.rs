//! The network between workers and coordinators: it loses, repeats and delays, in either direction.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use forgeplane_core::coordinator::{Coordinator, InProcess};
use forgeplane_core::evidence::Envelope;
use forgeplane_core::id::WorkerId;
use forgeplane_core::model::Job;
use forgeplane_core::ports::*;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::life::Life;
use super::lock;
use super::world::World;

/// Which way a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Requests,
    Answers,
    Both,
}

/// The coordinators as they are reached from outside, and the state of the lines to them.
pub(super) struct Network {
    pub(super) world: Arc<World>,
    homes: Vec<Mutex<Option<(Life, Coordinator)>>>,
    /// By worker and coordinator.
    cuts: Mutex<BTreeMap<(usize, usize), (Cut, Instant)>>,
}

impl Network {
    pub(super) fn new(world: Arc<World>, coordinators: usize) -> Self {
        let homes = (0..coordinators).map(|_| Mutex::default()).collect();
        Self { world, homes, cuts: Mutex::default() }
    }

    pub(super) fn coordinators(&self) -> usize {
        self.homes.len()
    }

    /// A coordinator is there, or no longer.
    pub(super) fn set(&self, index: usize, home: Option<(Life, Coordinator)>) {
        *lock(&self.homes[index]) = home;
    }

    /// A coordinator, if it lives.
    pub(super) fn get(&self, index: usize) -> Option<(Life, Coordinator)> {
        lock(&self.homes[index]).clone().filter(|(life, _)| !life.is_over())
    }

    pub(super) fn cut(&self, worker: usize, coordinator: usize, cut: Cut, how_long: Duration) {
        lock(&self.cuts).insert((worker, coordinator), (cut, Instant::now() + how_long));
    }

    pub(super) fn heal(&self) {
        lock(&self.cuts).clear();
    }

    fn is_cut(&self, worker: usize, coordinator: usize, way: Cut) -> bool {
        lock(&self.cuts)
            .get(&(worker, coordinator))
            .is_some_and(|(cut, until)| (*cut == Cut::Both || *cut == way) && Instant::now() < *until)
    }
}

/// A worker's end of the network.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) network: Arc<Network>,
    pub(super) life: Life,
    pub(super) worker: usize,
    /// Counts the coordinators it has tried, one after the other.
    pub(super) home: Arc<AtomicUsize>,
}

fn away(why: &'static str) -> ControlError {
    ControlError::Unavailable(why.into())
}

impl Wire {
    /// The coordinator it is connected to.
    fn index(&self) -> usize {
        self.home.load(Ordering::Relaxed) % self.network.coordinators()
    }

    fn elsewhere(&self) {
        self.home.fetch_add(1, Ordering::Relaxed);
    }

    /// Nobody answers, until the caller's transport gives up.
    async fn lost(&self, why: &'static str) -> ControlError {
        self.network.world.count(|c| c.losses += 1);
        tokio::time::sleep(self.network.world.fate.millis(4_000)).await;
        self.life.alive().await;
        self.elsewhere();
        away(why)
    }

    async fn call<T, F>(&self, call: F) -> Result<T, ControlError>
    where
        T: Send + 'static,
        F: Fn(InProcess) -> BoxFuture<'static, Result<T, ControlError>> + Send + Sync + 'static,
    {
        self.life.pass().await;
        let (network, fate) = (&self.network, &self.network.world.fate);
        let index = self.index();
        if network.is_cut(self.worker, index, Cut::Requests) || fate.fails(15) {
            return Err(self.lost("the request was lost").await);
        }
        let latency = fate.latency();
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let Some((life, coordinator)) = network.get(index) else {
            self.elsewhere();
            return Err(away("nobody listens"));
        };
        let call = Arc::new(call);
        let (tell, answer) = oneshot::channel();
        let (first, plane) = (Arc::clone(&call), coordinator.in_process());
        life.spawn(async move {
            // A caller that went away does not need its answer.
            let _ = tell.send(first(plane).await);
        });
        if fate.fails(20) {
            network.world.count(|c| c.duplicates += 1);
            let (again, plane, later) = (Arc::clone(&call), coordinator.in_process(), fate.millis(5_000));
            life.spawn(async move {
                tokio::time::sleep(later).await;
                drop(again(plane).await);
            });
        }
        let Ok(answer) = answer.await else {
            self.elsewhere();
            return Err(away("the connection was closed"));
        };
        if network.is_cut(self.worker, index, Cut::Answers) || fate.fails(15) {
            return Err(self.lost("the answer was lost").await);
        }
        self.life.pass().await;
        answer
    }
}

/// Each call of the control plane, sent over the network.
macro_rules! over_the_network {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl ControlPlane for Wire {
            async fn challenge(&self) -> Result<Challenge, ControlError> {
                self.call(|plane| Box::pin(async move { plane.challenge().await })).await
            }

            async fn register(&self, registration: Registration) -> Result<Registered, ControlError> {
                self.call(move |plane| {
                    let registration = registration.clone();
                    Box::pin(async move { plane.register(registration).await })
                }).await
            }

            async fn orders(&self, session: &Session, known: &Orders) -> Result<Orders, ControlError> {
                let (session, known) = (session.clone(), known.clone());
                self.call(move |plane| {
                    let (session, known) = (session.clone(), known.clone());
                    Box::pin(async move { plane.orders(&session, &known).await })
                }).await
            }

            $(async fn $name(&self, session: &Session, $($arg: $type),*) -> Result<$answer, ControlError> {
                let session = session.clone();
                self.call(move |plane| {
                    let (session, $($arg),*) = (session.clone(), $($arg.clone()),*);
                    Box::pin(async move { plane.$name(&session, $($arg),*).await })
                }).await
            })*
        }
    };
}

over_the_network! {
    heartbeat(heartbeat: Heartbeat) -> Orders;
    bundle(attempt: AttemptRef) -> Bundle;
    claim(request: ClaimRequest) -> ClaimGrant;
    append_log(append: LogAppend) -> u64;
    put_state(write: StateWrite) -> u64;
    put_artifact(upload: ArtifactUpload) -> ();
    rotate_key(rotation: Envelope) -> ();
    conclude(envelope: Envelope) -> ReceiptAnswer;
}

/// Jobs straight from the coordinators, where there is no broker.
#[async_trait]
impl JobQueue for Wire {
    async fn publish(&self, _: &Job) -> Result<(), QueueError> {
        Err(QueueError("workers publish nothing".into()))
    }

    async fn subscribe(&self, worker: WorkerId) -> Result<Box<dyn JobStream>, QueueError> {
        self.life.pass().await;
        let index = self.index();
        let cut = self.network.is_cut(self.worker, index, Cut::Requests);
        let Some((life, coordinator)) = self.network.get(index).filter(|_| !cut) else {
            self.elsewhere();
            return Err(QueueError("nobody listens".into()));
        };
        let stream = coordinator.queue().subscribe(worker).await?;
        Ok(Box::new(Pulling { wire: self.clone(), of: life, index, stream }))
    }
}

struct Pulling {
    wire: Wire,
    of: Life,
    index: usize,
    stream: Box<dyn JobStream>,
}

#[async_trait]
impl JobStream for Pulling {
    async fn next(&mut self) -> Result<Box<dyn Delivery>, QueueError> {
        let delivery = tokio::select! {
            biased;
            () = self.of.over() => Err(QueueError("the connection was closed".into())),
            delivery = self.stream.next() => delivery,
        };
        self.wire.life.pass().await;
        let lost = self.wire.network.is_cut(self.wire.worker, self.index, Cut::Answers)
            || self.wire.network.world.fate.fails(10);
        let Some(delivery) = delivery.ok().filter(|_| !lost) else {
            self.wire.elsewhere();
            return Err(QueueError("the connection was lost".into()));
        };
        Ok(Box::new(Pulled { life: self.wire.life.clone(), of: self.of.clone(), delivery }))
    }
}

/// A delivery whose answer goes to the coordinator it came from.
struct Pulled {
    life: Life,
    of: Life,
    delivery: Box<dyn Delivery>,
}

async fn told(
    life: &Life,
    of: &Life,
    answer: impl Future<Output = Result<(), QueueError>>,
) -> Result<(), QueueError> {
    life.pass().await;
    tokio::select! {
        biased;
        () = of.over() => Err(QueueError("the connection was closed".into())),
        told = answer => told,
    }
}

#[async_trait]
impl Delivery for Pulled {
    fn job(&self) -> &Job {
        self.delivery.job()
    }

    async fn ack(self: Box<Self>) -> Result<(), QueueError> {
        told(&self.life, &self.of, self.delivery.ack()).await
    }

    async fn nak(self: Box<Self>, delay: Duration) -> Result<(), QueueError> {
        told(&self.life, &self.of, self.delivery.nak(delay)).await
    }

    async fn in_progress(&self) -> Result<(), QueueError> {
        told(&self.life, &self.of, self.delivery.in_progress()).await
    }
}
