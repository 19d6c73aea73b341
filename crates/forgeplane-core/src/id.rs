//! Typed, prefixed, time-ordered identifiers.
//!
//! Every id is a UUIDv7 behind its own type, written as `run_0197…`: ids sort by creation time, and a
//! [`RunId`] can never be passed where an [`AttemptId`] is meant. Ids are built from a timestamp and
//! random bits that the caller supplies, so that rules and simulations stay deterministic.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// A string that is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an id that looks like `{prefix}_<32 hex digits>`")]
pub struct InvalidId {
    /// The prefix the id should have had.
    pub prefix: &'static str,
}

macro_rules! typed_ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The text in front of the underscore.
            pub const PREFIX: &'static str = $prefix;

            /// A new id, ordered by `now` (milliseconds) and made unique by `random`.
            #[must_use]
            pub fn new(now: Timestamp, random: [u8; 10]) -> Self {
                let millis = u64::try_from(now.as_millisecond()).unwrap_or(0);
                Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
            }

            /// When it was made, to the millisecond; the epoch if it was not made by [`Self::new`].
            #[must_use]
            pub fn created_at(&self) -> Timestamp {
                let unix = self.0.get_timestamp().map_or((0, 0), |time| time.to_unix());
                let (seconds, nanos) = (i64::try_from(unix.0), i32::try_from(unix.1));
                Timestamp::new(seconds.unwrap_or(0), nanos.unwrap_or(0)).unwrap_or(Timestamp::UNIX_EPOCH)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "_{}"), self.0.as_simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                text.strip_prefix(concat!($prefix, "_"))
                    .filter(|hex| hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
                    .and_then(|hex| Uuid::try_parse(hex).ok())
                    .map(Self)
                    .ok_or(InvalidId { prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

typed_ids! {
    /// A tenancy boundary.
    ProjectId = "prj";
    /// Somebody (or something) that holds a credential.
    PrincipalId = "usr";
    /// An API token.
    TokenId = "tok";
    /// A versioned template.
    TemplateId = "tpl";
    /// One deployment of a template version.
    InstanceId = "ins";
    /// One execution intent against an instance.
    RunId = "run";
    /// One try at executing a run.
    AttemptId = "att";
    /// An approval record.
    ApprovalId = "apr";
    /// A worker identity.
    WorkerId = "wrk";
    /// An enrollment token.
    EnrollmentId = "enr";
    /// The managed state of an instance.
    StateObjectId = "sto";
    /// A catalog secret.
    SecretId = "sec";
    /// A message waiting for publication.
    OutboxId = "obx";
    /// Stored evidence that changed nothing.
    EvidenceId = "evi";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_what_it_displays() {
        let id = RunId::new(Timestamp::UNIX_EPOCH, [7; 10]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(serde_json::from_str::<RunId>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
    }

    #[test]
    fn ids_sort_by_creation_time() {
        let early = RunId::new(Timestamp::from_millisecond(1_000).unwrap(), [0xff; 10]);
        let late = RunId::new(Timestamp::from_millisecond(1_001).unwrap(), [0; 10]);
        assert!(early < late && early.to_string() < late.to_string());
        assert_eq!(late.created_at(), Timestamp::from_millisecond(1_001).unwrap());
    }

    #[test]
    fn an_id_of_another_kind_or_shape_is_refused() {
        let run = RunId::new(Timestamp::UNIX_EPOCH, [1; 10]).to_string();
        assert!(run.parse::<AttemptId>().is_err());
        for text in
            ["", "run_", "run", "run_00", "run_../../etc/passwd", "run_ZZ000000000000000000000000000000"]
        {
            assert!(text.parse::<RunId>().is_err(), "{text:?} was accepted");
        }
        assert!(run.to_uppercase().parse::<RunId>().is_err());
    }
}
