//! Projects, API tokens, enrollment tokens, and who is calling.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::transact::Step;
use super::{Coordinator, Result};
use crate::digest::Digest;
use crate::id::{EnrollmentId, PrincipalId, ProjectId, TokenId};
use crate::model::*;
use crate::ports::{EntropyExt as _, Lookup, Page, Permission, Select, StoreExt as _};
use crate::refusal::{Code, Refusal};
use crate::rules::object;

/// The longest an enrollment token may be good for (`protocol.md` 1.15).
const ENROLLMENT_LONGEST: Duration = Duration::from_secs(3600);

impl Coordinator {
    /// The project with this name, created if need be. For the process that owns the coordinator.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn ensure_project(&self, name: &Name) -> Result<Project> {
        let id = ProjectId::new(self.now(), self.random());
        self.transact(|| async move {
            if let Some(found) = self.store().find_as::<Project>(&Lookup::ProjectNamed(name.clone())).await? {
                return Ok(Step::Done(found.value));
            }
            let project = Project { id, name: name.clone(), created_at: self.now() };
            let mut changes = Changeset::new();
            changes.insert(project.clone());
            Ok(Step::Commit(changes, project))
        })
        .await
    }

    /// Makes a token for a principal, which is made too unless the project has a token of that name already.
    /// The token is returned once and stored only as a hash. For the process that owns the coordinator;
    /// callers use [`Coordinator::create_token`].
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn issue_token(
        &self,
        project: ProjectId,
        name: &Name,
        role: Role,
        expires_at: Option<Timestamp>,
    ) -> Result<(Token, SecretString)> {
        let secret = self.random_credential("fpt");
        let (id, fresh) =
            (TokenId::new(self.now(), self.random()), PrincipalId::new(self.now(), self.random()));
        let hash = hash(&secret);
        let token = self
            .transact(|| async move {
                let existing = self.store().list_as::<Token>(&Select::Tokens(project), &Page::all()).await?;
                if let Some(done) = existing.iter().find(|t| t.id == id) {
                    return Ok(Step::Done(done.value.clone()));
                }
                let principal = existing.iter().find(|t| t.name == *name).map_or(fresh, |t| t.principal);
                let token = Token {
                    id,
                    hash,
                    project,
                    principal,
                    name: name.clone(),
                    role,
                    created_at: self.now(),
                    expires_at,
                    revoked_at: None,
                };
                let mut changes = Changeset::new();
                changes.insert(token.clone());
                changes.events.push(Event::beside_runs(
                    Some(project),
                    EventKind::TokenCreated,
                    Actor::system("owner"),
                    self.now(),
                    object([("token", json!(id)), ("name", json!(name)), ("role", json!(role))]),
                ));
                Ok(Step::Commit(changes, token))
            })
            .await?;
        Ok((token, secret))
    }

    /// Makes a token in the caller's project.
    ///
    /// # Errors
    /// Without the permission; when the store cannot answer.
    pub async fn create_token(
        &self,
        caller: &Caller,
        name: &Name,
        role: Role,
        expires_at: Option<Timestamp>,
    ) -> Result<(Token, SecretString)> {
        self.authorize(caller, Permission::TokenAdmin)?;
        self.issue_token(caller.project, name, role, expires_at).await
    }

    /// Who holds this token.
    ///
    /// # Errors
    /// [`Code::Unauthenticated`], the same for unknown, expired and revoked tokens.
    pub async fn authenticate(&self, token: &SecretString) -> Result<Caller> {
        let refused = || {
            Refusal::new(Code::Unauthenticated, "the token is not valid")
                .way_out("give a valid token of the project")
        };
        let found =
            self.store().find_as::<Token>(&Lookup::TokenHash(hash(token))).await?.ok_or_else(refused)?;
        let now = self.now();
        if found.revoked_at.is_some() || found.expires_at.is_some_and(|at| at <= now) {
            return Err(refused().into());
        }
        Ok(Caller {
            principal: found.principal,
            name: found.name.to_string(),
            project: found.project,
            role: found.role,
        })
    }

    /// Makes an enrollment token for one worker of a pool, good for at most an hour.
    ///
    /// # Errors
    /// Without the permission; for a longer or no time; when the store cannot answer.
    pub async fn create_enrollment(
        &self,
        caller: &Caller,
        pool: &Name,
        ttl: Duration,
    ) -> Result<(SecretString, Timestamp)> {
        self.authorize(caller, Permission::WorkerAdmin)?;
        if ttl.is_zero() || ttl > ENROLLMENT_LONGEST {
            return Err(Refusal::new(
                Code::InvalidField,
                format!("an enrollment token is good for 1 to {} seconds", ENROLLMENT_LONGEST.as_secs()),
            )
            .field("expires_in_s")
            .way_out("make it shortly before the worker starts for the first time")
            .into());
        }
        let expires_at = self.now().checked_add(ttl).unwrap_or(Timestamp::MAX);
        Ok((self.issue_enrollment(pool, ttl).await?, expires_at))
    }

    /// Makes an enrollment token for one worker of a pool. For the process that owns the coordinator.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub async fn issue_enrollment(&self, pool: &Name, ttl: Duration) -> Result<SecretString> {
        let secret = self.random_credential("fpe");
        let now = self.now();
        let enrollment = Enrollment {
            id: EnrollmentId::new(now, self.random()),
            hash: hash(&secret),
            pool: pool.clone(),
            expires_at: now.checked_add(ttl).unwrap_or(Timestamp::MAX),
            used_at: None,
            used_by: None,
            worker: None,
        };
        let enrollment = &enrollment;
        self.transact(|| async move {
            if self.store().get_as::<Enrollment>(enrollment.id).await?.is_some() {
                return Ok(Step::Done(()));
            }
            let mut changes = Changeset::new();
            changes.insert(enrollment.clone());
            Ok(Step::Commit(changes, ()))
        })
        .await?;
        Ok(secret)
    }

    /// A random credential with a recognizable prefix, 256 bits.
    pub(super) fn random_credential(&self, prefix: &str) -> SecretString {
        let bytes: [u8; 32] = self.inner.entropy.bytes();
        SecretString::from(format!("{prefix}_{}", URL_SAFE_NO_PAD.encode(bytes)))
    }
}

/// What is stored of a credential. Credentials have 256 random bits, so a plain hash cannot be searched.
pub(super) fn hash(credential: &SecretString) -> Digest {
    Digest::of(credential.expose_secret().as_bytes())
}
