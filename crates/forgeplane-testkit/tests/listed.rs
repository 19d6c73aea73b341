//! No story is forgotten: whatever a theme tells, the macros make a test of.

/// The sources of the stories, and the module path the macros name them by.
const THEMES: &[(&str, &str)] = &[
    ("store::attempts", include_str!("../src/store/attempts.rs")),
    ("store::catalogs", include_str!("../src/store/catalogs.rs")),
    ("store::commit", include_str!("../src/store/commit.rs")),
    ("store::concurrency", include_str!("../src/store/concurrency.rs")),
    ("store::constraints", include_str!("../src/store/constraints.rs")),
    ("store::durability", include_str!("../src/store/durability.rs")),
    ("store::events", include_str!("../src/store/events.rs")),
    ("store::fences", include_str!("../src/store/fences.rs")),
    ("store::lists", include_str!("../src/store/lists.rs")),
    ("store::literal", include_str!("../src/store/literal.rs")),
    ("store::logs", include_str!("../src/store/logs.rs")),
    ("store::outbox", include_str!("../src/store/outbox.rs")),
    ("store::paging", include_str!("../src/store/paging.rs")),
    ("store::queries", include_str!("../src/store/queries.rs")),
    ("store::versions", include_str!("../src/store/versions.rs")),
    ("queue", include_str!("../src/queue.rs")),
    ("blob", include_str!("../src/blob.rs")),
];

const MACROS: &str = include_str!("../src/macros.rs");

/// The names of the stories in a source.
fn told(source: &str) -> Vec<&str> {
    let starts = source.lines().filter_map(|line| line.strip_prefix("pub async fn "));
    starts.filter_map(|rest| rest.split(['(', '<']).next()).collect()
}

/// The names that the macros list for a module, in all its groups.
fn listed(module: &str) -> Vec<&'static str> {
    let beginning = format!(" {module} => ");
    let groups = MACROS.split(&beginning).skip(1);
    let lists = groups.filter_map(|group| Some(group.split_once('{')?.1.split_once('}')?.0));
    lists.flat_map(|list| list.split(',')).map(str::trim).filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_story_is_listed() {
    for (module, source) in THEMES {
        assert!(!told(source).is_empty(), "{module} tells nothing");
        assert_eq!(told(source), listed(module), "{module}");
    }
}

#[test]
fn every_theme_of_the_store_is_looked_at() {
    let declared = include_str!("../src/store/mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .map(|theme| format!("store::{theme}"));
    let known: Vec<&str> =
        THEMES.iter().map(|(module, _)| *module).filter(|it| it.starts_with("store")).collect();
    assert_eq!(declared.collect::<Vec<_>>(), known);
}
