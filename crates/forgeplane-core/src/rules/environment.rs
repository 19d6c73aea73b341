//! Inputs that reach the tool in its environment, as most providers want their credentials (`spec.md` §4, §7).
//!
//! A template's schema says so where it says everything of an input: `"x-forgeplane-env": "AWS_REGION"`. Such an input is
//! no variable of the source. What would change which program runs, what it loads or where its state goes is no input.

use std::collections::BTreeMap;

use serde_json::Value;

use super::inputs::{marked, misplaced_marker};
use crate::model::Object;
use crate::refusal::{Code, Refusal};

/// The schema keyword that puts an input into the environment; its value is the variable's name.
pub const ENVIRONMENT_KEYWORD: &str = "x-forgeplane-env";

/// The longest name of a variable, bytes.
const LONGEST: usize = 128;

/// Variables that are not to be had, and why; a name that ends with `*` stands for everything that begins like it.
const RESERVED: &[(&str, &str)] = &[
    ("TF_CLI_*", "it would change the tool's arguments or configuration"),
    ("TF_DATA_DIR", "the worker decides where the tool keeps its data"),
    ("TF_WORKSPACE", "the state of a run is that of its instance"),
    ("TF_HTTP_*", "it would lead to another state"),
    ("TF_BACKEND*", "it would lead to another state"),
    ("TF_STATE*", "it would lead to another state"),
    ("TF_ENCRYPTION*", "the state is sealed by Forgeplane"),
    ("TF_REATTACH_PROVIDERS", "it would replace providers by running processes"),
    ("TF_PLUGIN_*", "a cache that is shared between runs is not safe"),
    ("TF_LOG_PATH*", "it would write a log that nobody masks"),
    ("TF_IN_AUTOMATION", "the worker sets it"),
    ("TF_INPUT", "the worker sets it"),
    ("TF_VAR_*", "a variable of the source is an input without this keyword"),
    ("TERRAFORM_CONFIG", "it would change the tool's configuration"),
    ("CHECKPOINT_*", "the worker sets it"),
    ("ANSIBLE_*", "it would change what Ansible loads; the source may bring an `ansible.cfg`"),
    ("FORGEPLANE_*", "it is the worker's"),
    ("PATH", "the worker sets it"),
    ("HOME", "the worker sets it"),
    ("TMPDIR", "the worker sets it"),
    ("LANG", "the worker sets it"),
    ("LC_*", "the worker sets the language"),
    ("LD_*", "it would load code into the tool"),
    ("GLIBC_*", "it would change the tool's memory management"),
    ("MALLOC_*", "it would change the tool's memory management"),
    ("GCONV_PATH", "it would load code into the tool"),
    ("BASH*", "it would run code in every shell"),
    ("ENV", "it would run code in every shell"),
    ("SHELL*", "it would change what shells do"),
    ("IFS", "it would change what shells do"),
    ("PS4", "it would run code in shells"),
    ("PROMPT_COMMAND", "it would run code in shells"),
    ("CDPATH", "it would change what shells do"),
    ("GIT_*", "it would change what is fetched and run"),
    ("SSH_ASKPASS*", "it would run a program"),
    ("PYTHON*", "it would load code into the tool"),
    ("PERL*", "it would load code into the tool"),
    ("RUBY*", "it would load code into the tool"),
    ("NODE_*", "it would load code into the tool"),
    ("JAVA_TOOL_OPTIONS", "it would load code into the tool"),
    ("_JAVA_OPTIONS", "it would load code into the tool"),
    ("DOTNET_STARTUP_HOOKS", "it would load code into the tool"),
];

/// Why a variable of this name is not to be had; absent: it is.
#[must_use]
pub fn reserved(name: &str) -> Option<&'static str> {
    // Names that differ in case only are told apart by the system, and by few people.
    let name = name.to_ascii_uppercase();
    let is = |pattern: &str| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    };
    RESERVED.iter().find(|(pattern, _)| is(pattern)).map(|(_, why)| *why)
}

/// Paths (JSON pointers into the inputs) and the names of their variables.
fn wanted(schema: &Value) -> impl Iterator<Item = (String, &str)> {
    marked(schema, ENVIRONMENT_KEYWORD).into_iter().filter_map(|(path, name)| Some((path, name.as_str()?)))
}

/// Checks what a schema wants in the environment.
///
/// # Errors
/// [`Code::InvalidSchema`] with the name: not one, twice, or reserved; also for the keyword at a place that says nothing.
pub fn check(schema: &Value) -> Result<(), Refusal> {
    let invalid = |detail: String| Err(Refusal::new(Code::InvalidSchema, detail).field("schema"));
    if let Some(place) = misplaced_marker(schema, ENVIRONMENT_KEYWORD, Value::is_string) {
        return invalid(format!(
            "`{ENVIRONMENT_KEYWORD}` at `{place}` would set nothing: it must be the name of a variable, and only counts \
             on a property reached through `properties` alone"
        ));
    }
    let mut seen = BTreeMap::new();
    for (path, name) in wanted(schema) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let begins_well = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
        if !begins_well || !name.bytes().all(plain) || name.len() > LONGEST {
            return invalid(format!(
                "`{path}`: `{name}` is not the name of an environment variable: letters, digits and `_`, at most \
                 {LONGEST}, no digit first"
            ));
        }
        if let Some(why) = reserved(name) {
            return invalid(format!("`{path}`: the environment variable `{name}` cannot be set: {why}"));
        }
        if let Some(first) = seen.insert(name.to_owned(), path.clone()) {
            return invalid(format!(
                "`{first}` and `{path}` both want to be the environment variable `{name}`"
            ));
        }
    }
    Ok(())
}

/// The variables of a schema: name and the path (a JSON pointer into the inputs) of its value. Values that are known now
/// are looked at; those of secrets are not.
///
/// # Errors
/// [`Code::InvalidInputs`] for a value that cannot be in an environment.
pub fn variables(schema: &Value, inputs: &Object) -> Result<BTreeMap<String, String>, Refusal> {
    let document = Value::Object(inputs.clone());
    let mut variables = BTreeMap::new();
    for (path, name) in wanted(schema) {
        if document.pointer(&path).is_some_and(|value| text(value).is_none()) {
            return Err(Refusal::new(
                Code::InvalidInputs,
                format!("`{path}` is the environment variable `{name}`: a text without NUL, a number or a truth value"),
            )
            .field(format!("inputs{path}")));
        }
        variables.insert(name.to_owned(), path);
    }
    Ok(variables)
}

/// A value as it is in an environment; `None` for one that cannot be.
#[must_use]
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.contains('\0') => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(name: &str) -> Value {
        json!({"type": "object", "properties": {"region": {"type": "string", ENVIRONMENT_KEYWORD: name}}})
    }

    #[test]
    fn g20_what_would_change_the_tool_itself_is_refused_by_name() {
        for name in [
            "TF_CLI_ARGS",
            "TF_CLI_ARGS_plan",
            "tf_cli_args_apply",
            "TF_CLI_CONFIG_FILE",
            "TF_DATA_DIR",
            "TF_WORKSPACE",
            "TF_REATTACH_PROVIDERS",
            "TF_HTTP_ADDRESS",
            "TF_PLUGIN_CACHE_DIR",
            "TF_VAR_region",
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "BASH_ENV",
            "GIT_SSH_COMMAND",
            "ANSIBLE_CONFIG",
            "PYTHONPATH",
            "PATH",
            "HOME",
        ] {
            let refusal = check(&schema(name)).unwrap_err();
            assert_eq!((refusal.code, refusal.field.as_deref()), (Code::InvalidSchema, Some("schema")));
            assert!(refusal.detail.contains(name) && refusal.detail.contains("/region"), "{refusal}");
        }
        for name in
            ["AWS_REGION", "AWS_SECRET_ACCESS_KEY", "GOOGLE_CREDENTIALS", "TF_LOG", "HTTPS_PROXY", "_X1"]
        {
            check(&schema(name)).unwrap();
        }
    }

    #[test]
    fn what_is_no_name_or_is_wanted_twice_is_refused() {
        for name in ["", "1X", "A=B", "A B", "A\0", "ä", &"X".repeat(129)] {
            assert_eq!(check(&schema(name)).unwrap_err().code, Code::InvalidSchema, "{name:?}");
        }
        let twice = json!({"properties": {"a": {ENVIRONMENT_KEYWORD: "X"}, "b": {ENVIRONMENT_KEYWORD: "X"}}});
        let refusal = check(&twice).unwrap_err();
        assert!(refusal.detail.contains("`/a`") && refusal.detail.contains("`/b`"), "{refusal}");
        for misplaced in [
            json!({ENVIRONMENT_KEYWORD: "X"}),
            json!({"properties": {"a": {ENVIRONMENT_KEYWORD: true}}}),
            json!({"allOf": [{"properties": {"a": {ENVIRONMENT_KEYWORD: "X"}}}]}),
            json!({"properties": {"a": {"items": {ENVIRONMENT_KEYWORD: "X"}}}}),
        ] {
            assert_eq!(check(&misplaced).unwrap_err().code, Code::InvalidSchema, "{misplaced}");
        }
        // An input of that name is no keyword, and neither is data.
        check(&json!({"properties": {ENVIRONMENT_KEYWORD: {"default": {ENVIRONMENT_KEYWORD: 7}}}})).unwrap();
    }

    #[test]
    fn values_are_texts_numbers_and_truth_values() {
        let inputs = |value: Value| json!({"region": value}).as_object().unwrap().clone();
        let schema = schema("AWS_REGION");
        for value in [json!("eu-west-1"), json!(7), json!(true)] {
            let variables = variables(&schema, &inputs(value)).unwrap();
            assert_eq!(variables, BTreeMap::from([("AWS_REGION".to_owned(), "/region".to_owned())]));
        }
        for value in [json!("a\0b"), json!(["a"]), json!({}), json!(null)] {
            let refusal = variables(&schema, &inputs(value)).unwrap_err();
            assert_eq!(
                (refusal.code, refusal.field.as_deref()),
                (Code::InvalidInputs, Some("inputs/region"))
            );
        }
    }
}
