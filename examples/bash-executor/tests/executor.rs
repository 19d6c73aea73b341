//! The executor keeps the promises of every executor.

use std::path::{Path, PathBuf};

use forgeplane_example_bash_executor::BashExecutor;
use forgeplane_testkit::ExecutorKit;
use forgeplane_testkit::executor::Script;
use forgeplane_worker::executor::Executor;

struct Bash;

impl ExecutorKit for Bash {
    const NAME: &'static str = "bash";
    const ENTRYPOINT: Option<&'static str> = Some("run.sh");

    fn executor() -> impl Executor {
        BashExecutor
    }

    fn tool(_: &Path) -> PathBuf {
        "/bin/bash".into()
    }

    fn source(script: Script) -> Vec<(&'static str, &'static str)> {
        let run = match script {
            Script::Greet => "source \"$INPUTS\"\necho \"$greeting\"\necho \"$token\"\n",
            Script::Fail => "echo about to fail\nexit 3\n",
            Script::Wait => "echo waiting\nsleep 600\n",
        };
        vec![("run.sh", run)]
    }
}

forgeplane_testkit::executor_conformance!(Bash);
