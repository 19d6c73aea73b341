//! The promises of an executor, told with a real worker, a real coordinator and real processes.
//!
//! An author says how the tool is made to print, to fail and to wait ([`ExecutorKit`]); a test target of its own does the
//! rest. It needs `harness = false`, since the test's program is also the sandbox helper that starts the tool:
//!
//! ```toml
//! [[test]]
//! name = "executor"
//! harness = false
//! ```
//!
//! ```ignore
//! forgeplane_testkit::executor_conformance!(MyKit);
//! ```
//!
//! The example `bash-executor` is an executor with its suite. Tools run as user ids of their own, so the stories need root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use async_trait::async_trait;
use forgeplane_core::evidence::Cleanup;
use forgeplane_core::id::RunId;
use forgeplane_core::model::{Object, Operation, OutcomeKind, RunStatus, StopCause};
use forgeplane_worker::executor::Executor;
use libtest_mimic::{Arguments, Trial};
use serde_json::json;

use crate::house::{House, RunningWorker, name, settings};
use crate::run::story;

/// What every greeting is given, and must be read again in the log.
const GREETING: &str = "it's $HOME, sweet home";
/// A secret that the tool gets, and nobody else may read.
const TOKEN: &str = "correct horse battery staple";

/// What a source makes the tool do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// Print the input `greeting` and the input `token`, and succeed.
    Greet,
    /// Print `about to fail`, and fail.
    Fail,
    /// Print `waiting`, and wait for ten minutes, in a process of its own.
    Wait,
}

/// An executor, a tool for it, and sources that make that tool do what the stories need.
#[async_trait]
pub trait ExecutorKit: Send + Sync + 'static {
    /// What the tests are called by.
    const NAME: &'static str;

    /// The source's entry point, if the tool needs one.
    const ENTRYPOINT: Option<&'static str> = None;

    /// The executor.
    fn executor() -> impl Executor;

    /// The tool's executable: a real one, or a fake that is written into `directory`.
    fn tool(directory: &Path) -> PathBuf;

    /// The files of a source, by path. Its inputs are the texts `greeting` and `token`.
    fn source(script: Script) -> Vec<(&'static str, &'static str)>;

    /// Begins the run of the instance `bound` that does what the source says.
    async fn begin(house: &House) -> RunId {
        house.create_for("bound", Operation::Execute).await
    }
}

/// A house with a worker that has the executor, and an instance `bound` whose source is made for a story.
struct Bound {
    house: House,
    _worker: RunningWorker,
}

impl Bound {
    async fn new<K: ExecutorKit>(script: Script, entrypoint: Option<&str>, timeout_s: u64) -> Self {
        let executor = K::executor();
        let mut settings = settings();
        settings.executors.insert(executor.tool());
        let house = House::new(settings, None).await;
        let tool = executor.tool();
        let worker = house.worker_of(executor, &K::tool(house.directory.path())).await;
        let schema = json!({
            "type": "object",
            "properties": {
                "greeting": {"type": "string"},
                "token": {"type": "string", "x-forgeplane-secret": true},
            },
        });
        house
            .app(tool, &K::source(script), |push| {
                push.schema = Some(schema);
                push.entrypoint = entrypoint.map(str::to_owned);
                push.execution_timeout_s = timeout_s;
            })
            .await;
        let (alice, secret) = (&house.alice, TOKEN.to_owned().into());
        house.coordinator.put_secret(alice, &name("token"), &secret, vec![name("bound")]).await.unwrap();
        let inputs = Object::from_iter([("greeting".to_owned(), GREETING.into())]);
        house.instance("bound", inputs, BTreeMap::from([("/token".to_owned(), name("token"))])).await;
        Self { house, _worker: worker }
    }

    /// Begins the run, and gives it when its tool waits.
    async fn waiting<K: ExecutorKit>(timeout_s: u64) -> (House, RunningWorker, RunId) {
        let Self { house, _worker } = Self::new::<K>(Script::Wait, K::ENTRYPOINT, timeout_s).await;
        let run = K::begin(&house).await;
        house.until_logged(run, "waiting").await;
        assert!(!house.processes().is_empty(), "what waits is a process of the tool's user id");
        (house, _worker, run)
    }
}

/// What the source says is done, with the inputs; the outcome names the tool that did it.
pub async fn a_run_does_what_its_source_says<K: ExecutorKit>() {
    let Bound { house, _worker } = Bound::new::<K>(Script::Greet, K::ENTRYPOINT, 300).await;
    let run = K::begin(&house).await;
    house.must_succeed(run).await;
    let log = house.log(run).await;
    assert!(log.contains(GREETING), "the greeting is not in the log as it was given:\n{log}");
    let outcome = house.outcome(run).await;
    assert_eq!((outcome.outcome, outcome.exit_code), (OutcomeKind::Succeeded, Some(0)));
    assert_eq!((outcome.started, outcome.effects_unknown), (true, false));
    assert_eq!(outcome.cleanup, Cleanup::Clean);
    assert_eq!(outcome.tool.unwrap().tool, K::executor().tool());
    assert!(house.processes().is_empty(), "a process of the tool is left");
}

/// A secret reaches the tool; what the tool prints of it is masked before anybody can read it.
pub async fn a_secret_reaches_the_tool_and_nobody_else<K: ExecutorKit>() {
    let Bound { house, _worker } = Bound::new::<K>(Script::Greet, K::ENTRYPOINT, 300).await;
    let run = K::begin(&house).await;
    house.must_succeed(run).await;
    let log = house.log(run).await;
    assert!(!log.contains(TOKEN), "the secret is in the log:\n{log}");
    assert!(
        log.contains(forgeplane_worker::redact::MASK),
        "the tool did not get the secret, or did not print it:\n{log}"
    );
    let evidence = house.coordinator.evidence(&house.alice, run, None).await.unwrap();
    assert!(!serde_json::to_string(&evidence).unwrap().contains(TOKEN));
}

/// Arguments can be read by everybody on the machine, and the worker's environment is not the tool's business.
pub async fn arguments_hold_no_input_and_the_environment_nothing_of_the_worker<K: ExecutorKit>() {
    let (house, _worker, run) = Bound::waiting::<K>(300).await;
    for process in house.processes() {
        let read = |file: &str| {
            let bytes = std::fs::read(process.join(file)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', "\n")
        };
        let (arguments, environment) = (read("cmdline"), read("environ"));
        for input in [TOKEN, GREETING] {
            assert!(!arguments.contains(input), "an input is in the arguments:\n{arguments}");
        }
        // Cargo gives it to every test, and this test's program is the worker.
        assert!(!environment.contains("CARGO_MANIFEST_DIR"), "the worker's environment:\n{environment}");
        assert!(!environment.contains(TOKEN), "a secret that was not asked for:\n{environment}");
    }
    house.coordinator.cancel(&house.alice, run, None).await.unwrap();
    house.ended(run).await;
}

/// A tool that fails is a run that failed, with the exit code for whoever looks for the reason.
pub async fn a_failure_is_a_failure<K: ExecutorKit>() {
    let Bound { house, _worker } = Bound::new::<K>(Script::Fail, K::ENTRYPOINT, 300).await;
    let run = K::begin(&house).await;
    let view = house.ended(run).await;
    assert_eq!(view.run.status, RunStatus::Failed);
    assert_eq!(view.run.error.unwrap().code, "tool_failed");
    assert!(house.log(run).await.contains("about to fail"));
    let outcome = house.outcome(run).await;
    assert_eq!((outcome.outcome, outcome.started), (OutcomeKind::Failed, true));
    assert!(!matches!(outcome.exit_code, None | Some(0)), "{:?}", outcome.exit_code);
    assert!(house.processes().is_empty(), "a process of the tool is left");
}

/// A cancel ends the tool and everything it has started.
pub async fn a_cancel_ends_it_and_nothing_is_left<K: ExecutorKit>() {
    let (house, _worker, run) = Bound::waiting::<K>(300).await;
    house.coordinator.cancel(&house.alice, run, None).await.unwrap();
    assert_eq!(house.ended(run).await.run.status, RunStatus::Canceled);
    let outcome = house.outcome(run).await;
    assert_eq!((outcome.outcome, outcome.stop), (OutcomeKind::Canceled, Some(StopCause::Cancel)));
    assert_eq!(outcome.cleanup, Cleanup::Clean);
    assert!(house.processes().is_empty(), "a process of the tool is left");
}

/// So does the execution timeout.
pub async fn a_deadline_ends_it_and_nothing_is_left<K: ExecutorKit>() {
    let (house, _worker, run) = Bound::waiting::<K>(15).await;
    assert_eq!(house.ended(run).await.run.status, RunStatus::TimedOut);
    let outcome = house.outcome(run).await;
    assert_eq!((outcome.outcome, outcome.stop), (OutcomeKind::TimedOut, Some(StopCause::Deadline)));
    assert!(house.processes().is_empty(), "a process of the tool is left");
}

/// An entry point that the source does not have is said to be the reason, before anything is started.
pub async fn a_missing_entry_point_is_named<K: ExecutorKit>() {
    let Bound { house, _worker } = Bound::new::<K>(Script::Greet, Some("not/there"), 300).await;
    let run = K::begin(&house).await;
    let view = house.ended(run).await;
    assert_eq!(view.run.status, RunStatus::Failed);
    let error = view.run.error.unwrap();
    assert_eq!(error.code, "invalid_entrypoint");
    assert!(error.message.contains("not/there"), "{}", error.message);
    assert!(!house.outcome(run).await.started);
}

/// The stories of a kit as tests; for [`executor_conformance!`](crate::executor_conformance).
#[doc(hidden)]
#[must_use]
pub fn trials<K: ExecutorKit>() -> Vec<Trial> {
    fn trial<K: ExecutorKit, F: Future<Output = ()> + 'static>(called: &str, tell: fn() -> F) -> Trial {
        Trial::test(format!("{}::{called}", K::NAME), move || {
            story(tell());
            Ok(())
        })
    }
    macro_rules! trials {
        ($($story:ident),* $(,)?) => { vec![$(trial::<K, _>(stringify!($story), $story::<K>)),*] };
    }
    trials![
        a_run_does_what_its_source_says,
        a_secret_reaches_the_tool_and_nobody_else,
        arguments_hold_no_input_and_the_environment_nothing_of_the_worker,
        a_failure_is_a_failure,
        a_cancel_ends_it_and_nothing_is_left,
        a_deadline_ends_it_and_nothing_is_left,
        a_missing_entry_point_is_named,
    ]
}

/// The `main` of [`executor_conformance!`](crate::executor_conformance).
#[doc(hidden)]
#[must_use]
pub fn main(trials: impl FnOnce() -> Vec<Trial>) -> ExitCode {
    forgeplane_worker::sandbox::run_if_helper();
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}
