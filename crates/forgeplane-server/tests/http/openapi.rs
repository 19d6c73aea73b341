//! The document beside the manifest is the one the code makes.

use crate::support::House;

#[tokio::test]
async fn the_checked_in_document_is_what_the_code_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    let now = forgeplane_server::openapi::json();
    if std::env::var_os("FORGEPLANE_WRITE_OPENAPI").is_some() {
        std::fs::write(path, now).unwrap();
    }
    let checked_in = std::fs::read_to_string(path).unwrap();
    assert!(
        checked_in == now,
        "openapi.json is out of date; write it anew with FORGEPLANE_WRITE_OPENAPI=1 and review the difference"
    );

    let house = House::new().await;
    let served = house.get("", "/api/v1/openapi.json").await;
    assert_eq!((served.status.as_u16(), served.text().as_str()), (200, now));
}

#[test]
fn every_operation_is_described_and_may_answer_with_a_problem() {
    let document = serde_json::to_value(forgeplane_server::openapi::document()).unwrap();
    let mut ids = std::collections::BTreeSet::new();
    let mut count = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            count += 1;
            let place = format!("{method} {path}");
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{place}");
            assert!(operation["summary"].as_str().is_some_and(|s| s.ends_with('.')), "{place}: {operation}");
            let problem = &operation["responses"]["default"]["content"]["application/problem+json"];
            assert_eq!(problem["schema"]["$ref"], "#/components/schemas/Problem", "{place}");
        }
    }
    assert!(count > 35, "only {count} operations");
    for reference in references(&document) {
        let name = reference.strip_prefix("#/components/schemas/").unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{reference} leads nowhere");
    }
}

fn references(value: &serde_json::Value) -> Vec<String> {
    match value {
        serde_json::Value::Object(map) => map
            .iter()
            .flat_map(|(key, inner)| match inner {
                serde_json::Value::String(target) if key == "$ref" => vec![target.clone()],
                _ => references(inner),
            })
            .collect(),
        serde_json::Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}
