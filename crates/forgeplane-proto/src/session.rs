//! The session of a call, in its metadata.

use forgeplane_core::ports::Session;
use forgeplane_core::{Code, Refusal};
use secrecy::{ExposeSecret as _, SecretString};
use tonic::metadata::{MetadataMap, MetadataValue};

const WORKER: &str = "forgeplane-worker";
const INCARNATION: &str = "forgeplane-incarnation";
const AUTHORIZATION: &str = "authorization";

/// Writes a session into the metadata of a call; the credential is marked so that nothing logs it.
///
/// # Errors
/// When the credential cannot be sent in a header, which no credential of a coordinator is.
pub fn write_session(metadata: &mut MetadataMap, session: &Session) -> Result<(), Refusal> {
    let unusable = |_| Refusal::new(Code::Unauthenticated, "the session credential cannot be sent");
    let mut credential: MetadataValue<_> =
        format!("Bearer {}", session.token.expose_secret()).parse().map_err(unusable)?;
    credential.set_sensitive(true);
    metadata.insert(AUTHORIZATION, credential);
    metadata.insert(WORKER, session.worker.to_string().parse().map_err(unusable)?);
    metadata.insert(INCARNATION, session.incarnation.into());
    Ok(())
}

/// Reads the session of a call.
///
/// # Errors
/// When there is none, or it cannot be one.
pub fn read_session(metadata: &MetadataMap) -> Result<Session, Refusal> {
    let missing = |what: &str| {
        Refusal::new(Code::Unauthenticated, format!("the call has no {what}"))
            .field(what)
            .way_out("register, and send the session with every call")
    };
    let text = |name: &'static str| {
        metadata.get(name).and_then(|value| value.to_str().ok()).ok_or_else(|| missing(name))
    };
    let token = text(AUTHORIZATION)?.strip_prefix("Bearer ").ok_or_else(|| missing(AUTHORIZATION))?;
    Ok(Session {
        worker: text(WORKER)?.parse().map_err(|_| missing(WORKER))?,
        incarnation: text(INCARNATION)?.parse().map_err(|_| missing(INCARNATION))?,
        token: SecretString::from(token),
        certificate: None,
    })
}

#[cfg(test)]
mod tests {
    use forgeplane_core::id::WorkerId;
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_session_survives_the_wire_and_is_not_shown() {
        let session = Session {
            worker: WorkerId::new(Timestamp::UNIX_EPOCH, [3; 10]),
            incarnation: u64::MAX,
            token: SecretString::from("fps_secret"),
            certificate: None,
        };
        let mut metadata = MetadataMap::new();
        write_session(&mut metadata, &session).unwrap();
        assert!(!format!("{metadata:?}").contains("fps_secret"));
        let back = read_session(&metadata).unwrap();
        assert_eq!((back.worker, back.incarnation), (session.worker, session.incarnation));
        assert_eq!(back.token.expose_secret(), "fps_secret");
    }

    #[test]
    fn half_a_session_is_none() {
        let session = Session {
            worker: WorkerId::new(Timestamp::UNIX_EPOCH, [3; 10]),
            incarnation: 1,
            token: SecretString::from("fps_secret"),
            certificate: None,
        };
        for (name, value) in [
            (AUTHORIZATION, None),
            (WORKER, None),
            (INCARNATION, None),
            (WORKER, Some("x")),
            (INCARNATION, Some("-1")),
            (AUTHORIZATION, Some("Basic x")),
        ] {
            let mut metadata = MetadataMap::new();
            write_session(&mut metadata, &session).unwrap();
            metadata.remove(name);
            if let Some(value) = value {
                metadata.insert(name, value.parse().unwrap());
            }
            let refusal = read_session(&metadata).unwrap_err();
            assert_eq!((refusal.code, refusal.field.as_deref()), (Code::Unauthenticated, Some(name)));
        }
    }
}
