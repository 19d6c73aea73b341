//! The OpenAPI document, made from the routes and types themselves.
//!
//! The document is checked in as `openapi.json` beside this crate's manifest; a test fails when it drifts
//! from the code. To write it anew after a change:
//!
//! ```text
//! FORGEPLANE_WRITE_OPENAPI=1 cargo test -p forgeplane-server --test http openapi
//! ```

use std::sync::LazyLock;

use utoipa::openapi::schema::{ArrayBuilder, Components, Schema};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, PathItem, Ref, RefOr, Response, ResponseBuilder,
};

use crate::routes;

/// The document never changes while the process lives.
static JSON: LazyLock<String> = LazyLock::new(|| {
    let mut text = document().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
});

/// The security scheme's name in the document.
const BEARER: &str = "bearer";

/// The document.
#[must_use]
pub fn document() -> OpenApi {
    let mut document = routes::guarded(0).into_openapi();
    document.merge(routes::open().into_openapi());
    document.info = InfoBuilder::new()
        .title("Forgeplane")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "A control plane for infrastructure runs. Errors are problem details (RFC 9457) with a stable `code`.",
        ))
        .license(Some(LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build()))
        .build();
    document.security = Some(vec![SecurityRequirement::new(BEARER, Vec::<String>::new())]);
    let components = document.components.get_or_insert_default();
    components
        .security_schemes
        .insert(BEARER.to_owned(), RefOr::T(SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer))));
    name_items(components);
    for item in document.paths.paths.values_mut() {
        add_problem(item);
    }
    document
}

/// The document as JSON text, as it is served and checked in.
#[must_use]
pub fn json() -> &'static str {
    &JSON
}

/// Lets a page's items be named types rather than copies of them.
fn name_items(components: &mut Components) {
    let names: Vec<_> = components.schemas.keys().cloned().collect();
    for (page, schema) in &mut components.schemas {
        let Some(item) = page.strip_prefix("Page_").filter(|item| names.iter().any(|n| n == item)) else {
            continue;
        };
        if let RefOr::T(Schema::Object(object)) = schema {
            let items = ArrayBuilder::new()
                .items(Ref::from_schema_name(item))
                .description(Some("The items, in the order the route documents."));
            object.properties.insert("items".to_owned(), items.into());
        }
    }
}

/// Every operation may answer with a problem.
fn add_problem(item: &mut PathItem) {
    let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
    for operation in operations.into_iter().flatten() {
        operation.responses.responses.insert("default".to_owned(), RefOr::T(problem()));
    }
}

fn problem() -> Response {
    ResponseBuilder::new()
        .description("Why the request was not carried out.")
        .content(
            "application/problem+json",
            ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build(),
        )
        .build()
}
