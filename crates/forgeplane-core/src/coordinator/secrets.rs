//! The secret catalog: store, list. Values go in and never come out, except to a claiming worker.

use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::transact::Step;
use super::{Coordinator, Result};
use crate::id::SecretId;
use crate::model::*;
use crate::ports::{EntropyExt as _, Lookup, Page, Permission, Select, StoreExt as _};
use crate::refusal::{Code, Refusal};
use crate::rules::object;

/// A secret shorter than this cannot be masked in logs without masking ordinary text (faults F5).
const MIN_SECRET_BYTES: usize = 6;
/// The largest secret, bytes.
const MAX_SECRET_BYTES: usize = 64 * 1024;

impl Coordinator {
    /// Stores a new version of a secret and sets which instances may use it.
    ///
    /// # Errors
    /// Without the permission; a value that is too short to be masked, or too long.
    pub async fn put_secret(
        &self,
        caller: &Caller,
        name: &Name,
        value: &SecretString,
        approved_for: Vec<Name>,
    ) -> Result<Secret> {
        self.authorize(caller, Permission::SecretWrite)?;
        let bytes = value.expose_secret().as_bytes();
        if !(MIN_SECRET_BYTES..=MAX_SECRET_BYTES).contains(&bytes.len()) {
            return Err(Refusal::new(
                Code::InvalidField,
                format!("a secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes; shorter ones cannot be masked in logs"),
            )
            .field("value")
            .into());
        }
        let fresh = SecretId::new(self.now(), self.random());
        let payload = format!("secret/{}", hex::encode(self.inner.entropy.bytes::<16>()));
        // Sealed before the record names it: a version that is listed can be opened.
        self.inner.vault.put(&payload, bytes).await?;
        let payload = &payload;
        let approved_for = &approved_for;
        self.transact(|| async move {
            let found =
                self.store().find_as::<Secret>(&Lookup::SecretNamed(caller.project, name.clone())).await?;
            let (id, latest) = found.as_ref().map_or((fresh, 1), |s| (s.id, s.latest + 1));
            let secret = Secret {
                id,
                project: caller.project,
                name: name.clone(),
                latest,
                payload: payload.clone(),
                approved_for: approved_for.clone(),
                updated_at: self.now(),
                updated_by: caller.actor(),
            };
            let mut changes = Changeset::new();
            match found {
                Some(found) => changes.update(found.version, secret.clone()),
                None => changes.insert(secret.clone()),
            };
            changes.events.push(Event::beside_runs(
                Some(caller.project),
                EventKind::SecretStored,
                caller.actor(),
                self.now(),
                object([
                    ("secret", json!(name)),
                    ("version", json!(latest)),
                    ("approved_for", json!(approved_for)),
                ]),
            ));
            Ok(Step::Commit(changes, secret))
        })
        .await
    }

    /// The project's secrets: names and versions, never values.
    ///
    /// # Errors
    /// Without the permission; when the store cannot answer.
    pub async fn secrets(&self, caller: &Caller, page: &Page) -> Result<Vec<Secret>> {
        self.authorize(caller, Permission::Read)?;
        let found = self.store().list_as::<Secret>(&Select::Secrets(caller.project), page).await?;
        Ok(found.into_iter().map(|s| s.value).collect())
    }
}
