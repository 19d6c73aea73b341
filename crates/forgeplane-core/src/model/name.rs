//! Names people choose.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A name of a project, template, instance, pool, worker or secret: 1 to 63 characters of
/// `a-z 0-9 - _`, starting with a letter or digit. The alphabet is safe in paths, subjects and URLs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// Text that is not a [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to 63 characters of `a-z`, `0-9`, `-` and `_`, and starts with a letter or digit")]
pub struct InvalidName;

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let starts_well = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        if starts_well && text.len() <= 63 && text.bytes().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidName)
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g25_names_cannot_carry_separators_or_wildcards() {
        for bad in ["", "-a", "A", "a.b", "a*", ">", "a b", "a\r\n", "../a", "é", &"x".repeat(64)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?} was accepted");
        }
        for good in ["a", "0", "prod-eu_1", &"x".repeat(63)] {
            assert!(good.parse::<Name>().is_ok(), "{good:?} was refused");
        }
    }
}
