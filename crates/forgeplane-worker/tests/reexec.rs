//! A program that is its own helper. It has a `main` of its own, because that is what is tested.
#![allow(clippy::unwrap_used)]

use forgeplane_worker::sandbox::{CommandSpec, Isolation, Sandbox, run_if_helper};
use tokio::io::AsyncReadExt;

fn main() {
    let unprepared = Sandbox::new(Isolation::UnsafeNone, None).unwrap_err();
    assert_eq!(unprepared.code(), "helper_unavailable", "before main has agreed");
    run_if_helper();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let sandbox = Sandbox::new(Isolation::UnsafeNone, None).unwrap();
        let spec = CommandSpec {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), "echo $GREETING".into()],
            env: vec![("GREETING".into(), "hello from the tool".into())],
            cwd: "/".into(),
        };
        let mut running = sandbox.spawn(spec).await.unwrap();
        let mut out = String::new();
        running.take_stdout().unwrap().read_to_string(&mut out).await.unwrap();
        assert_eq!(out, "hello from the tool\n");
        assert_eq!(running.wait().await.unwrap().code, Some(0));
    });
}
