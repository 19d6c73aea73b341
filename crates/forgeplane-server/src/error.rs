//! From refusals and failures to problem details.

use std::sync::Arc;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use forgeplane_core::coordinator::CoordinatorError;
use forgeplane_core::refusal::{Refusal, RefusalKind};

use crate::api::Problem;

/// What a problem's code is appended to.
const TYPE_BASE: &str = "https://forgeplane.dev/errors/";
/// When a request that failed for a passing reason may be repeated, seconds.
const RETRY_AFTER_S: &str = "1";

/// Codes of the HTTP face itself: faults of a request that never became a command.
pub(crate) mod code {
    pub(crate) const INVALID_FIELD: &str = "invalid_field";
    pub(crate) const TOO_LARGE: &str = "too_large";
    pub(crate) const MALFORMED_JSON: &str = "malformed_json";
    pub(crate) const MALFORMED_REQUEST: &str = "malformed_request";
    pub(crate) const UNSUPPORTED_MEDIA_TYPE: &str = "unsupported_media_type";
    pub(crate) const UNKNOWN_ROUTE: &str = "unknown_route";
    pub(crate) const METHOD_NOT_ALLOWED: &str = "method_not_allowed";
    pub(crate) const INTERNAL: &str = "internal";
}

/// A request that is answered with a [`Problem`]. Rendered by the envelope, which knows the request's id.
#[derive(Debug, Clone)]
pub(crate) struct ApiError(Arc<Fault>);

#[derive(Debug)]
struct Fault {
    status: StatusCode,
    code: &'static str,
    detail: String,
    field: Option<String>,
    way_out: Option<String>,
    retry: bool,
    /// What is logged and never sent.
    source: Option<CoordinatorError>,
}

impl ApiError {
    /// A fault of the request itself.
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self(Arc::new(Fault {
            status,
            code,
            detail: detail.into(),
            field: None,
            way_out: None,
            retry: false,
            source: None,
        }))
    }

    /// A field that cannot be read.
    pub(crate) fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, code::INVALID_FIELD, detail);
        error.edit(|fault| fault.field = Some(field.into()));
        error
    }

    /// Says what to do next.
    pub(crate) fn way_out(mut self, way_out: impl Into<String>) -> Self {
        self.edit(|fault| fault.way_out = Some(way_out.into()));
        self
    }

    fn edit(&mut self, change: impl FnOnce(&mut Fault)) {
        // Only called while building, when nobody else can hold the fault.
        if let Some(fault) = Arc::get_mut(&mut self.0) {
            change(fault);
        }
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_retryable(&self) -> bool {
        self.0.retry
    }

    /// The problem as it is sent.
    pub(crate) fn problem(&self, request_id: &str) -> Problem {
        let Fault { status, code, detail, field, way_out, .. } = &*self.0;
        Problem {
            kind: format!("{TYPE_BASE}{code}"),
            title: title(code),
            status: status.as_u16(),
            code: (*code).to_owned(),
            detail: detail.clone(),
            field: field.clone(),
            way_out: way_out.clone(),
            request_id: request_id.to_owned(),
        }
    }

    /// Logs what is not told to the caller. Refusals are answers, not faults: they are not logged.
    pub(crate) fn log(&self) {
        if let Some(source) = &self.0.source {
            if self.0.retry {
                tracing::warn!(code = self.0.code, error = %source, "the request cannot be answered now");
            } else {
                tracing::error!(code = self.0.code, error = %source, "the request failed");
            }
        }
    }

    /// Turns the placeholder response of this error into what is sent.
    pub(crate) fn render(&self, response: &mut Response, request_id: &str) {
        let body = serde_json::to_vec(&self.problem(request_id)).unwrap_or_default();
        *response.body_mut() = body.into();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.0.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.0.retry {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
        }
    }
}

/// `invalid_field` as "Invalid field".
fn title(code: &str) -> String {
    let words = code.replace('_', " ");
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

const fn status_of(kind: RefusalKind) -> StatusCode {
    match kind {
        RefusalKind::Invalid => StatusCode::BAD_REQUEST,
        RefusalKind::NotFound => StatusCode::NOT_FOUND,
        RefusalKind::Conflict => StatusCode::CONFLICT,
        RefusalKind::Forbidden => StatusCode::FORBIDDEN,
        RefusalKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        RefusalKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self(Arc::new(Fault {
            status: status_of(refusal.code.kind()),
            code: refusal.code.as_str(),
            detail: refusal.detail,
            field: refusal.field,
            way_out: refusal.way_out,
            retry: false,
            source: None,
        }))
    }
}

impl From<CoordinatorError> for ApiError {
    fn from(error: CoordinatorError) -> Self {
        let error = match error {
            CoordinatorError::Refused(refusal) => return refusal.into(),
            other => other,
        };
        let retry = error.is_retryable();
        let (status, detail, way_out) = if retry {
            (StatusCode::SERVICE_UNAVAILABLE, "the coordinator cannot answer now", "try again in a moment")
        } else {
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                "the coordinator failed; the reason is in its log under the request id",
                "give the request id to whoever runs the coordinator",
            )
        };
        Self(Arc::new(Fault {
            status,
            code: error.code(),
            detail: detail.to_owned(),
            field: None,
            way_out: Some(way_out.to_owned()),
            retry,
            source: Some(error),
        }))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.0.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use forgeplane_core::ports::StoreError;
    use forgeplane_core::refusal::Code;

    use super::*;

    #[test]
    fn every_code_has_a_client_error_status_and_keeps_its_name() {
        for code in Code::ALL {
            let problem = ApiError::from(Refusal::new(*code, "no")).problem("r1");
            assert!((400..500).contains(&problem.status), "{code}: {}", problem.status);
            assert_eq!(problem.code, code.as_str());
            assert_eq!(problem.kind, format!("https://forgeplane.dev/errors/{code}"));
        }
    }

    #[test]
    fn a_failure_tells_nothing_from_inside() {
        let inside = || Box::<dyn std::error::Error + Send + Sync>::from("password=hunter2 at db-7.internal");
        let passing = ApiError::from(CoordinatorError::Store(StoreError::Unavailable(inside())));
        let lasting = ApiError::from(CoordinatorError::Store(StoreError::Unusable(inside())));
        assert_eq!((passing.problem("r").status, passing.is_retryable()), (503, true));
        assert_eq!((lasting.problem("r").status, lasting.is_retryable()), (500, false));
        for error in [passing, lasting] {
            let text = serde_json::to_string(&error.problem("r")).unwrap();
            assert!(!text.contains("hunter2") && !text.contains("internal\""), "{text}");
        }
    }
}
