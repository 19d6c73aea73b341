//! The secret catalog: values go in and never come out.

use std::fmt;

use forgeplane_core::id::SecretId;
use forgeplane_core::model::{self, Name};
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::Actor;

/// A secret text on its way: shows nothing in `Debug` and is wiped from memory when dropped.
#[derive(Clone)]
pub struct SecretValue(SecretString);

impl SecretValue {
    /// The secret itself.
    #[must_use]
    pub fn into_secret(self) -> SecretString {
        self.0
    }

    /// The secret itself, borrowed.
    #[must_use]
    pub fn secret(&self) -> &SecretString {
        &self.0
    }
}

impl From<SecretString> for SecretValue {
    fn from(secret: SecretString) -> Self {
        Self(secret)
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Serialize for SecretValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.expose_secret())
    }
}

impl<'de> Deserialize<'de> for SecretValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The original error would repeat a value of the wrong type.
        String::deserialize(deserializer)
            .map(|text| Self(SecretString::from(text)))
            .map_err(|_| serde::de::Error::custom("a secret is a string"))
    }
}

/// A secret version to store.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutSecret {
    /// The value: 6 bytes to 64 KiB. It is sealed at once and never returned.
    #[schema(value_type = String, format = Password, write_only)]
    pub value: SecretValue,
    /// Names of the instances that may use it; empty: none.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub approved_for: Vec<Name>,
}

/// A catalog secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    /// Its id.
    #[schema(value_type = String)]
    pub id: SecretId,
    /// Unique in the project.
    #[schema(value_type = String)]
    pub name: Name,
    /// The newest version.
    pub latest: u32,
    /// Names of the instances that may use it.
    #[schema(value_type = Vec<String>)]
    pub approved_for: Vec<Name>,
    /// When the newest version was stored.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// Who stored it.
    pub updated_by: Actor,
}

impl From<model::Secret> for Secret {
    fn from(it: model::Secret) -> Self {
        Self {
            id: it.id,
            name: it.name,
            latest: it.latest,
            approved_for: it.approved_for,
            updated_at: it.updated_at,
            updated_by: it.updated_by.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_of_the_wrong_type_is_not_repeated_in_the_error_or_shown_in_debug() {
        let error = serde_json::from_str::<PutSecret>(r#"{"value":31337000}"#).unwrap_err();
        assert!(!error.to_string().contains("31337"), "{error}");
        let put: PutSecret = serde_json::from_str(r#"{"value":"hunter22"}"#).unwrap();
        assert!(!format!("{put:?}").contains("hunter22"));
    }
}
