//! A QEMU that something else started; and the programs that ask.

use std::process::ExitCode;

use super::*;
use crate::cli::{ProbeKind, ProbeOptions, RunnerOptions};
use crate::probe;
use crate::state::Isolation;

/// A QEMU that the runner did not start, and the directory it works in.
pub fn qemu(how: &str) -> (TempDir, Child) {
    let dir = tempfile::tempdir().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["tests::helper_qemu", "--exact", "--ignored", "--nocapture"])
        .env(DIR, dir.path())
        .env("STELIA_TEST_QEMU", how)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (dir, child)
}

pub fn attached(dir: TempDir, options: &[&str]) -> Bench {
    let setup = Setup {
        daemon: Some(Behaviour::default()),
        ..Setup::default()
    };
    Bench::started_in(dir, "attach", options, &[], &setup)
}

#[tokio::test]
async fn by_its_monitor_it_is_found_attached_and_left_as_it_was() {
    // Given a QEMU that runs
    let (dir, mut child) = qemu("running");
    // When it is attached
    let mut bench = attached(dir, &["--qmp", "DIR/qmp"]);
    bench.logged("attached to a guest that ran before").await;
    // Then the state says that there was no paused start
    let state = bench.state(|state| state.isolation == Isolation::Isolated).await;
    assert!(!state.paused_start && state.readiness().is_ok());
    assert_eq!(bench.calls.pid("qemu"), i32::try_from(child.id()).unwrap());
    // And SIGTERM leaves QEMU alone: the runner is not PID 1 here
    assert_eq!(bench.terminated().await, 0);
    assert_eq!(bench.orders(), "");
    assert_eq!(bench.calls.names().last().unwrap(), "Deregister ''");
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn by_its_threads_names_it_is_attached_until_it_ends() {
    let (dir, mut child) = qemu("named");
    let pid = child.id().to_string();
    let mut bench = attached(dir, &["--pid", &pid, "--state-dir", "DIR"]);
    bench.logged("attached to a guest that ran before").await;
    let state = bench.state(|state| state.isolation.is_as_promised()).await;
    assert_eq!((state.guest.as_str(), state.vcpus.len()), ("unknown", 2));
    assert!(state.iothreads.contains_key("disk"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(bench.exit_code().await, 0);
    assert_eq!(bench.calls.names().last().unwrap(), "Deregister ''");
}

/// The exit code of a blocking program, while the runner and the daemon go on.
async fn code(program: impl FnOnce() -> ExitCode + Send + 'static) -> ExitCode {
    tokio::task::spawn_blocking(program).await.unwrap()
}

fn same(one: ExitCode, other: ExitCode) -> bool {
    format!("{one:?}") == format!("{other:?}")
}

#[tokio::test]
async fn a_probe_finds_the_runner_beside_its_monitor_and_stop_ends_it() {
    let mut bench = Bench::new(Some(Behaviour::default()), "", "");
    bench.state(|state| state.guest == "running").await;
    let place = RunnerOptions {
        state_dir: None,
        api_socket: None,
        qmp: Some(bench.dir.path().join("qmp")),
    };
    for what in [ProbeKind::Readiness, ProbeKind::Liveness, ProbeKind::State] {
        let place = place.clone();
        let code = code(move || probe::probe(&ProbeOptions { what, place })).await;
        assert!(same(code, ExitCode::SUCCESS), "{what:?}");
    }
    // When a preStop hook says stop, then it returns when all is over
    let stopping = place.clone();
    let stopper = tokio::spawn(code(move || probe::stop(&stopping)));
    assert_eq!(bench.exit_code().await, 7);
    assert!(same(stopper.await.unwrap(), ExitCode::SUCCESS));
    assert_eq!(bench.orders(), "cont system_powerdown");
    // And no probe is answered any more
    let what = ProbeKind::Liveness;
    let code = code(move || probe::probe(&ProbeOptions { what, place })).await;
    assert!(same(code, ExitCode::FAILURE));
}
