//! Content is content: nothing in a record is ever read as a query, a pattern, an escape or an end.

use forgeplane_core::model::*;
use forgeplane_core::ports::{Page, Select, Store};
use serde_json::json;

use super::*;
use crate::fixtures::Fixtures;

/// Text that means something to a database, a parser or a terminal.
const HOSTILE: &[&str] = &[
    "",
    " ",
    "'",
    "''",
    "\"",
    "`",
    "\\",
    "\\'",
    ";",
    "--",
    "/*",
    "' OR '1'='1",
    "1' OR 1=1 --",
    "'; DROP TABLE run; --",
    "\"; DROP TABLE \"run\"; --",
    "'); DELETE FROM project; COMMIT; --",
    "1; UPDATE run SET status = 'succeeded'",
    "' UNION SELECT version, doc FROM secret --",
    "'||(SELECT pg_sleep(10))||'",
    "$1",
    "?1",
    ":name",
    "@p",
    "$$; DROP TABLE run; $$",
    "%",
    "_",
    "%s%n{}{0}",
    "NULL",
    "null",
    "\0",
    "before\0after",
    "\u{1}\u{8}\u{b}\u{7f}",
    "line\r\nline\n\tline",
    "\u{1b}[31mred\u{1b}[0m",
    "\u{feff}mark",
    "\u{202e}right to left",
    "\u{2028}\u{2029}",
    "\u{fffd}\u{ffff}",
    "e\u{301} is not \u{e9}",
    "İıſK",
    "\u{1f680}\u{1f469}\u{200d}\u{1f4bb}",
    "\\u0000",
    "\\x00",
    "{\"json\": true}",
    "<script>alert(1)</script>",
    "../../etc/passwd",
];

/// A run that carries `text` wherever it has room for text.
fn run_saying(make: &Fixtures, instance: &Instance, text: &str) -> Run {
    Run {
        requested_by: Actor::system(text),
        stop: Some(StopRequest {
            by: Actor::Principal { id: make.id(), name: text.to_owned() },
            at: make.now(),
            cause: StopCause::Cancel,
            reason: Some(text.to_owned()),
        }),
        error: Some(RunError { code: text.to_owned(), message: text.to_owned() }),
        ..make.run(instance)
    }
}

/// An event that carries `text` as key and as value.
fn event_saying(make: &Fixtures, run: &Run, text: &str) -> Event {
    let data = json!({ text: text, "list": [text, { text: [text] }] });
    Event { data: data.as_object().unwrap().clone(), actor: Actor::system(text), ..make.event(run, 1) }
}

/// Hostile text in every kind of place is stored and read back as it is, and does nothing.
pub async fn g17_hostile_text_is_stored_literally(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    let mut records: Vec<Record> = vec![];
    let mut events = vec![];
    for text in HOSTILE {
        let run = run_saying(&make, &instance, text);
        let attempt = make.attempt(&run, &make.worker());
        let decision = OperatorDecision {
            reason: (*text).into(),
            asserted: vec![(*text).into()],
            ..make.decision(&attempt)
        };
        let receipt = Receipt { envelope: (*text).into(), ..make.receipt(&attempt) };
        let schema = json!({ *text: text });
        let version = TemplateVersion {
            schema,
            entrypoint: Some((*text).into()),
            ..make.template_version(&make.template(&make.project()), 1)
        };
        let worker = Worker { quarantined: Some((*text).into()), ..make.worker() };
        let orphan =
            OrphanState { reason: (*text).into(), ..make.orphan_state(&make.state_object(&instance)) };
        let event = event_saying(&make, &run, text);
        let of_text: [Record; 6] =
            [run.into(), decision.into(), receipt.into(), version.into(), worker.into(), orphan.into()];
        let mut changes = inserting(of_text.clone());
        changes.events.push(event.clone());
        let committed = commit(store, changes).await;
        events.push(Event { seq: committed.events[0], ..event });
        records.extend(of_text);
    }
    for record in records {
        is_stored(store, record, 1).await;
    }
    assert_eq!(all_events(store).await, events);
    let select = Select::Runs { project: instance.project, status: None, instance: Some(instance.id) };
    assert_eq!(listed(store, &select, &Page::all()).await.len(), HOSTILE.len());
}

/// A key that is no key finds nothing, and asking for it does nothing.
pub async fn g17_a_hostile_key_finds_nothing(store: &dyn Store) {
    let make = Fixtures::new();
    let records = make.one_of_each();
    commit(store, inserting(records.clone())).await;
    for id in HOSTILE.iter().filter(|it| !it.contains('\0')) {
        for &kind in Kind::ALL {
            assert_eq!(stored(store, &Key { kind, id: (*id).to_owned() }).await, None, "{kind:?} {id:?}");
        }
    }
    for record in records {
        is_stored(store, record, 1).await;
    }
}

/// A cursor is compared, never executed.
pub async fn g17_a_hostile_cursor_is_only_compared(store: &dyn Store) {
    let make = Fixtures::new();
    let projects = [make.project(), make.project()];
    commit(store, inserting(projects.clone())).await;
    for after in HOSTILE.iter().filter(|it| !it.contains('\0') && it.is_ascii()) {
        let page = Page { after: Some((*after).to_owned()), limit: 10 };
        // Where the text sorts is the database's business; what comes is a part of the list.
        let listed = listed(store, &Select::Projects, &page).await;
        assert!(listed.is_empty() || listed == projects.clone().map(Record::from), "{after:?}: {listed:?}");
    }
    for project in projects {
        is_stored(store, project, 1).await;
    }
}

/// An idempotency key of any visible characters is a key of its own.
pub async fn g17_a_hostile_idempotency_key_is_a_key(store: &dyn Store) {
    let make = Fixtures::new();
    let run = make.run(&make.instance(&make.template(&make.project())));
    let keys = ["'", "\"", "\\", "';DROP", "%", "_", "$1", "?", ":a", "A", "a", "key", "KEY", "--"];
    let kept = keys.map(|key| Idempotency { key: key.to_owned(), ..make.idempotency(&run) });
    commit(store, inserting(kept.clone())).await;
    for it in kept {
        is_stored(store, it, 1).await;
    }
}

/// A megabyte of text is stored like any other, in a record and in an event.
pub async fn a_megabyte_is_stored_like_any_other_text(store: &dyn Store) {
    let make = Fixtures::new();
    let instance = make.instance(&make.template(&make.project()));
    for filling in ["x", "'", "\0", "\u{1f680}"] {
        let text = filling.repeat((1 << 20) / filling.len());
        let run = make.run(&instance);
        let message = Run { error: Some(RunError { code: "long".to_owned(), message: text.clone() }), ..run };
        let mut event = make.event(&message, 1);
        event.data.insert("text".to_owned(), text.into());
        let mut changes = insert(message.clone());
        changes.events.push(event.clone());
        let seq = commit(store, changes).await.events[0];
        // Compared without printing a megabyte.
        let key = Record::from(message.clone()).key();
        assert!(stored(store, &key).await == Some((message.into(), 1)), "a megabyte of {filling:?}");
        let read = store.events(&Default::default(), seq - 1, 1).await.expect("the store answers");
        assert!(read == [Event { seq, ..event }], "an event with a megabyte of {filling:?}");
    }
}

/// Numbers at the ends of their range, deep nesting and empty things keep their value.
pub async fn json_keeps_its_value(store: &dyn Store) {
    let make = Fixtures::new();
    let nested = (0..60).fold(json!(null), |inner, _| json!([{ "in": inner }]));
    let values = json!({
        "numbers": [0, -1, 0.5, -0.25, i64::MIN, i64::MAX, u64::MAX],
        "empty": [{}, [], "", null, false],
        "nested": nested,
    });
    let inputs = values.as_object().unwrap().clone();
    let instance = Instance { inputs, ..make.instance(&make.template(&make.project())) };
    commit(store, insert(instance.clone())).await;
    is_stored(store, instance, 1).await;
}
