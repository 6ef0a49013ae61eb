//! Where steliad chooses the CPUs: what the runner requests, and classes without exclusive CPUs.

use stelia_koordinator::allocator::Qos;

use super::*;
use crate::state::Isolation;

fn of_class(qos: &'static str, state: &'static str) -> Option<Behaviour> {
    Some(Behaviour {
        qos: Some(qos),
        state: Some(state),
        ..Behaviour::default()
    })
}

#[tokio::test]
async fn an_ls_instance_is_whole_on_the_shared_pool() {
    // Given a VM that requests nothing but the shared pool
    let options = ["--qos", "LS", "--cpu-bind-policy=ConstrainedBurst", "--cpu-limit=2500m"];
    let mut bench = Bench::under(of_class("LS", "shared"), &options, &[]);
    // Then its guest runs, though nothing is pinned, and it is not reported as degraded
    bench.logged("guest running").await;
    bench.logged("LS, on the shared pool: vcpu 0 -> not pinned").await;
    let asked = " cpu-bind-policy=ConstrainedBurst cpu-limit=2500 qos=LS";
    assert_eq!(bench.calls.names()[0], format!("RegisterInstance '' '2-3'{asked}"));
    let state = bench.state(|state| state.guest == "running").await;
    assert_eq!(state.readiness(), Ok("LS, on the shared pool".into()));
    assert_eq!((state.qos, state.isolation), (Some(Qos::Ls), Isolation::Shared));
    assert_eq!(state.vcpus, [(0, 100, None), (1, 101, None)]);
    assert!(!bench.read("log").contains("DEGRADED"));
    // When the pool changes, the runner asks the daemon and changes nothing
    bench.becomes(Some("releasing"));
    bench.state(|state| state.isolation == Isolation::Waiting).await;
    bench.becomes(None);
    let state = bench.state(|state| state.isolation == Isolation::Shared).await;
    assert!(state.readiness().is_ok());
    assert_eq!(bench.terminated().await, 7);
    assert_eq!(bench.orders(), "cont system_powerdown");
}

#[tokio::test]
async fn the_class_is_the_daemons_word_and_need_not_be_asked_for() {
    let bench = Bench::new(of_class("BE", "shared"), "", "");
    let state = bench.state(|state| state.guest == "running").await;
    assert_eq!(bench.calls.names()[0], "RegisterInstance '' '2-3'");
    assert_eq!(state.readiness(), Ok("BE, on the BE shared pool".into()));
}

#[tokio::test]
async fn a_class_with_cpus_of_its_own_does_not_run_without_them() {
    for qos in [Some("LSE"), None] {
        let behaviour = Behaviour {
            qos,
            state: Some("waiting"),
            ..Behaviour::default()
        };
        let bench = Bench::new(Some(behaviour), "", "");
        bench.logged("State is \"waiting\"").await;
        bench.logged("the guest stays paused").await;
        let state = bench.state(|state| !state.reason.is_empty()).await;
        assert!(state.readiness().is_err());
        assert_eq!(bench.orders(), "");
    }
}

#[tokio::test]
async fn an_lsr_instance_is_contained_and_says_its_class() {
    let bench = Bench::under(of_class("LSR", "pinned"), &["--qos=LSR", "--cpus=2"], &[]);
    let state = bench.state(|state| state.guest == "running").await;
    assert_eq!(bench.calls.names()[0], "RegisterInstance '' '2-3' cpus=2 qos=LSR");
    assert_eq!(state.readiness(), Ok("pinned".into()));
    assert_eq!(state.qos, Some(Qos::Lsr));
    assert_eq!(state.vcpus[1], (1, 101, Some(3)));
}

#[tokio::test]
async fn a_registration_that_is_made_late_asks_for_the_same() {
    // Given no daemon
    let bench = Bench::under(None, &["--require-isolation=no", "--qos=LS"], &[]);
    bench.logged("will run DEGRADED").await;
    // When there is one
    let socket = bench.dir.path().join("socket");
    fakes::daemon(&socket, of_class("LS", "shared").unwrap(), bench.calls.clone());
    // Then it reports the class
    let is_told = |state: &RunnerState| state.isolation == Isolation::Shared && state.guest == "running";
    let state = bench.state(is_told).await;
    assert_eq!(bench.calls.names()[0], "RegisterInstance '' '2-3' qos=LS");
    assert_eq!(state.readiness(), Ok("LS, on the shared pool".into()));
}

const ANNOTATIONS: &[&str] = &["--resource-spec", "DIR/spec", "--resource-status=DIR/status"];

#[tokio::test]
async fn what_the_pods_annotations_say_is_asked_for() {
    let files = [
        ("spec", r#"{"requiredCPUBindPolicy":"FullPCPUs"}"#),
        ("status", r#"{"cpuset":"2-3","numaNodeResources":[{"node":0}]}"#),
    ];
    let bench = Bench::under(of_class("LSE", "isolated"), ANNOTATIONS, &files);
    bench.state(|state| state.guest == "running").await;
    let asked = " required-cpu-bind-policy=FullPCPUs scheduled-cpuset=2-3 scheduled-numa-nodes=0";
    assert_eq!(bench.calls.names()[0], format!("RegisterInstance '' '2-3'{asked}"));
}

#[tokio::test]
async fn annotations_that_are_not_there_ask_nothing_and_one_that_is_not_understood_starts_nothing() {
    let with = |status| {
        Bench::under(
            of_class("LSE", "isolated"),
            ANNOTATIONS,
            &[("spec", ""), ("status", status)],
        )
    };
    let bench = with("");
    bench.state(|state| state.guest == "running").await;
    assert_eq!(bench.calls.names()[0], "RegisterInstance '' '2-3'");
    let mut bench = with(r#"{"cpuset":"3-2"}"#);
    assert_eq!(bench.exit_code().await, i32::from(crate::exit_codes::RUNNER));
    bench.logged("read the resource-status in ").await;
    assert_eq!(bench.calls.names(), [""; 0]);
}
