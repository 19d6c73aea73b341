//! Who is calling: a bearer token, checked before anything else of a request is looked at.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use forgeplane_core::model::Caller;
use forgeplane_core::refusal::{Code, Refusal};
use secrecy::SecretString;

use crate::App;
use crate::error::ApiError;

/// The longest token that is looked up, bytes.
const MAX_TOKEN: usize = 512;

/// An authenticated caller and the token that said so.
pub(crate) struct Authenticated {
    /// Who.
    pub(crate) caller: Caller,
    token: SecretString,
}

impl Authenticated {
    /// Checks the token again: for answers that outlive the moment, such as streams.
    pub(crate) async fn recheck(&self, app: &App) -> Result<(), ApiError> {
        app.coordinator.authenticate(&self.token).await?;
        Ok(())
    }
}

/// Extracts the caller of an authenticated request.
#[derive(Clone)]
pub(crate) struct Who(Arc<Authenticated>);

impl Deref for Who {
    type Target = Authenticated;

    fn deref(&self) -> &Authenticated {
        &self.0
    }
}

/// Lets only requests with a valid token through.
pub(crate) async fn authenticate(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let token = bearer(request.headers()).ok_or_else(needs_token)?;
    // Nothing behind this point can log or forward the header.
    request.headers_mut().remove(AUTHORIZATION);
    let caller = app.coordinator.authenticate(&token).await?;
    tracing::Span::current().record("caller", tracing::field::display(caller.principal));
    request.extensions_mut().insert(Who(Arc::new(Authenticated { caller, token })));
    Ok(next.run(request).await)
}

fn needs_token() -> ApiError {
    Refusal::new(Code::Unauthenticated, "this needs a bearer token")
        .way_out("send `Authorization: Bearer <token>` with a token of the project")
        .into()
}

fn bearer(headers: &HeaderMap) -> Option<SecretString> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (only, None) = (values.next()?, values.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    let token = token.trim_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && (1..=MAX_TOKEN).contains(&token.len()))
        .then(|| SecretString::from(token))
}

impl<S: Send + Sync> FromRequestParts<S> for Who {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        // A route that was mounted without the check lets nobody in.
        parts.extensions.get::<Self>().cloned().ok_or_else(needs_token)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn only_one_bearer_token_is_a_token() {
        let read = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_static(value));
            }
            bearer(&headers).map(|t| t.expose_secret().to_owned())
        };
        assert_eq!(read(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(read(&["bearer  abc "]).as_deref(), Some("abc"));
        for bad in [&["Basic abc"][..], &["Bearer"], &["Bearer "], &["abc"], &[], &["Bearer a", "Bearer b"]] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {}", "x".repeat(513))).unwrap());
        assert!(bearer(&headers).is_none());
    }
}
