//! What is around every request: its id, its span, the headers of its answer, and the form of errors.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use forgeplane_core::ports::{EntropyExt as _, SystemEntropy};
use futures_util::FutureExt as _;
use tracing::Instrument as _;

use crate::error::{ApiError, code};

/// The header a request id comes and goes in.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request, in its extensions.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

/// Runs a request inside its span and finishes its answer.
pub(crate) async fn envelope(mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    request.extensions_mut().insert(RequestId(id.clone()));
    // The template of the path, not the path: ids and names do not belong into every log line's key.
    let path = request.extensions().get::<MatchedPath>().map_or("(no route)", MatchedPath::as_str);
    let route = path.to_owned();
    let span = tracing::info_span!(
        "http_request",
        request_id = %id,
        method = %request.method(),
        path,
        caller = tracing::field::Empty,
    );
    async {
        let started = Instant::now();
        let mut response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
            Ok(response) => response,
            Err(_) => {
                // The panic hook has told where; a caller gets an answer, and the connection lives on.
                tracing::error!("a handler panicked");
                ApiError::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    code::INTERNAL,
                    "the coordinator failed; the reason is in its log under the request id",
                )
                .into_response()
            }
        };
        if let Some(error) = response.extensions_mut().remove::<ApiError>() {
            error.log();
            error.render(&mut response, &id);
        }
        finish_headers(response.headers_mut(), &id);
        let status = response.status().as_u16();
        metrics::histogram!("forgeplane_http_request_seconds", "path" => route, "status" => status.to_string())
            .record(started.elapsed());
        tracing::debug!(status, elapsed_ms = started.elapsed().as_millis() as u64, "answered");
        response
    }
    .instrument(span)
    .await
}

fn finish_headers(headers: &mut HeaderMap, id: &str) {
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    );
}

/// The caller's request id if it is harmless in logs and headers, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let harmless = |id: &&str| {
        (1..=128).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    match headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(harmless) {
        Some(id) => id.to_owned(),
        None => hex::encode(SystemEntropy.bytes::<12>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_id_from_outside_cannot_break_a_log_line() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_static(value));
            request_id(&headers)
        };
        assert_eq!(with("abc-1.2_Z"), "abc-1.2_Z");
        for bad in ["", "a b", "a;b", "a\"b"] {
            assert_eq!(with(bad).len(), 24, "{bad:?} was taken over");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
