//! Extractors that refuse with problem details and name the field at fault.

use std::fmt::Display;
use std::str::FromStr;

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use forgeplane_core::model::Name;
use serde::de::DeserializeOwned;

use crate::error::{ApiError, code};

/// A typed id in the path.
pub(crate) struct IdPath<T>(pub(crate) T);

/// A name in the path.
pub(crate) struct NamePath(pub(crate) Name);

/// A name or an id in the path. Ids are made of the letters of names, so one check holds for both; what it
/// names is the coordinator's to find.
pub(crate) struct NameOrId(pub(crate) String);

/// The query, read strictly: a parameter nobody knows is a mistake.
pub(crate) struct QueryOf<T>(pub(crate) T);

/// A JSON body, read strictly.
pub(crate) struct JsonBody<T>(pub(crate) T);

/// A JSON body that may be left out.
pub(crate) struct OptionalBody<T>(pub(crate) T);

async fn segment<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, ApiError> {
    match Path::<String>::from_request_parts(parts, state).await {
        Ok(Path(text)) => Ok(text),
        Err(_) => Err(ApiError::field("path", "the path is not readable text")),
    }
}

fn parse<T: FromStr>(text: &str, field: &str) -> Result<T, ApiError>
where
    T::Err: Display,
{
    text.parse().map_err(|e: T::Err| ApiError::field(field, e.to_string()))
}

impl<S: Send + Sync, T: FromStr> FromRequestParts<S> for IdPath<T>
where
    T::Err: Display,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        parse(&segment(parts, state).await?, "id").map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for NamePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        parse(&segment(parts, state).await?, "name").map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for NameOrId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text = segment(parts, state).await?;
        parse::<Name>(&text, "name_or_id").map(|_| Self(text))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryOf<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        serde_path_to_error::deserialize(serde_urlencoded::Deserializer::new(query)).map(Self).map_err(|e| {
            let message = e.inner().to_string();
            field_error("query", &e.path().to_string(), &message)
        })
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        check_json(request.headers())?;
        json(&read(request, state).await?).map(Self)
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let json_said = check_json(request.headers());
        let body = read(request, state).await?;
        if body.is_empty() {
            return Ok(Self(T::default()));
        }
        json_said?;
        Ok(Self(json::<Option<T>>(&body)?.unwrap_or_default()))
    }
}

fn check_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        code::UNSUPPORTED_MEDIA_TYPE,
        "the body must be JSON",
    )
    .way_out("send `Content-Type: application/json`"))
}

async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
    Bytes::from_request(request, state).await.map_err(|rejection| body_error(rejection.status()))
}

/// A body that is too large or broke off.
pub(crate) fn body_error(status: StatusCode) -> ApiError {
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        ApiError::new(status, code::TOO_LARGE, "the request body is larger than allowed")
    } else {
        ApiError::new(StatusCode::BAD_REQUEST, code::MALFORMED_REQUEST, "the request body cannot be read")
    }
}

/// Reads JSON text, all of it, naming the field at fault.
pub(crate) fn json<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    if text.trim_ascii_start().starts_with(b"[") {
        // Else an array would be read as the fields in their order.
        return Err(ApiError::field("body", "the body is a JSON object, not an array"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|e| {
        let message = e.inner().to_string();
        if e.inner().is_data() {
            field_error("body", &e.path().to_string(), &message)
        } else {
            malformed(&message)
        }
    })?;
    deserializer.end().map_err(|e| malformed(&e.to_string()))?;
    Ok(value)
}

fn malformed(message: &str) -> ApiError {
    ApiError::new(
        StatusCode::BAD_REQUEST,
        code::MALFORMED_JSON,
        format!("the body is not readable JSON: {message}"),
    )
}

/// Names the field: where reading stopped, and the field that serde's message speaks of.
fn field_error(place: &str, path: &str, message: &str) -> ApiError {
    let named = ["unknown field `", "missing field `", "duplicate field `"]
        .iter()
        .find_map(|start| message.strip_prefix(start))
        .and_then(|rest| rest.split('`').next());
    let path = path.trim_matches('.');
    let field = match named {
        Some(name) if path.is_empty() => name.to_owned(),
        Some(name) if path != name && !path.ends_with(&format!(".{name}")) => format!("{path}.{name}"),
        _ if path.is_empty() => place.to_owned(),
        _ => path.to_owned(),
    };
    ApiError::field(field, format!("the {place} cannot be read: {message}"))
}

/// The event id a client saw last, from `Last-Event-ID`.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    match value.to_str().ok().and_then(|text| text.parse().ok()) {
        Some(id) => Ok(Some(id)),
        None => Err(ApiError::field("last-event-id", "`Last-Event-ID` is a number from this stream")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{NewRun, PushTemplate};

    fn field_of<T: DeserializeOwned>(text: &str) -> (String, Option<String>) {
        let problem = json::<T>(text.as_bytes()).err().unwrap().problem("r");
        (problem.code, problem.field)
    }

    #[test]
    fn the_field_at_fault_is_named() {
        let invalid = |field: &str| (code::INVALID_FIELD.to_owned(), Some(field.to_owned()));
        assert_eq!(
            field_of::<NewRun>(r#"{"instance":"a","operation":"plan","status":"x"}"#),
            invalid("status")
        );
        assert_eq!(field_of::<NewRun>(r#"{"operation":"plan"}"#), invalid("instance"));
        assert_eq!(field_of::<NewRun>(r#"{"instance":"a","operation":"fly"}"#), invalid("operation"));
        assert_eq!(
            field_of::<PushTemplate>(r#"{"name":"a","tool":"tofu","approval":{"reqired":2}}"#),
            invalid("approval.reqired")
        );
        assert_eq!(field_of::<NewRun>("[1]"), invalid("body"));
        for text in ["", "{", r#"{"instance":"a","operation":"plan"}]"#, "\u{0}"] {
            assert_eq!(field_of::<NewRun>(text).0, code::MALFORMED_JSON, "{text:?}");
        }
    }
}
