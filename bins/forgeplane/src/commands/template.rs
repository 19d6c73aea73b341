//! `forgeplane template`.

use std::process::ExitCode;

use forgeplane_server::api::{ApprovalPolicy, PushTemplate, Template, TemplateDetail};
use reqwest::multipart::{Form, Part};

use super::{Context, input, label, more, segment};
use crate::args::{PushOptions, TemplateCommand};
use crate::failure::Failure;
use crate::{output, source};

pub async fn run(context: &Context, command: TemplateCommand) -> Result<ExitCode, Failure> {
    match command {
        TemplateCommand::Push(options) => push(context, *options).await,
        TemplateCommand::List(page) => {
            let page = context.page::<Template>("/templates", &page, Vec::new()).await?;
            context.print(&page, |page| {
                output::table(
                    ["NAME", "VERSION", "CREATED", "ID"],
                    page.items.iter().map(|t| {
                        [
                            t.name.to_string(),
                            t.latest.to_string(),
                            output::time(t.created_at),
                            t.id.to_string(),
                        ]
                    }),
                );
                more(page.next.as_ref());
            })
        }
        TemplateCommand::Show { template, version } => {
            let query: Vec<_> = version.map(|v| ("version", v.to_string())).into_iter().collect();
            let detail: TemplateDetail =
                context.client.get(&format!("/templates/{}", segment(&template)), &query).await?;
            context.print(&detail, show)
        }
    }
}

async fn push(context: &Context, options: PushOptions) -> Result<ExitCode, Failure> {
    let archive = source::pack(&options.directory)?;
    let directory_name = || options.directory.canonicalize().ok()?.file_name()?.to_str().map(str::to_owned);
    let name = match options.name.clone().or_else(directory_name) {
        Some(name) => label("--name", &name)?,
        None => {
            return Err(
                Failure::local("invalid_argument", "the directory has no name").way_out("give --name")
            );
        }
    };
    let beside = options.directory.join("schema.json");
    let schema = match options.schema.clone().or_else(|| beside.is_file().then_some(beside)) {
        None => None,
        Some(path) => {
            let wrong = |e: String| Failure::local("schema_unreadable", format!("{}: {e}", path.display()));
            let text = std::fs::read(&path).map_err(|e| wrong(e.to_string()))?;
            Some(serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?)
        }
    };
    let metadata = PushTemplate {
        name,
        tool: tool(&options.tool)?,
        entrypoint: options.entrypoint,
        schema,
        defaults: input::object("--default", &options.defaults)?,
        pool: label("--pool", &options.pool)?,
        execution_timeout_s: options.timeout,
        max_execution_timeout_s: options.max_timeout,
        no_output_timeout_s: options.no_output_timeout,
        queue_timeout_s: options.queue_timeout,
        cancel_grace_s: options.cancel_grace,
        approval: ApprovalPolicy {
            required: options.approvals,
            allow_self: options.allow_self_approval,
            expires_after_s: options.approval_expires,
        },
    };
    let metadata = serde_json::to_string(&metadata).map_err(|e| Failure::local("output", e.to_string()))?;
    let part = |part: Part, mime: &str| {
        part.mime_str(mime).map_err(|e| Failure::local("output", format!("{mime}: {e}")))
    };
    let form = Form::new()
        .part("metadata", part(Part::text(metadata), "application/json")?)
        .part("source", part(Part::bytes(archive).file_name("source.tar.gz"), "application/gzip")?);
    let detail: TemplateDetail = context.client.upload("/templates", form).await?;
    context.print(&detail, show)
}

/// `opentofu` is an alias that the label type does not display.
fn tool(text: &str) -> Result<forgeplane_server::api::Tool, Failure> {
    label("--tool", if text == "opentofu" { "tofu" } else { text })
}

fn show(detail: &TemplateDetail) {
    let TemplateDetail { template, version } = detail;
    output::view([
        ("template", Some(template.name.to_string())),
        ("id", Some(template.id.to_string())),
        ("version", Some(format!("{} (newest: {})", version.version, template.latest))),
        ("tool", Some(version.tool.to_string())),
        ("source", Some(format!("{} ({} bytes)", version.source, version.source_bytes))),
        ("entrypoint", version.entrypoint.clone()),
        ("pool", Some(version.pool.to_string())),
        (
            "timeout",
            Some(format!(
                "{} s (at most {} s)",
                version.execution_timeout_s, version.max_execution_timeout_s
            )),
        ),
        ("approvals", Some(version.approval.required.to_string())),
        ("inputs", serde_json::to_string(&version.schema).ok()),
        ("defaults", serde_json::to_string(&version.defaults).ok().filter(|d| d != "{}")),
        ("pushed", Some(format!("{} by {}", output::time(version.created_at), version.created_by))),
    ]);
}
