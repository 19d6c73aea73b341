//! `forgeplane token` and `forgeplane secret`: what must not be seen twice, or at all.

use std::io::Read as _;
use std::process::ExitCode;

use forgeplane_server::api::{CreatedToken, NewToken, PutSecret, Secret};
use secrecy::{ExposeSecret as _, SecretString};

use super::{Context, label, more, segment};
use crate::args::{SecretCommand, TokenCommand};
use crate::failure::Failure;
use crate::output;

pub async fn run(context: &Context, command: TokenCommand) -> Result<ExitCode, Failure> {
    let TokenCommand::Create { name, role, expires } = command;
    let new = NewToken { name: label("NAME", &name)?, role: label("--role", &role)?, expires_in_s: expires };
    let created: CreatedToken = context.client.post("/tokens", &new).await?;
    context.print(&created, |created| {
        eprintln!("token of {} ({}); it is shown only this once:", created.name, created.role);
        println!("{}", created.token.secret().expose_secret());
    })
}

pub async fn secret(context: &Context, command: SecretCommand) -> Result<ExitCode, Failure> {
    match command {
        SecretCommand::Put { name, file, approved_for } => {
            let value = read_value(file.as_deref())?;
            let approved_for = approved_for.iter().map(|i| label("--for", i)).collect::<Result<_, _>>()?;
            let put = PutSecret { value: value.into(), approved_for };
            let secret: Secret = context.client.put(&format!("/secrets/{}", segment(&name)), &put).await?;
            context.print(&secret, |secret| println!("{} version {}", secret.name, secret.latest))
        }
        SecretCommand::List(page) => {
            let page = context.page::<Secret>("/secrets", &page, Vec::new()).await?;
            context.print(&page, |page| {
                output::table(
                    ["NAME", "VERSION", "APPROVED FOR", "UPDATED", "BY"],
                    page.items.iter().map(|s| {
                        let instances: Vec<_> = s.approved_for.iter().map(ToString::to_string).collect();
                        [
                            s.name.to_string(),
                            s.latest.to_string(),
                            if instances.is_empty() { "-".into() } else { instances.join(", ") },
                            output::time(s.updated_at),
                            s.updated_by.to_string(),
                        ]
                    }),
                );
                more(page.next.as_ref());
            })
        }
    }
}

/// Reads a secret from a file or standard input; the line end that editors and `echo` add is not part of it.
fn read_value(file: Option<&std::path::Path>) -> Result<SecretString, Failure> {
    let mut text = String::new();
    match file {
        Some(path) => std::fs::File::open(path)
            .and_then(|mut f| f.read_to_string(&mut text))
            .map_err(|e| Failure::local("io", format!("{}: {e}", path.display())))?,
        None => std::io::stdin().read_to_string(&mut text)?,
    };
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(SecretString::from(text))
}
