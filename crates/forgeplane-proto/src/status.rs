//! [`ControlError`]s as gRPC statuses and back, without loss.
//!
//! A refusal travels as JSON in the binary metadata `forgeplane-refusal-bin`. A status without it comes from
//! something in between (a proxy, a lost connection) and says nothing about the rules.

use forgeplane_core::ports::ControlError;
use forgeplane_core::refusal::RefusalKind;
use forgeplane_core::{Code as RefusalCode, Refusal};
use serde::{Deserialize, Serialize};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::convert::InvalidMessage;

const REFUSAL: &str = "forgeplane-refusal-bin";
/// Metadata is sent in headers, which peers and proxies limit to some kilobytes.
const LONGEST_TEXT: usize = 1024;

/// A refusal as it travels.
#[derive(Serialize, Deserialize)]
struct Wire {
    code: String,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    way_out: Option<String>,
}

fn short(text: &str) -> String {
    let end = (0..=text.len().min(LONGEST_TEXT)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}

/// The status of an error.
#[must_use]
pub fn into_status(error: &ControlError) -> Status {
    let refusal = match error {
        ControlError::Refused(refusal) => refusal,
        // What failed inside is for the coordinator's log; the worker can only try again.
        ControlError::Unavailable(_) => return Status::unavailable("the coordinator cannot answer now"),
    };
    let code = match refusal.code.kind() {
        RefusalKind::Invalid => Code::InvalidArgument,
        RefusalKind::NotFound => Code::NotFound,
        RefusalKind::Conflict => Code::FailedPrecondition,
        RefusalKind::Forbidden => Code::PermissionDenied,
        RefusalKind::Unauthenticated => Code::Unauthenticated,
        RefusalKind::TooLarge => Code::ResourceExhausted,
    };
    let mut status = Status::new(code, short(&refusal.detail));
    let wire = Wire {
        code: refusal.code.as_str().to_owned(),
        detail: short(&refusal.detail),
        field: refusal.field.as_deref().map(short),
        way_out: refusal.way_out.as_deref().map(short),
    };
    if let Ok(json) = serde_json::to_vec(&wire) {
        status.metadata_mut().insert_bin(REFUSAL, MetadataValue::from_bytes(&json));
    }
    status
}

/// The status of a message that is not what it should be.
#[must_use]
pub fn invalid(error: &InvalidMessage) -> Status {
    into_status(&Refusal::new(RefusalCode::InvalidField, error.to_string()).field(error.field).into())
}

/// The error of a status.
#[must_use]
pub fn from_status(status: Status) -> ControlError {
    let refusal = status
        .metadata()
        .get_bin(REFUSAL)
        .and_then(|value| value.to_bytes().ok())
        .and_then(|json| serde_json::from_slice::<Wire>(&json).ok());
    let Some(wire) = refusal else {
        return match status.code() {
            // A coordinator of another version: trying again cannot help.
            Code::Unimplemented => Refusal::new(
                RefusalCode::InvalidField,
                format!("the coordinator does not know this call: {}", status.message()),
            )
            .way_out("use a worker and a coordinator of the same version")
            .into(),
            _ => ControlError::Unavailable(Box::new(status)),
        };
    };
    let known = RefusalCode::ALL.iter().find(|code| code.as_str() == wire.code).copied();
    // A newer coordinator may have codes that are not known here; its kind of answer is.
    let code = known.unwrap_or(match status.code() {
        Code::Unauthenticated => RefusalCode::Unauthenticated,
        Code::PermissionDenied => RefusalCode::Forbidden,
        Code::NotFound => RefusalCode::NotFound,
        Code::ResourceExhausted => RefusalCode::TooLarge,
        Code::FailedPrecondition => RefusalCode::InvalidTransition,
        _ => RefusalCode::InvalidField,
    });
    Refusal { code, detail: wire.detail, field: wire.field, way_out: wire.way_out }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_survives_the_wire() {
        for &code in RefusalCode::ALL {
            let refusal = Refusal::new(code, "what happened: »ü«").field("inputs/0").way_out("do this");
            match from_status(into_status(&refusal.clone().into())) {
                ControlError::Refused(back) => assert_eq!(back, refusal),
                ControlError::Unavailable(error) => panic!("{code}: {error}"),
            }
        }
    }

    #[test]
    fn what_failed_inside_the_coordinator_stays_there_and_is_tried_again() {
        let status = into_status(&ControlError::Unavailable("password=hunter2".into()));
        assert!(!format!("{status:?}").contains("hunter2"));
        assert!(matches!(from_status(status), ControlError::Unavailable(_)));
    }

    #[test]
    fn a_status_of_something_in_between_is_no_refusal() {
        for code in
            [Code::Unauthenticated, Code::PermissionDenied, Code::NotFound, Code::Internal, Code::Cancelled]
        {
            assert!(
                matches!(from_status(Status::new(code, "a proxy")), ControlError::Unavailable(_)),
                "{code:?}"
            );
        }
        assert!(matches!(from_status(Status::unimplemented("x")), ControlError::Refused(_)));
    }

    #[test]
    fn a_code_of_a_newer_coordinator_keeps_its_kind() {
        let mut status = Status::failed_precondition("new");
        let json = br#"{"code":"of_the_future","detail":"new"}"#;
        status.metadata_mut().insert_bin(REFUSAL, MetadataValue::from_bytes(json));
        match from_status(status) {
            ControlError::Refused(refusal) => assert_eq!(refusal.code.kind(), RefusalKind::Conflict),
            ControlError::Unavailable(error) => panic!("{error}"),
        }
    }

    #[test]
    fn long_texts_fit_into_headers() {
        let refusal = Refusal::new(RefusalCode::InvalidField, "ü".repeat(100_000)).field("x".repeat(100_000));
        let status = into_status(&refusal.into());
        let size: usize = status.metadata().get_bin(REFUSAL).map_or(0, |v| v.as_encoded_bytes().len());
        assert!(size > 0 && size < 8 * 1024, "{size}");
    }
}
