//! A refusal: a command the rules do not allow, told so that the asker knows what to do next.

use std::fmt;

use serde::Serialize;

/// What sort of answer a refusal is; faces map it to their own status (HTTP, gRPC, exit code).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// The command itself is wrong; sending it again will not help.
    Invalid,
    /// There is no such object in the caller's project.
    NotFound,
    /// The object is not in a state that allows the command.
    Conflict,
    /// The caller is known but may not do this.
    Forbidden,
    /// The caller is not known.
    Unauthenticated,
    /// Something is larger than its limit.
    TooLarge,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $kind:ident;)*) => {
        /// The stable machine code of a refusal. Codes are never renamed or reused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// Every code, for documentation and tests.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The code as it travels in APIs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// What sort of answer this is.
            #[must_use]
            pub const fn kind(self) -> RefusalKind {
                match self { $(Code::$name => RefusalKind::$kind,)* }
            }
        }
    };
}

codes! {
    /// A field is missing, malformed or out of range.
    InvalidField = "invalid_field", Invalid;
    /// The tool does not support the operation.
    UnsupportedOperation = "unsupported_operation", Invalid;
    /// No executor ships for the tool.
    NoExecutor = "no_executor", Invalid;
    /// Inputs do not satisfy the template's schema.
    InvalidInputs = "invalid_inputs", Invalid;
    /// A secret path carries an inline value.
    InlineSecret = "inline_secret", Invalid;
    /// A secret binding cannot be resolved.
    SecretUnavailable = "secret_unavailable", Invalid;
    /// A template's schema is not a usable JSON Schema.
    InvalidSchema = "invalid_schema", Invalid;
    /// A capability label nobody knows.
    UnknownCapability = "unknown_capability", Invalid;
    /// A source bundle that cannot be read or is not safe to unpack.
    InvalidBundle = "invalid_bundle", Invalid;
    /// A source bundle, input or document above its limit.
    TooLarge = "too_large", TooLarge;
    /// No such object.
    NotFound = "not_found", NotFound;
    /// The name is taken.
    NameTaken = "name_taken", Conflict;
    /// The idempotency key was used with another request.
    IdempotencyMismatch = "idempotency_mismatch", Conflict;
    /// The command is not allowed in the run's status.
    InvalidTransition = "invalid_transition", Conflict;
    /// The run is terminal.
    AlreadyTerminal = "already_terminal", Conflict;
    /// Only a succeeded plan can be promoted.
    NotPromotable = "not_promotable", Conflict;
    /// The plan's base generation is no longer the current one.
    StalePlan = "stale_plan", Conflict;
    /// The plan already has a live promoted run.
    AlreadyPromoted = "already_promoted", Conflict;
    /// The plan artifact is gone.
    ArtifactMissing = "artifact_missing", Conflict;
    /// The state moved since the plan; plan again.
    ReplanRequired = "replan_required", Conflict;
    /// The state was written by somebody else.
    StaleState = "stale_state", Conflict;
    /// The run has an execution whose outcome is missing.
    UnresolvedExecution = "unresolved_execution", Conflict;
    /// The attempt is not an unresolved execution.
    NotUnresolved = "not_unresolved", Conflict;
    /// The instance was torn down.
    InstanceTornDown = "instance_torn_down", Conflict;
    /// The approval has a decision already, or the reviewer decided already.
    AlreadyDecided = "already_decided", Conflict;
    /// The approval no longer holds.
    ApprovalInvalid = "approval_invalid", Conflict;
    /// The requester may not approve their own run.
    SelfApproval = "self_approval", Forbidden;
    /// The attempt was claimed with another nonce.
    AlreadyClaimed = "already_claimed", Conflict;
    /// The attempt is closed.
    AttemptClosed = "attempt_closed", Conflict;
    /// The offer ran out before the claim.
    OfferExpired = "offer_expired", Conflict;
    /// Another worker uses the same identity.
    IdentityInUse = "identity_in_use", Conflict;
    /// A fence, nonce or owner that does not match the attempt.
    FenceMismatch = "fence_mismatch", Conflict;
    /// A log chunk that leaves a gap.
    LogGap = "log_gap", Conflict;
    /// A digest that does not match the bytes.
    DigestMismatch = "digest_mismatch", Invalid;
    /// A state document that is not one, or belongs to another lineage or serial.
    InvalidState = "invalid_state", Conflict;
    /// The signature, key or signed fields do not hold.
    InvalidEvidence = "invalid_evidence", Invalid;
    /// The key is retired for new work or compromised.
    KeyUnusable = "key_unusable", Conflict;
    /// The worker's identity is disconnected or quarantined.
    WorkerDisabled = "worker_disabled", Forbidden;
    /// The enrollment token is used, expired or for another pool.
    EnrollmentRefused = "enrollment_refused", Unauthenticated;
    /// The credential is unknown, expired or superseded.
    Unauthenticated = "unauthenticated", Unauthenticated;
    /// The caller may not do this.
    Forbidden = "forbidden", Forbidden;
}

/// A command that was not carried out, and why. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Refusal {
    /// The stable machine code.
    pub code: Code,
    /// What happened, for the person at the terminal.
    pub detail: String,
    /// The request field at fault, as a JSON pointer or name.
    pub field: Option<String>,
    /// What to do next.
    pub way_out: Option<String>,
}

impl Refusal {
    /// A refusal with its code and explanation.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), field: None, way_out: None }
    }

    /// Names the request field at fault.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn way_out(mut self, way_out: impl Into<String>) -> Self {
        self.way_out = Some(way_out.into());
        self
    }

    /// A missing or foreign object; both read the same, so that ids of other projects cannot be probed.
    #[must_use]
    pub fn not_found(what: &str, id: impl fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("there is no {what} `{id}` in this project"))
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique() {
        let mut texts: Vec<_> = Code::ALL.iter().map(|c| c.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), Code::ALL.len());
    }
}
