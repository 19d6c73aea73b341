//! Templates.

use axum::Json;
use axum::extract::multipart::{Field, Multipart, MultipartError};
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use forgeplane_core::id::TemplateId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::App;
use crate::api::{Page, PageQuery, PushTemplate, PushTemplateForm, Template, TemplateDetail};
use crate::auth::Who;
use crate::error::{ApiError, code};
use crate::extract::{NameOrId, QueryOf, body_error, json};
use crate::pages::window;

/// The largest `metadata` part, bytes.
const MAX_METADATA: usize = 1 << 20;

/// Pushes a template version. The same content pushed again makes a further version.
#[utoipa::path(
    post,
    path = "/templates",
    tag = "templates",
    request_body(content = PushTemplateForm, content_type = "multipart/form-data"),
    responses((status = 201, description = "The version was stored.", body = TemplateDetail)),
)]
pub(crate) async fn push_template(
    State(app): State<App>,
    who: Who,
    request: Request,
) -> Result<(StatusCode, Json<TemplateDetail>), ApiError> {
    let form = Multipart::from_request(request, &()).await.map_err(|_| {
        ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            code::UNSUPPORTED_MEDIA_TYPE,
            "a template is uploaded as a form",
        )
        .way_out("send `multipart/form-data` with the parts `metadata` (JSON) and `source` (tar.gz)")
    })?;
    let (metadata, source) = read_form(form).await?;
    let view = app.coordinator.push_template(&who.caller, metadata.with_source(source)).await?;
    Ok((StatusCode::CREATED, Json(view.into())))
}

async fn read_form(mut form: Multipart) -> Result<(PushTemplate, Bytes), ApiError> {
    let (mut metadata, mut source) = (None, None);
    while let Some(part) = form.next_field().await.map_err(broken)? {
        match part.name() {
            Some("metadata") if metadata.is_none() => {
                let text = read_part(part, MAX_METADATA, "metadata").await?;
                metadata = Some(json::<PushTemplate>(&text)?);
            }
            // The body's own limit bounds the source.
            Some("source") if source.is_none() => source = Some(read_part(part, usize::MAX, "source").await?),
            Some(name @ ("metadata" | "source")) => {
                return Err(ApiError::field(name, format!("the part `{name}` is there twice")));
            }
            _ => return Err(ApiError::field("form", "the form has only the parts `metadata` and `source`")),
        }
    }
    let missing = |part: &str| ApiError::field(part, format!("the form lacks the part `{part}`"));
    Ok((metadata.ok_or_else(|| missing("metadata"))?, source.ok_or_else(|| missing("source"))?))
}

async fn read_part(mut part: Field<'_>, max: usize, name: &str) -> Result<Bytes, ApiError> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = part.chunk().await.map_err(broken)? {
        if bytes.len() + chunk.len() > max {
            return Err(ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                code::TOO_LARGE,
                format!("the part `{name}` has more than {max} bytes"),
            ));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

fn broken(error: MultipartError) -> ApiError {
    body_error(error.status())
}

/// Lists the project's templates, oldest first.
#[utoipa::path(
    get,
    path = "/templates",
    tag = "templates",
    params(PageQuery),
    responses((status = 200, description = "A page of templates.", body = Page<Template>)),
)]
pub(crate) async fn list_templates(
    State(app): State<App>,
    who: Who,
    QueryOf(query): QueryOf<PageQuery>,
) -> Result<Json<Page<Template>>, ApiError> {
    let window = window::<TemplateId>(query.after, query.limit)?;
    let found = app.coordinator.templates(&who.caller, &window.page()).await?;
    Ok(window.cut(found, |t| t.id.to_string()))
}

/// Which version of a template.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct VersionQuery {
    /// The version; the newest one unless given.
    version: Option<u32>,
}

/// Shows a template with its newest or a given version.
#[utoipa::path(
    get,
    path = "/templates/{name_or_id}",
    tag = "templates",
    params(("name_or_id" = String, Path, description = "The template's name or id."), VersionQuery),
    responses((status = 200, description = "The template.", body = TemplateDetail)),
)]
pub(crate) async fn get_template(
    State(app): State<App>,
    who: Who,
    NameOrId(template): NameOrId,
    QueryOf(query): QueryOf<VersionQuery>,
) -> Result<Json<TemplateDetail>, ApiError> {
    Ok(Json(app.coordinator.template(&who.caller, &template, query.version).await?.into()))
}
