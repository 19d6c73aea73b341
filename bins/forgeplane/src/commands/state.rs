//! `forgeplane state`.

use std::process::ExitCode;

use forgeplane_server::api::StateGeneration;

use super::{Context, more, segment};
use crate::args::StateCommand;
use crate::failure::Failure;
use crate::output;

pub async fn run(context: &Context, command: StateCommand) -> Result<ExitCode, Failure> {
    match command {
        StateCommand::List { instance, page } => {
            let path = format!("/instances/{}/state/generations", segment(&instance));
            let page = context.page::<StateGeneration>(&path, &page, Vec::new()).await?;
            context.print(&page, |page| {
                output::table(
                    ["GENERATION", "SERIAL", "RESOURCES", "BYTES", "RUN", "WRITTEN", "DIGEST"],
                    page.items.iter().map(|g| {
                        [
                            g.generation.to_string(),
                            g.serial.to_string(),
                            g.resources.to_string(),
                            g.bytes.to_string(),
                            g.writer.run.map_or_else(|| "-".into(), |r| r.to_string()),
                            output::time(g.at),
                            g.digest.to_string(),
                        ]
                    }),
                );
                more(page.next.as_ref());
            })
        }
        StateCommand::Pull { instance, generation } => {
            let query: Vec<_> = generation.map(|g| ("generation", g.to_string())).into_iter().collect();
            output::raw(
                &context.client.bytes(&format!("/instances/{}/state", segment(&instance)), &query).await?,
            )?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
