//! Whether a worker may join (`protocol.md` 1.15, `spec.md` §6).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::json;

use super::lifecycle::after;
use super::{Settings, capacity::elapsed, object};
use crate::digest::Digest;
use crate::id::WorkerId;
use crate::model::*;
use crate::refusal::{Code, Refusal};

/// A registration whose proof of possession was verified.
#[derive(Debug, Clone)]
pub struct Proven {
    /// Its name.
    pub name: Name,
    /// Its pool.
    pub pool: Name,
    /// Labels and versions as sent.
    pub capabilities: BTreeMap<String, String>,
    /// The most jobs it says it can run.
    pub max_jobs: u32,
    /// It runs tools without isolation.
    pub unsafe_no_isolation: bool,
    /// Its public key, hex.
    pub public_key: String,
    /// Its key id.
    pub key: Digest,
    /// Hash of the session credential it will get.
    pub session: Digest,
    /// The client certificate the session is bound to.
    pub certificate: Option<Digest>,
}

/// What the rule looks at.
#[derive(Debug)]
pub struct Context<'a> {
    /// The worker that owns the key, if the key is known.
    pub known: Option<(&'a Versioned<Worker>, &'a WorkerKey)>,
    /// The enrollment token that was presented.
    pub enrollment: Option<&'a Versioned<Enrollment>>,
    /// The worker that has the name.
    pub named: Option<&'a Worker>,
    /// System settings.
    pub settings: &'a Settings,
}

/// Registers a worker: with a known key under a new incarnation, with a new key against an enrollment token.
///
/// # Errors
/// [`Code::EnrollmentRefused`], [`Code::UnknownCapability`], [`Code::WorkerDisabled`], [`Code::KeyUnusable`],
/// [`Code::NameTaken`], [`Code::InvalidField`].
pub fn register(
    context: &Context<'_>,
    proven: &Proven,
    fresh: WorkerId,
    now: Timestamp,
) -> Result<(Changeset, Worker), Refusal> {
    let Context { settings, .. } = context;
    let capabilities = capabilities(&proven.capabilities)?;
    if proven.max_jobs == 0 {
        return Err(Refusal::new(Code::InvalidField, "a worker can run at least one job").field("max_jobs"));
    }
    if proven.unsafe_no_isolation && !settings.unsafe_allow_no_isolation {
        return Err(Refusal::new(Code::WorkerDisabled, "this worker runs tools without isolation, which this coordinator does not allow")
            .way_out("configure an IaC UID on the worker; the unsafe local development mode must be enabled on both sides"));
    }
    let mut changes = Changeset::new();
    let worker = match context.known {
        Some((worker, key)) => again(worker, key, proven, capabilities, settings, now, &mut changes)?,
        None => enroll(context, proven, capabilities, fresh, now, &mut changes)?,
    };
    changes.events.push(Event::beside_runs(
        None,
        EventKind::WorkerRegistered,
        Actor::Worker { id: worker.id },
        now,
        object([
            ("worker", json!(worker.id)),
            ("name", json!(worker.name)),
            ("pool", json!(worker.pool)),
            ("incarnation", json!(worker.incarnation)),
            ("capabilities", json!(worker.capabilities)),
            ("unsafe_no_isolation", json!(worker.unsafe_no_isolation)),
        ]),
    ));
    Ok((changes, worker))
}

fn capabilities(labels: &BTreeMap<String, String>) -> Result<BTreeMap<Tool, String>, Refusal> {
    labels
        .iter()
        .map(|(label, version)| {
            check_version(label, version)?;
            label.parse::<Tool>().map(|tool| (tool, version.clone())).map_err(|e| {
                Refusal::new(Code::UnknownCapability, format!("capability {label:?}: {e}"))
                    .field("capabilities")
            })
        })
        .collect()
}

/// The longest tool version, bytes.
const MAX_VERSION: usize = 128;

/// Versions are shown to people, in terminals too: one short line of visible ASCII.
fn check_version(label: &str, version: &str) -> Result<(), Refusal> {
    let shown = version.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
    if shown && version.len() <= MAX_VERSION {
        return Ok(());
    }
    Err(Refusal::new(
        Code::InvalidField,
        format!("the version of {label:?} is not a line of at most {MAX_VERSION} visible ASCII characters"),
    )
    .field("capabilities"))
}

#[allow(clippy::too_many_arguments)]
fn again(
    worker: &Versioned<Worker>,
    key: &WorkerKey,
    proven: &Proven,
    capabilities: BTreeMap<Tool, String>,
    settings: &Settings,
    now: Timestamp,
    changes: &mut Changeset,
) -> Result<Worker, Refusal> {
    if key.status != KeyStatus::Active {
        return Err(Refusal::new(Code::KeyUnusable, "this key no longer opens sessions")
            .way_out("enroll with a new key"));
    }
    if worker.disconnected {
        return Err(Refusal::new(Code::WorkerDisabled, format!("worker `{}` was disconnected", worker.name))
            .way_out("enroll it again under another name with a new enrollment token and a new key"));
    }
    if worker.name != proven.name || worker.pool != proven.pool {
        return Err(Refusal::new(
            Code::InvalidField,
            format!("this key belongs to worker `{}` of pool `{}`", worker.name, worker.pool),
        )
        .field("name")
        .way_out("a worker that moves to another pool or name enrolls anew"));
    }
    let next = Worker {
        capabilities,
        max_jobs: proven.max_jobs,
        unsafe_no_isolation: proven.unsafe_no_isolation,
        incarnation: worker.incarnation + 1,
        session: proven.session,
        session_certificate: proven.certificate,
        session_expires_at: after(now, settings.session_ttl),
        ..worker.value.clone()
    };
    changes.update(worker.version, next.clone());
    Ok(next)
}

fn enroll(
    context: &Context<'_>,
    proven: &Proven,
    capabilities: BTreeMap<Tool, String>,
    fresh: WorkerId,
    now: Timestamp,
    changes: &mut Changeset,
) -> Result<Worker, Refusal> {
    let refused = |detail: &str| {
        Refusal::new(Code::EnrollmentRefused, detail)
            .way_out("ask an administrator for a new enrollment token")
    };
    let token = context.enrollment.ok_or_else(|| refused("a new worker needs a valid enrollment token"))?;
    if token.expires_at <= now {
        return Err(refused("the enrollment token has expired"));
    }
    if token.pool != proven.pool {
        return Err(refused("the enrollment token is for another pool"));
    }
    if let Some(used) = token.used_at {
        let retry =
            token.used_by == Some(proven.key) && elapsed(used, now) <= context.settings.enrollment_retry;
        // The same key would have been found as known; a used token with an unknown key is somebody else.
        if !retry || token.worker.is_some() {
            return Err(refused("the enrollment token was already used"));
        }
    }
    if context.named.is_some() {
        return Err(Refusal::new(
            Code::NameTaken,
            format!("there is already a worker named `{}`", proven.name),
        )
        .field("name")
        .way_out("choose another name, or use the key that worker registered with"));
    }
    let worker = Worker {
        id: fresh,
        name: proven.name.clone(),
        pool: proven.pool.clone(),
        capabilities,
        max_jobs: proven.max_jobs,
        unsafe_no_isolation: proven.unsafe_no_isolation,
        draining: false,
        rotate_key: false,
        disconnected: false,
        quarantined: None,
        incarnation: 1,
        session: proven.session,
        lost: None,
        session_certificate: proven.certificate,
        session_expires_at: after(now, context.settings.session_ttl),
        key: proven.key,
        registered_at: now,
    };
    changes.insert(worker.clone());
    changes.insert(WorkerKey {
        id: proven.key,
        worker: fresh,
        public_key: proven.public_key.clone(),
        status: KeyStatus::Active,
        added_at: now,
        retired_at: None,
    });
    changes.update(
        token.version,
        Enrollment {
            used_at: Some(now),
            used_by: Some(proven.key),
            worker: Some(fresh),
            ..token.value.clone()
        },
    );
    Ok(worker)
}
