//! Whether a state document becomes a generation (`spec.md` §5, `protocol.md` 1.9).

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::{RunDraft, claim, object};
use crate::digest::Digest;
use crate::id::WorkerId;
use crate::model::*;
use crate::ports::ClaimRef;
use crate::refusal::{Code, Refusal};

/// What Forgeplane reads of a state document; everything else is the tool's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDocument {
    /// Grows with every change.
    pub serial: u64,
    /// Says which history the document belongs to.
    pub lineage: String,
    /// Managed resource instances.
    pub resources: u64,
    /// The document's digest.
    pub digest: Digest,
    /// Its size.
    pub bytes: u64,
}

impl StateDocument {
    /// Reads a state document.
    ///
    /// # Errors
    /// [`Code::InvalidState`] when it is not one.
    pub fn parse(document: &[u8]) -> Result<Self, Refusal> {
        #[derive(Deserialize)]
        struct Raw {
            version: u64,
            serial: u64,
            lineage: String,
            #[serde(default)]
            resources: Vec<RawResource>,
        }
        #[derive(Deserialize)]
        struct RawResource {
            #[serde(default)]
            mode: String,
            #[serde(default)]
            instances: Vec<serde::de::IgnoredAny>,
        }
        let raw: Raw = serde_json::from_slice(document)
            .map_err(|e| Refusal::new(Code::InvalidState, format!("not a Terraform state document: {e}")))?;
        if raw.version != 4 {
            return Err(Refusal::new(
                Code::InvalidState,
                format!("state format version {} is not supported; version 4 is", raw.version),
            ));
        }
        if raw.lineage.is_empty() {
            return Err(Refusal::new(Code::InvalidState, "the state document has no lineage"));
        }
        Ok(Self {
            serial: raw.serial,
            lineage: raw.lineage,
            resources: raw
                .resources
                .iter()
                .filter(|r| r.mode == "managed")
                .map(|r| r.instances.len() as u64)
                .sum(),
            digest: Digest::of(document),
            bytes: document.len() as u64,
        })
    }
}

/// What becomes of a write.
#[derive(Debug)]
pub enum Decision {
    /// It becomes this generation.
    Accept(Changeset, u64),
    /// It is this generation already.
    Again(u64),
    /// It is refused and kept as an orphan. The changeset only adds the orphan and an event.
    KeepAside(Changeset, Refusal),
}

/// What the rule looks at.
#[derive(Debug)]
pub struct Context<'a> {
    /// The session's worker.
    pub worker: WorkerId,
    /// The attempt.
    pub attempt: &'a Versioned<Attempt>,
    /// Its run.
    pub run: &'a Versioned<Run>,
    /// The state object.
    pub state: &'a Versioned<StateObject>,
    /// The generation after the one that the write builds on, if there is one.
    pub next: Option<&'a StateGeneration>,
    /// Whether this very document is kept as an orphan already.
    pub kept_aside: bool,
}

/// Decides a worker's state write.
///
/// # Errors
/// Another worker's attempt or a wrong fence or nonce: those documents are not even kept.
pub fn write(
    context: &Context<'_>,
    claim_ref: ClaimRef,
    expected_generation: u64,
    document: &StateDocument,
    now: Timestamp,
) -> Result<Decision, Refusal> {
    let Context { attempt, run, state, .. } = context;
    // The same write again, however late: this attempt made that very generation of this very document.
    let again = context
        .next
        .filter(|g| g.digest == document.digest && g.writer.attempt == Some(attempt.id))
        .map(|g| Decision::Again(g.generation));
    match claim::own_claim(attempt, context.worker, claim_ref) {
        Ok(()) => {}
        // A closed attempt's write is refused, but its document may be the only record of what was created.
        Err(refusal) if refusal.code == Code::AttemptClosed => {
            if let Some(again) = again {
                return Ok(again);
            }
            return keep_aside(context, expected_generation, document, refusal, now);
        }
        Err(refusal) => return Err(refusal),
    }
    if let Some(again) = again {
        return Ok(again);
    }
    // The tool saved what is current already.
    if state.digest == Some(document.digest)
        && state.head_run == Some(run.id)
        && state.high_water == attempt.fence
        && state.head == expected_generation
    {
        return Ok(Decision::Again(state.head));
    }
    if let Err(refusal) = acceptable(context, expected_generation, document) {
        return keep_aside(context, expected_generation, document, refusal, now);
    }

    let generation = state.head + 1;
    let mut draft = RunDraft::of(run, Actor::Worker { id: context.worker }, now);
    draft.event(
        EventKind::StateWritten,
        object([
            ("generation", json!(generation)),
            ("serial", json!(document.serial)),
            ("resources", json!(document.resources)),
            ("attempt", json!(attempt.id)),
        ]),
    );
    let mut changes = draft.finish();
    changes.update(attempt.version, Attempt { last_generation: Some(generation), ..attempt.value.clone() });
    changes.update(
        state.version,
        StateObject {
            head: generation,
            lineage: Some(document.lineage.clone()),
            serial: document.serial,
            digest: Some(document.digest),
            head_run: Some(run.id),
            high_water: attempt.fence,
            ..state.value.clone()
        },
    );
    changes.insert(StateGeneration {
        object: state.id,
        project: state.project,
        generation,
        serial: document.serial,
        lineage: document.lineage.clone(),
        digest: document.digest,
        bytes: document.bytes,
        resources: document.resources,
        writer: writer(context),
        at: now,
    });
    Ok(Decision::Accept(changes, generation))
}

fn acceptable(context: &Context<'_>, expected: u64, document: &StateDocument) -> Result<(), Refusal> {
    let Context { attempt, run, state, .. } = context;
    let stale = |detail: String| Err(Refusal::new(Code::StaleState, detail));
    if !run.operation.writes_state() {
        return Err(Refusal::new(
            Code::StaleState,
            format!("a `{}` run does not write state", run.operation.label()),
        ));
    }
    if state.archived {
        return stale("the state object is archived".into());
    }
    if attempt.fence < state.high_water {
        return stale(format!(
            "fence {} is older than {}, which wrote last",
            attempt.fence, state.high_water
        ));
    }
    let own_last = attempt.last_generation.unwrap_or(attempt.base_generation);
    if expected != own_last || expected != state.head {
        return stale(format!(
            "the document builds on generation {expected}; the attempt is at {own_last} and the state at {}",
            state.head
        ));
    }
    if state.head > 0 {
        if state.lineage.as_deref() != Some(document.lineage.as_str()) {
            return Err(Refusal::new(Code::InvalidState, "the document belongs to another lineage"));
        }
        if document.serial < state.serial
            || (document.serial == state.serial && state.digest != Some(document.digest))
        {
            return Err(Refusal::new(
                Code::InvalidState,
                format!("the document's serial {} does not follow {}", document.serial, state.serial),
            ));
        }
    }
    Ok(())
}

fn keep_aside(
    context: &Context<'_>,
    expected_generation: u64,
    document: &StateDocument,
    refusal: Refusal,
    now: Timestamp,
) -> Result<Decision, Refusal> {
    if context.kept_aside {
        return Ok(Decision::KeepAside(Changeset::new(), refusal));
    }
    let Context { state, run, .. } = context;
    let mut draft = RunDraft::of(run, Actor::Worker { id: context.worker }, now);
    draft.event(
        EventKind::StateRefused,
        object([
            ("code", json!(refusal.code)),
            ("digest", json!(document.digest)),
            ("expected", json!(expected_generation)),
        ]),
    );
    let mut changes = draft.finish();
    changes.insert(OrphanState {
        object: state.id,
        project: state.project,
        digest: document.digest,
        bytes: document.bytes,
        expected_generation,
        head: state.head,
        writer: writer(context),
        reason: refusal.code.as_str().to_owned(),
        at: now,
    });
    Ok(Decision::KeepAside(changes, refusal))
}

fn writer(context: &Context<'_>) -> StateWriter {
    StateWriter {
        actor: Actor::Worker { id: context.worker },
        run: Some(context.run.id),
        attempt: Some(context.attempt.id),
        fence: Some(context.attempt.fence),
    }
}
