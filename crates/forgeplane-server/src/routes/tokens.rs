//! API tokens.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::{SignedDuration, Timestamp};

use crate::App;
use crate::api::{CreatedToken, NewToken};
use crate::auth::Who;
use crate::error::ApiError;
use crate::extract::JsonBody;

/// Makes a token in the caller's project. The token is in the answer and nowhere else.
#[utoipa::path(
    post,
    path = "/tokens",
    tag = "tokens",
    request_body = NewToken,
    responses((status = 201, description = "The token.", body = CreatedToken)),
)]
pub(crate) async fn create_token(
    State(app): State<App>,
    who: Who,
    JsonBody(new): JsonBody<NewToken>,
) -> Result<(StatusCode, Json<CreatedToken>), ApiError> {
    let expires_at = new.expires_in_s.map(|s| expiry(app.coordinator.now(), s)).transpose()?;
    let (token, secret) =
        app.coordinator.create_token(&who.caller, &new.name, new.role.into(), expires_at).await?;
    Ok((StatusCode::CREATED, Json(CreatedToken::new(token, secret.into()))))
}

fn expiry(now: Timestamp, seconds: u64) -> Result<Timestamp, ApiError> {
    i64::try_from(seconds)
        .ok()
        .filter(|s| *s > 0)
        .and_then(|s| now.checked_add(SignedDuration::from_secs(s)).ok())
        .ok_or_else(|| {
            ApiError::field("expires_in_s", "a token ends at least a second from now, within this age")
        })
}
