//! What happens to the guest when there is no isolation, or when it is lost.

use super::*;
use crate::state::Isolation;

#[tokio::test]
async fn where_isolation_is_required_the_guest_stays_paused_and_is_not_ready() {
    let mut bench = Bench::new(Some(Behaviour::failing(99)), "", "");
    bench.logged("the guest stays paused").await;
    let state = bench.state(|state| !state.reason.is_empty()).await;
    let not_ready = state.readiness().unwrap_err();
    assert!(not_ready.contains("CPU 2 is taken"), "{not_ready}");
    assert!(state.liveness().is_ok());
    assert_eq!(bench.orders(), "");
    // A guest that never ran is not waited for.
    assert_eq!(bench.terminated().await, 3);
    assert_eq!(bench.orders(), "quit");
}

#[tokio::test]
async fn where_it_is_not_the_guest_runs_degraded_and_is_isolated_when_the_daemon_comes() {
    // Given no daemon
    let mut bench = Bench::under(None, &["--require-isolation=no"], &[]);
    bench.logged("will run DEGRADED").await;
    bench.logged("guest running").await;
    let state = bench.state(|state| state.guest == "running").await;
    assert_eq!(state.isolation, Isolation::None);
    assert!(state.readiness().unwrap().starts_with("degraded, not isolated"));
    // When there is one
    let socket = bench.dir.path().join("socket");
    fakes::daemon(&socket, Behaviour::default(), bench.calls.clone());
    // Then the running guest is registered and attached, once
    let state = bench.state(|state| state.isolation.is_as_promised()).await;
    assert_eq!(state.readiness(), Ok("isolated".into()));
    assert_eq!(bench.orders(), "cont");
    assert_eq!(bench.terminated().await, 7);
    assert_eq!(bench.calls.names().len(), 3);
}

#[tokio::test]
async fn a_refused_guest_may_run_degraded_too() {
    let bench = Bench::under(Some(Behaviour::refusing()), &["--require-isolation=no"], &[]);
    bench.logged("guest running").await;
    let state = bench.state(|state| state.guest == "running").await;
    assert!(state.readiness().unwrap().contains("NotGuaranteed"));
}

#[tokio::test]
async fn a_daemon_that_comes_back_is_told_nothing_it_knows() {
    let mut bench = Bench::running("").await;
    let tasks = format!("/proc/{}/task", bench.runner.id());
    let threads = || std::fs::read_dir(&tasks).unwrap().count();
    let before = threads();
    bench.calls.hang_up.notify_one();
    let away = bench.state(|state| !state.daemon).await;
    assert_eq!(away.readiness(), Ok("isolated".into()));
    bench.state(|state| state.daemon).await;
    bench.logged("the daemon is back").await;
    // A further thread would have to be moved between cgroups.
    assert_eq!(threads(), before);
    assert_eq!(bench.orders(), "cont");
    let calls = bench.calls.names();
    assert_eq!(calls.iter().filter(|call| call.starts_with("AttachVcpus")).count(), 1);
    assert_eq!(bench.terminated().await, 7);
    assert_eq!(bench.calls.names().last().unwrap(), "Deregister ''");
}

#[tokio::test]
async fn an_evicted_guest_runs_on_and_is_not_ready_until_it_is_isolated_again() {
    let bench = Bench::running("").await;
    bench.becomes(Some("waiting"));
    let state = bench.state(|state| state.isolation == Isolation::Waiting).await;
    assert!(state.readiness().unwrap_err().contains("CPU 2 was given"));
    bench.becomes(Some("isolated"));
    let state = bench.state(|state| state.isolation.is_as_promised()).await;
    assert_eq!(state.readiness(), Ok("isolated".into()));
    assert_eq!(bench.orders(), "cont");
}

#[tokio::test]
async fn an_instance_that_an_administrator_deregistered_is_not_registered_anew() {
    let mut bench = Bench::running("").await;
    bench.becomes(Some(""));
    let state = bench.state(|state| state.isolation == Isolation::Deregistered).await;
    assert!(state.readiness().unwrap_err().contains("deregistered"));
    // Not even when its threads change.
    bench.write("vcpus", "3");
    bench.write("event", "RESET");
    bench.logged("QEMU: RESET").await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(bench.calls.names().len(), 2);
    assert_eq!(bench.terminated().await, 7);
}

#[tokio::test]
async fn odd_answers_of_qemus_end_nothing() {
    let mut bench = Bench::new(Some(Behaviour::default()), "odd", "");
    bench.logged("unexpected answer").await;
    assert_eq!(bench.orders(), "");
    bench.signal(Signal::TERM);
    // Its run state cannot be queried either, so the whole grace passes before `quit`.
    assert_eq!(bench.exit_code().await, 3);
    assert!(!bench.read("log").contains("panicked"));
}
