//! `forgeplane instance`.

use std::process::ExitCode;

use forgeplane_server::api::{Instance, NewInstance, Output, Page};

use super::{Context, input, label, more, segment};
use crate::args::InstanceCommand;
use crate::failure::Failure;
use crate::output;

pub async fn run(context: &Context, command: InstanceCommand) -> Result<ExitCode, Failure> {
    match command {
        InstanceCommand::Create { name, template, template_version, inputs, secrets, pool } => {
            let new = NewInstance {
                name: label("NAME", &name)?,
                template,
                template_version,
                inputs: input::object("--input", &inputs)?,
                secrets: input::bindings("--secret", &secrets)?,
                pool: pool.map(|p| label("--pool", &p)).transpose()?,
            };
            let instance: Instance = context.client.post("/instances", &new).await?;
            context.print(&instance, |instance| show(instance, &[]))
        }
        InstanceCommand::List(page) => {
            let page = context.page::<Instance>("/instances", &page, Vec::new()).await?;
            context.print(&page, |page| {
                output::table(
                    ["NAME", "TEMPLATE", "TOOL", "STATE", "ID"],
                    page.items.iter().map(|i| {
                        [
                            i.name.to_string(),
                            format!("{}/{}", i.template_name, i.template_version),
                            i.tool.to_string(),
                            state(i).unwrap_or_else(|| "-".into()),
                            i.id.to_string(),
                        ]
                    }),
                );
                more(page.next.as_ref());
            })
        }
        InstanceCommand::Show { instance } => {
            let path = format!("/instances/{}", segment(&instance));
            let instance: Instance = context.client.get(&path, &[]).await?;
            let outputs: Vec<Output> = if instance.state.is_some() {
                context.client.get::<Page<Output>>(&format!("{path}/outputs"), &[]).await?.items
            } else {
                Vec::new()
            };
            context.print(&instance, |instance| show(instance, &outputs))
        }
    }
}

fn state(instance: &Instance) -> Option<String> {
    if instance.torn_down_by.is_some() {
        return Some("torn down".into());
    }
    instance.state.as_ref().map(|s| format!("generation {}", s.generation))
}

fn show(instance: &Instance, outputs: &[Output]) {
    output::view([
        ("instance", Some(instance.name.to_string())),
        ("id", Some(instance.id.to_string())),
        ("template", Some(format!("{} version {}", instance.template_name, instance.template_version))),
        ("tool", Some(instance.tool.to_string())),
        ("pool", instance.pool.as_ref().map(ToString::to_string)),
        ("inputs", serde_json::to_string(&instance.inputs).ok().filter(|d| d != "{}")),
        ("secrets", serde_json::to_string(&instance.secrets).ok().filter(|d| d != "{}")),
        ("state", state(instance)),
        ("torn down by", instance.torn_down_by.map(|r| r.to_string())),
        ("created", Some(format!("{} by {}", output::time(instance.created_at), instance.created_by))),
    ]);
    for out in outputs {
        let value = match &out.value {
            Some(value) => value.to_string(),
            None => "(sensitive)".to_owned(),
        };
        output::view([("output", Some(format!("{} = {value}", out.name)))]);
    }
}
