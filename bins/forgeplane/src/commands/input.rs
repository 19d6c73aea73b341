//! Inputs and bindings as they are typed.

use std::collections::BTreeMap;

use forgeplane_core::model::{Name, Object};
use serde_json::Value;

use crate::failure::Failure;

fn pairs<'a>(argument: &str, given: &'a [String]) -> Result<Vec<(&'a str, &'a str)>, Failure> {
    let wrong =
        |text: &str, why: &str| Failure::local("invalid_argument", format!("{argument} {text:?}: {why}"));
    let mut pairs: Vec<(&str, &str)> = Vec::with_capacity(given.len());
    for text in given {
        let (name, value) = text.split_once('=').ok_or_else(|| wrong(text, "expected NAME=VALUE"))?;
        if name.is_empty() {
            return Err(wrong(text, "the name is empty"));
        }
        if pairs.iter().any(|(other, _)| *other == name) {
            return Err(wrong(text, "this name was given twice"));
        }
        pairs.push((name, value));
    }
    Ok(pairs)
}

/// `name=value` pairs; a value that is JSON is taken as JSON, anything else as text.
pub fn object(argument: &str, given: &[String]) -> Result<Object, Failure> {
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    Ok(pairs(argument, given)?.into_iter().map(|(name, text)| (name.to_owned(), value(text))).collect())
}

/// `/path=secret` pairs.
pub fn bindings(argument: &str, given: &[String]) -> Result<BTreeMap<String, Name>, Failure> {
    pairs(argument, given)?
        .into_iter()
        .map(|(path, secret)| {
            let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
            Ok((path, super::label(argument, secret)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn given(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|t| (*t).to_owned()).collect()
    }

    #[test]
    fn json_is_taken_as_json_and_the_rest_as_text() {
        let inputs =
            object("--input", &given(&["n=3", "s=hello", "list=[1,2]", "eq=a=b", "empty="])).unwrap();
        assert_eq!(
            Value::Object(inputs),
            json!({"n": 3, "s": "hello", "list": [1, 2], "eq": "a=b", "empty": ""})
        );
    }

    #[test]
    fn a_pair_without_a_name_or_given_twice_is_refused() {
        for bad in [given(&["x"]), given(&["=1"]), given(&["a=1", "a=2"])] {
            assert!(object("--input", &bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_binding_is_a_pointer_and_a_secret() {
        let bound = bindings("--secret", &given(&["db/password=db-pw"])).unwrap();
        assert_eq!(bound["/db/password"].as_str(), "db-pw");
        assert!(bindings("--secret", &given(&["/x=Not A Name"])).is_err());
    }
}
