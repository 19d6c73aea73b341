//! A control plane and a queue that do what a test says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use ed25519_dalek::SigningKey;
use forgeplane_core::digest::Digest;
use forgeplane_core::evidence::{Conclusion, Envelope, KeyRotation, public_key_from_hex};
use forgeplane_core::id::{AttemptId, WorkerId};
use forgeplane_core::model::*;
use forgeplane_core::ports::*;
use forgeplane_core::{Code, Refusal};
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

/// What happens to a call.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// It takes effect, and its answer is lost.
    Lost,
    /// It takes no effect and gets no answer.
    Down,
    /// It is refused.
    Refused(Code),
    /// A receipt for other bytes (only `conclude`).
    WrongReceipt,
}

/// What the worker did, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    Registered,
    Claim(Nonce),
    Conclude(String),
    Ack(Fence),
    Nak(Fence),
}

/// An attempt the control plane offers.
pub struct Offer {
    pub bundle: Bundle,
    pub timeout: Duration,
    pub claimed: Option<Nonce>,
    pub closed: bool,
    pub log: Vec<u8>,
    pub generation: u64,
    pub states: Vec<Bytes>,
    pub artifacts: BTreeMap<ArtifactKind, Digest>,
}

#[derive(Default)]
struct Inner {
    calls: Vec<Call>,
    faults: BTreeMap<&'static str, VecDeque<Fault>>,
    down: BTreeSet<&'static str>,
    offers: BTreeMap<AttemptId, Offer>,
    incarnation: u64,
    /// Sessions up to this incarnation are void.
    ended: u64,
    disabled: bool,
    worker_key: Option<[u8; 32]>,
    concluded: BTreeMap<AttemptId, Conclusion>,
    /// Looked at when a call arrives, to check what is on disk by then.
    at_call: Option<Box<dyn Fn(&'static str) + Send>>,
}

/// The control plane. Shared with the worker by [`Script::port`].
pub struct Script {
    inner: Mutex<Inner>,
    pub worker: WorkerId,
    key: SigningKey,
    orders: watch::Sender<Orders>,
    changed: watch::Sender<u64>,
    jobs: Mutex<Option<mpsc::UnboundedReceiver<Job>>>,
    deliver: mpsc::UnboundedSender<Job>,
    /// `in_progress` never returns.
    pub silent_queue: AtomicBool,
    pub in_progress: watch::Sender<u64>,
}

impl Script {
    pub fn new() -> Arc<Self> {
        let (deliver, jobs) = mpsc::unbounded_channel();
        Arc::new(Self {
            inner: Mutex::default(),
            worker: WorkerId::new(Timestamp::UNIX_EPOCH, [9; 10]),
            key: SigningKey::from_bytes(&[3; 32]),
            orders: watch::Sender::new(Orders::default()),
            changed: watch::Sender::new(0),
            jobs: Mutex::new(Some(jobs)),
            deliver,
            silent_queue: AtomicBool::new(false),
            in_progress: watch::Sender::new(0),
        })
    }

    pub fn key(&self) -> &SigningKey {
        &self.key
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// The next calls of this name fare like this, one each.
    pub fn next(&self, call: &'static str, faults: impl IntoIterator<Item = Fault>) {
        self.inner().faults.entry(call).or_default().extend(faults);
    }

    /// Calls of this name get no answer until [`Script::up`].
    pub fn down(&self, call: &'static str) {
        self.inner().down.insert(call);
    }

    pub fn up(&self, call: &'static str) {
        self.inner().down.remove(call);
    }

    /// The worker's identity is taken out of service, or put back.
    pub fn disable(&self, disabled: bool) {
        self.inner().disabled = disabled;
    }

    /// Every session is void.
    pub fn end_sessions(&self) {
        let mut inner = self.inner();
        inner.ended = inner.incarnation;
    }

    /// Somebody else registers with the worker's key.
    pub fn somebody_registers(&self) {
        self.inner().incarnation += 1;
    }

    pub fn at_call(&self, look: impl Fn(&'static str) + Send + 'static) {
        self.inner().at_call = Some(Box::new(look));
    }

    pub fn stop(&self, fence: Fence, cause: StopCause) {
        self.orders.send_modify(|orders| orders.stops.push(StopOrder { fence, cause }));
    }

    pub fn offer(&self, attempt: AttemptId, offer: Offer) {
        self.inner().offers.insert(attempt, offer);
    }

    pub fn publish(&self, job: &Job) {
        self.deliver.send(job.clone()).unwrap();
    }

    pub fn calls(&self) -> Vec<Call> {
        self.inner().calls.clone()
    }

    /// The envelopes that were sent, lost or not.
    pub fn sent(&self) -> Vec<String> {
        let envelope = |call| match call {
            Call::Conclude(envelope) => Some(envelope),
            _ => None,
        };
        self.calls().into_iter().filter_map(envelope).collect()
    }

    pub fn look<T>(&self, attempt: AttemptId, at: impl FnOnce(&mut Offer) -> T) -> T {
        at(self.inner().offers.get_mut(&attempt).unwrap())
    }

    pub fn conclusion(&self, attempt: AttemptId) -> Option<Conclusion> {
        self.inner().concluded.get(&attempt).cloned()
    }

    /// Waits until something holds, looked at after every call.
    pub async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while !holds(self) {
                changed.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(Duration::from_secs(90), waiting).await.is_err() {
            panic!("it did not happen: {what}; calls so far: {:#?}", self.calls());
        }
    }

    fn note(&self, call: Call) {
        self.inner().calls.push(call);
        self.tell();
    }

    fn tell(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    /// Lets a call take its effect, or not, as the test said.
    fn call<T>(
        &self,
        name: &'static str,
        session: Option<&Session>,
        effect: impl FnOnce(&mut Inner) -> Result<T, Refusal>,
    ) -> Result<T, ControlError> {
        let mut inner = self.inner();
        if let Some(look) = &inner.at_call {
            look(name);
        }
        let away = || ControlError::Unavailable("as the test wants it".into());
        let fault = if inner.down.contains(name) {
            Some(Fault::Down)
        } else {
            inner.faults.get_mut(name).and_then(VecDeque::pop_front)
        };
        let result = match fault {
            Some(Fault::Down) => Err(away()),
            Some(Fault::Refused(code)) => Err(Refusal::new(code, "as the test wants it").into()),
            _ if inner.disabled => Err(Refusal::new(Code::WorkerDisabled, "disconnected").into()),
            _ if session
                .is_some_and(|s| s.incarnation != inner.incarnation || s.incarnation <= inner.ended) =>
            {
                Err(Refusal::new(Code::Unauthenticated, "an old session").into())
            }
            Some(Fault::Lost) => {
                let _ = effect(&mut inner);
                Err(away())
            }
            _ => effect(&mut inner).map_err(ControlError::from),
        };
        drop(inner);
        self.tell();
        result
    }
}

fn offer(inner: &mut Inner, attempt: AttemptId) -> Result<&mut Offer, Refusal> {
    inner.offers.get_mut(&attempt).ok_or_else(|| Refusal::not_found("attempt", attempt))
}

fn claimed(inner: &mut Inner, claim: ClaimRef) -> Result<&mut Offer, Refusal> {
    let offer = offer(inner, claim.attempt)?;
    if offer.claimed != Some(claim.nonce) {
        return Err(Refusal::new(Code::FenceMismatch, "another claim"));
    }
    if offer.closed { Err(Refusal::new(Code::AttemptClosed, "closed")) } else { Ok(offer) }
}

/// The worker's end of a [`Script`].
#[derive(Clone)]
pub struct Port(pub Arc<Script>);

#[async_trait]
impl ControlPlane for Port {
    async fn challenge(&self) -> Result<Challenge, ControlError> {
        Ok(Challenge("challenge".into()))
    }

    async fn register(&self, registration: Registration) -> Result<Registered, ControlError> {
        let key = self.0.key.verifying_key().to_bytes();
        let incarnation = self.0.call("register", None, |inner| {
            inner.worker_key = Some(registration.public_key);
            inner.incarnation += 1;
            Ok(inner.incarnation)
        })?;
        self.0.note(Call::Registered);
        let session = Session {
            worker: self.0.worker,
            incarnation,
            token: "token".to_owned().into(),
            certificate: None,
        };
        Ok(Registered { session, coordinator_key: key, heartbeat: Duration::from_millis(50) })
    }

    async fn heartbeat(&self, session: &Session, _: Heartbeat) -> Result<Orders, ControlError> {
        self.0.call("heartbeat", Some(session), |_| Ok(()))?;
        Ok(self.0.orders.borrow().clone())
    }

    async fn orders(&self, session: &Session, known: &Orders) -> Result<Orders, ControlError> {
        self.0.call("orders", Some(session), |_| Ok(()))?;
        let mut orders = self.0.orders.subscribe();
        let news = orders.wait_for(|orders| orders != known);
        let _ = tokio::time::timeout(Duration::from_millis(200), news).await;
        Ok(self.0.orders.borrow().clone())
    }

    async fn bundle(&self, session: &Session, of: AttemptRef) -> Result<Bundle, ControlError> {
        self.0.call("bundle", Some(session), |inner| {
            let offer = offer(inner, of.attempt)?;
            if offer.closed {
                return Err(Refusal::new(Code::AttemptClosed, "closed"));
            }
            Ok(offer.bundle.clone())
        })
    }

    async fn claim(&self, session: &Session, request: ClaimRequest) -> Result<ClaimGrant, ControlError> {
        self.0.note(Call::Claim(request.nonce));
        self.0.call("claim", Some(session), |inner| {
            let offer = offer(inner, request.attempt.attempt)?;
            if offer.closed {
                return Err(Refusal::new(Code::AttemptClosed, "closed"));
            }
            if *offer.claimed.get_or_insert(request.nonce) != request.nonce {
                return Err(Refusal::new(Code::AlreadyClaimed, "claimed"));
            }
            let execution_timeout = offer.timeout;
            Ok(ClaimGrant { nonce: request.nonce, execution_timeout, secrets: Vec::new() })
        })
    }

    async fn append_log(&self, session: &Session, append: LogAppend) -> Result<u64, ControlError> {
        self.0.call("append_log", Some(session), |inner| {
            let log = &mut claimed(inner, append.claim)?.log;
            let mut at = usize::try_from(append.offset).unwrap();
            if at > log.len() {
                return Err(Refusal::new(Code::LogGap, "a gap"));
            }
            for frame in &append.frames {
                let known = log.len().saturating_sub(at).min(frame.bytes.len());
                assert_eq!(log[at..at + known], frame.bytes[..known], "what was sent again is the same");
                log.extend_from_slice(&frame.bytes[known..]);
                at += frame.bytes.len();
            }
            Ok(log.len() as u64)
        })
    }

    async fn put_state(&self, session: &Session, write: StateWrite) -> Result<u64, ControlError> {
        self.0.call("put_state", Some(session), |inner| {
            let offer = claimed(inner, write.claim)?;
            assert_eq!(Digest::of(&write.document), write.digest);
            if offer.states.last() == Some(&write.document) {
                return Ok(offer.generation);
            }
            if write.expected_generation != offer.generation {
                return Err(Refusal::new(Code::StaleState, "somebody else wrote"));
            }
            offer.generation += 1;
            offer.states.push(write.document);
            Ok(offer.generation)
        })
    }

    async fn put_artifact(&self, session: &Session, upload: ArtifactUpload) -> Result<(), ControlError> {
        self.0.call("put_artifact", Some(session), |inner| {
            claimed(inner, upload.claim)?.artifacts.insert(upload.kind, upload.digest);
            Ok(())
        })
    }

    async fn rotate_key(&self, session: &Session, rotation: Envelope) -> Result<(), ControlError> {
        self.0.call("rotate_key", Some(session), |inner| {
            let said: KeyRotation = rotation.peek().unwrap();
            let new = public_key_from_hex(&said.new_key).unwrap();
            rotation.verify_all::<KeyRotation>(&[inner.worker_key.unwrap(), new]).unwrap();
            inner.worker_key = Some(new);
            Ok(())
        })
    }

    async fn conclude(&self, session: &Session, envelope: Envelope) -> Result<ReceiptAnswer, ControlError> {
        self.0.note(Call::Conclude(envelope.to_json()));
        let wrong = {
            let mut inner = self.0.inner();
            let faults = inner.faults.entry("conclude").or_default();
            matches!(faults.front(), Some(Fault::WrongReceipt)) && faults.pop_front().is_some()
        };
        if wrong {
            let attempt = Conclusion::peek(&envelope).unwrap().attempt();
            return Ok(ReceiptAnswer { attempt, envelope_digest: Digest::of(b"others"), applied: true });
        }
        self.0.call("conclude", Some(session), |inner| {
            let conclusion = Conclusion::verify(&envelope, &inner.worker_key.unwrap())
                .map_err(|e| Refusal::new(Code::InvalidEvidence, e.to_string()))?;
            let attempt = conclusion.attempt();
            let offer = offer(inner, attempt)?;
            if let Conclusion::Outcome(outcome) = &conclusion {
                assert_eq!(offer.claimed, Some(outcome.nonce), "an outcome for a claim that was not granted");
            }
            offer.closed = true;
            inner.concluded.insert(attempt, conclusion);
            Ok(ReceiptAnswer { attempt, envelope_digest: envelope.digest(), applied: true })
        })
    }
}

#[async_trait]
impl JobQueue for Port {
    async fn publish(&self, job: &Job) -> Result<(), QueueError> {
        self.0.publish(job);
        Ok(())
    }

    async fn subscribe(&self, _: WorkerId) -> Result<Box<dyn JobStream>, QueueError> {
        let jobs = self.0.jobs.lock().unwrap().take().expect("one subscriber at a time");
        Ok(Box::new(Stream { script: Arc::clone(&self.0), jobs: Some(jobs) }))
    }
}

struct Stream {
    script: Arc<Script>,
    jobs: Option<mpsc::UnboundedReceiver<Job>>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        *self.script.jobs.lock().unwrap() = self.jobs.take();
    }
}

#[async_trait]
impl JobStream for Stream {
    async fn next(&mut self) -> Result<Box<dyn Delivery>, QueueError> {
        let job = self.jobs.as_mut().unwrap().recv().await.unwrap();
        Ok(Box::new(Delivered { script: Arc::clone(&self.script), job }))
    }
}

struct Delivered {
    script: Arc<Script>,
    job: Job,
}

#[async_trait]
impl Delivery for Delivered {
    fn job(&self) -> &Job {
        &self.job
    }

    async fn ack(self: Box<Self>) -> Result<(), QueueError> {
        self.script.note(Call::Ack(self.job.fence));
        Ok(())
    }

    async fn nak(self: Box<Self>, _: Duration) -> Result<(), QueueError> {
        self.script.note(Call::Nak(self.job.fence));
        self.script.publish(&self.job);
        Ok(())
    }

    async fn in_progress(&self) -> Result<(), QueueError> {
        self.script.in_progress.send_modify(|n| *n += 1);
        if self.script.silent_queue.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}
