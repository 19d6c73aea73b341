//! Inputs: schema, defaults, secret paths (`spec.md` §4).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::model::{Name, Object};
use crate::refusal::{Code, Refusal};

/// The schema keyword that marks a path as secret.
pub const SECRET_KEYWORD: &str = "x-forgeplane-secret";

/// Checks that a template's schema can be used, without resolving anything over a network.
///
/// # Errors
/// [`Code::InvalidSchema`].
pub fn check_schema(schema: &Value) -> Result<(), Refusal> {
    let invalid = |detail: String| Err(Refusal::new(Code::InvalidSchema, detail).field("schema"));
    if !schema.is_object() {
        return invalid("the input schema must be a JSON object".into());
    }
    if let Some(reference) = external_reference(schema) {
        return invalid(format!(
            "the input schema refers to `{reference}`; only references inside it (`#…`) work"
        ));
    }
    if let Some(place) = misplaced_marker(schema, SECRET_KEYWORD, Value::is_boolean) {
        return invalid(format!(
            "`{SECRET_KEYWORD}` at `{place}` would protect nothing: it must be `true` or `false`, and only \
             counts on a property reached through `properties` alone"
        ));
    }
    match jsonschema::validator_for(schema) {
        Ok(_) => Ok(()),
        Err(error) => invalid(format!("the input schema is not a JSON Schema: {error}")),
    }
}

/// The marker of a schema; `false` marks nothing.
fn marker_of<'schema>(schema: &'schema Value, marker: &str) -> Option<&'schema Value> {
    schema.get(marker).filter(|value| **value != Value::Bool(false))
}

/// Where a schema has a marker that [`marked`] does not see, or one that is not `legal`.
pub(super) fn misplaced_marker(schema: &Value, marker: &str, legal: fn(&Value) -> bool) -> Option<String> {
    misplaced_below(schema, "", true, marker, legal)
}

/// `walked` says whether [`marked`] sees `schema`.
fn misplaced_below(
    schema: &Value,
    place: &str,
    walked: bool,
    marker: &str,
    legal: fn(&Value) -> bool,
) -> Option<String> {
    let Value::Object(map) = schema else {
        let Value::Array(items) = schema else { return None };
        return items
            .iter()
            .enumerate()
            .find_map(|(n, s)| misplaced_below(s, &format!("{place}/{n}"), false, marker, legal));
    };
    if let Some(value) = marker_of(schema, marker)
        && !(walked && !place.is_empty() && legal(value))
    {
        return Some(place.to_owned());
    }
    map.iter().find_map(|(keyword, inner)| match (keyword.as_str(), inner) {
        // Names of properties or definitions, not keywords.
        (
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
            Value::Object(named),
        ) => {
            let walked = walked && keyword == "properties";
            named.iter().find_map(|(name, s)| {
                misplaced_below(s, &format!("{place}/{keyword}/{name}"), walked, marker, legal)
            })
        }
        // Data, not schemas.
        ("default" | "const" | "enum" | "examples", _) => None,
        _ => misplaced_below(inner, &format!("{place}/{keyword}"), false, marker, legal),
    })
}

fn external_reference(value: &Value) -> Option<&str> {
    match value {
        Value::Object(map) => map.iter().find_map(|(key, inner)| match inner {
            Value::String(target) if key == "$ref" && !target.starts_with('#') => Some(target.as_str()),
            _ => external_reference(inner),
        }),
        Value::Array(items) => items.iter().find_map(external_reference),
        _ => None,
    }
}

/// The paths (JSON pointers into the inputs) that the schema marks as secret. Only `properties` are walked:
/// a secret has one definite place.
#[must_use]
pub fn secret_paths(schema: &Value) -> BTreeSet<String> {
    let marked = marked(schema, SECRET_KEYWORD).into_iter();
    marked.filter(|(_, value)| *value == &Value::Bool(true)).map(|(path, _)| path).collect()
}

/// Every property that has a marker: its path (a JSON pointer into the inputs) and the marker's value; what is below
/// such a property belongs to it.
pub(super) fn marked<'schema>(schema: &'schema Value, marker: &str) -> Vec<(String, &'schema Value)> {
    let mut found = Vec::new();
    collect_marked(schema, marker, String::new(), &mut found);
    found
}

fn collect_marked<'schema>(
    schema: &'schema Value,
    marker: &str,
    path: String,
    found: &mut Vec<(String, &'schema Value)>,
) {
    if let Some(value) = marker_of(schema, marker) {
        found.push((path, value));
        return;
    }
    if let Some(Value::Object(properties)) = schema.get("properties") {
        for (name, inner) in properties {
            let segment = name.replace('~', "~0").replace('/', "~1");
            collect_marked(inner, marker, format!("{path}/{segment}"), found);
        }
    }
}

/// Refuses inline values at secret paths.
///
/// # Errors
/// [`Code::InlineSecret`] with the path; the value itself is not repeated.
pub fn refuse_inline_secrets(schema: &Value, inputs: &Object) -> Result<(), Refusal> {
    let document = Value::Object(inputs.clone());
    match secret_paths(schema).into_iter().find(|path| document.pointer(path).is_some()) {
        None => Ok(()),
        Some(path) => {
            Err(Refusal::new(Code::InlineSecret, format!("`{path}` is a secret input and was given inline"))
                .field(format!("inputs{path}"))
                .way_out("store the value in the secret catalog and bind the path to it in the instance"))
        }
    }
}

/// Resolves the inputs of a run: defaults < instance < run, by top-level name, then validates them with every
/// bound secret path taken as present.
///
/// # Errors
/// [`Code::InlineSecret`], [`Code::InvalidInputs`] with a JSON pointer, [`Code::SecretUnavailable`] for a
/// binding at a path that is not secret.
pub fn resolve(
    schema: &Value,
    layers: [&Object; 3],
    bindings: &BTreeMap<String, Name>,
) -> Result<Object, Refusal> {
    let secrets = secret_paths(schema);
    if let Some(path) = bindings.keys().find(|path| !secrets.contains(*path)) {
        return Err(Refusal::new(
            Code::SecretUnavailable,
            format!("`{path}` is bound to a secret, but the template's schema does not mark it as secret"),
        )
        .field(format!("secrets{path}"))
        .way_out(format!(
            "mark the path with `{SECRET_KEYWORD}: true` in the schema, or remove the binding"
        )));
    }
    let mut inputs = Object::new();
    for layer in layers {
        refuse_inline_secrets(schema, layer)?;
        inputs.extend(layer.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    validate(schema, &secrets, &inputs, bindings)?;
    Ok(inputs)
}

fn validate(
    schema: &Value,
    secrets: &BTreeSet<String>,
    inputs: &Object,
    bindings: &BTreeMap<String, Name>,
) -> Result<(), Refusal> {
    // The value of a secret is not known here: its own subschema is replaced by "anything".
    let mut open_schema = schema.clone();
    for path in secrets {
        let in_schema: String =
            path.split('/').skip(1).map(|segment| format!("/properties/{segment}")).collect();
        if let Some(subschema) = open_schema.pointer_mut(&in_schema) {
            *subschema = Value::Bool(true);
        }
    }
    let mut document = Value::Object(inputs.clone());
    for path in bindings.keys() {
        put_at(&mut document, path, Value::Null);
    }
    let validator = jsonschema::validator_for(&open_schema).map_err(|e| {
        Refusal::new(Code::InvalidSchema, format!("the template's schema cannot be used: {e}"))
    })?;
    match validator.iter_errors(&document).next() {
        None => Ok(()),
        Some(error) => {
            let pointer = error.instance_path().to_string();
            let place = if pointer.is_empty() { "the inputs".to_owned() } else { format!("`{pointer}`") };
            Err(Refusal::new(Code::InvalidInputs, format!("{place}: {error}"))
                .field(format!("inputs{pointer}"))
                .way_out("see the template's input schema with `forgeplane template show`"))
        }
    }
}

/// Puts a value at a JSON pointer, making objects on the way.
pub fn put_at(document: &mut Value, pointer: &str, value: Value) {
    let mut place = document;
    for segment in pointer.split('/').skip(1) {
        let name = segment.replace("~1", "/").replace("~0", "~");
        if !place.is_object() {
            *place = Value::Object(Object::new());
        }
        let Value::Object(map) = place else { return };
        place = map.entry(name).or_insert(Value::Null);
    }
    *place = value;
}

/// Removes what is at a JSON pointer, and the objects around it that are empty then.
pub fn remove_at(document: &mut Value, pointer: &str) {
    let Some((parent, last)) = pointer.rsplit_once('/') else { return };
    let name = last.replace("~1", "/").replace("~0", "~");
    let Some(Value::Object(map)) = document.pointer_mut(parent) else { return };
    if map.remove(&name).is_some() && map.is_empty() && !parent.is_empty() {
        remove_at(document, parent);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 2},
                "db": {"type": "object", "required": ["password"], "properties": {
                    "password": {"type": "string", "minLength": 8, "x-forgeplane-secret": true}}}
            },
            "required": ["name"],
            "additionalProperties": false
        })
    }

    fn map(value: Value) -> Object {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn later_layers_win() {
        let none = BTreeMap::new();
        let inputs = resolve(
            &schema(),
            [
                &map(json!({"name": "default"})),
                &map(json!({"name": "instance"})),
                &map(json!({"name": "run"})),
            ],
            &none,
        );
        assert_eq!(inputs.unwrap(), map(json!({"name": "run"})));
    }

    #[test]
    fn an_inline_secret_is_refused_without_repeating_it() {
        let inputs = map(json!({"name": "ok", "db": {"password": "hunter2hunter2"}}));
        let refusal =
            resolve(&schema(), [&Object::new(), &inputs, &Object::new()], &BTreeMap::new()).unwrap_err();
        assert_eq!(refusal.code, Code::InlineSecret);
        assert_eq!(refusal.field.as_deref(), Some("inputs/db/password"));
        assert!(!format!("{refusal:?}").contains("hunter2"));
    }

    #[test]
    fn a_bound_secret_counts_as_present() {
        let bindings = BTreeMap::from([("/db/password".to_owned(), "db-password".parse().unwrap())]);
        let inputs = map(json!({"name": "ok", "db": {}}));
        let empty = Object::new();
        assert!(resolve(&schema(), [&empty, &inputs, &empty], &bindings).is_ok());
        let refusal = resolve(&schema(), [&empty, &inputs, &empty], &BTreeMap::new()).unwrap_err();
        assert_eq!(refusal.code, Code::InvalidInputs);
    }

    #[test]
    fn invalid_inputs_are_named_by_pointer() {
        let empty = Object::new();
        let refusal =
            resolve(&schema(), [&empty, &map(json!({"name": "x"})), &empty], &BTreeMap::new()).unwrap_err();
        assert_eq!((refusal.code, refusal.field.as_deref()), (Code::InvalidInputs, Some("inputs/name")));
        let refusal = resolve(&schema(), [&empty, &empty, &empty], &BTreeMap::new()).unwrap_err();
        assert!(refusal.detail.contains("name"), "{}", refusal.detail);
    }

    #[test]
    fn a_schema_that_reaches_out_is_refused() {
        let refusal =
            check_schema(&json!({"properties": {"a": {"$ref": "http://example.invalid/a"}}})).unwrap_err();
        assert_eq!(refusal.code, Code::InvalidSchema);
        assert!(check_schema(&json!({"type": 7})).is_err());
        assert!(check_schema(&schema()).is_ok());
    }
}
