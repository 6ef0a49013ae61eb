//! The same with QEMU itself: `STELIA_QEMU=qemu-system-x86_64 cargo test runner::tests::real -- --include-ignored`.

use serde_json::{Value, json};

use super::*;
use crate::runner::qmp::wire::Wire;
use crate::runner::state::Isolation;

/// QEMU's program and a small machine. None: there is no QEMU to test with.
fn machine(more: &[&str]) -> Option<Vec<String>> {
    let qemu = std::env::var("STELIA_QEMU").ok()?;
    let machine = [
        &qemu,
        "-accel",
        "tcg,thread=multi",
        "-m",
        "64",
        "-display",
        "none",
        "-nodefaults",
        "-name",
        "vm,debug-threads=on",
    ];
    Some([&machine[..], more].concat().iter().map(ToString::to_string).collect())
}

/// A runner with such a QEMU, which has a second monitor, `other`.
fn bench(more: &[&str]) -> Option<Bench> {
    let dir = tempfile::tempdir().unwrap();
    let other = format!("unix:{}/other,server=on,wait=off", dir.path().display());
    let machine = machine(&[more, &["-qmp", &other]].concat())?;
    let command: Vec<&str> = ["--"].into_iter().chain(machine.iter().map(String::as_str)).collect();
    let options = ["--qmp", "DIR/qmp", "--grace", "1"];
    let setup = Setup {
        daemon: Some(Behaviour::default()),
        ..Setup::default()
    };
    Some(Bench::started_in(dir, "run", &options, &command, &setup))
}

async fn execute(wire: &mut Wire, command: &str, arguments: Value) -> Value {
    wire.execute(command, arguments).await.unwrap().unwrap()
}

#[tokio::test]
#[ignore = "needs QEMU, named by STELIA_QEMU"]
async fn a_plugged_vcpu_is_attached_and_a_reset_is_seen() {
    let Some(mut bench) = bench(&["-smp", "1,sockets=2,maxcpus=2", "-object", "iothread,id=disk"]) else {
        return;
    };
    bench.logged("guest running").await;
    let state = bench.state(|state| state.guest == "running").await;
    assert_eq!(state.vcpus.len(), 1);
    assert!(alive(state.iothreads["disk"]));
    let mut other = Wire::open(&bench.dir.path().join("other")).await.unwrap();
    let cpu = json!({"driver": "qemu64-x86_64-cpu", "id": "c1", "socket-id": 1, "core-id": 0, "thread-id": 0});
    execute(&mut other, "device_add", cpu).await;
    bench.state(|state| state.vcpus.len() == 2).await;
    execute(&mut other, "system_reset", Value::Null).await;
    bench.logged("QEMU: RESET").await;
    execute(&mut other, "stop", Value::Null).await;
    let state = bench.state(|state| state.guest == "paused").await;
    assert_eq!(state.readiness(), Err("the guest is paused".into()));
    execute(&mut other, "cont", Value::Null).await;
    bench.state(|state| state.guest == "running").await;
    // No system runs in the guest that could power it down.
    bench.signal(Signal::TERM);
    assert_eq!(bench.exit_code().await, 0);
    bench.logged("did not power down within 1 s").await;
}

#[tokio::test]
#[ignore = "needs QEMU, named by STELIA_QEMU"]
async fn a_migration_comes_in_and_continues_the_guest() {
    let at = tempfile::tempdir().unwrap();
    let uri = format!("unix:{}/migration", at.path().display());
    let (Some(mut to), Some(from)) = (bench(&["-incoming", &uri]), bench(&[])) else {
        return;
    };
    from.logged("guest running").await;
    to.logged("the migration may come in").await;
    let mut source = Wire::open(&from.dir.path().join("other")).await.unwrap();
    execute(&mut source, "migrate", json!({ "uri": uri })).await;
    let state = to.state(|state| state.guest == "running").await;
    assert_eq!(state.isolation, Isolation::Isolated);
    let gone = from.state(|state| state.guest == "postmigrate").await;
    assert!(gone.readiness().is_err());
    to.signal(Signal::TERM);
    assert_eq!(to.exit_code().await, 0);
}

#[tokio::test]
#[ignore = "needs QEMU, named by STELIA_QEMU"]
async fn threads_are_found_by_their_names() {
    let Some(machine) = machine(&["-smp", "2", "-object", "iothread,id=disk"]) else {
        return;
    };
    let mut qemu = Command::new(&machine[0]).args(&machine[1..]).spawn().unwrap();
    let pid = qemu.id().to_string();
    while !std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap()
        .starts_with("qemu")
    {
        sleep(Duration::from_millis(20)).await;
    }
    let setup = Setup {
        daemon: Some(Behaviour::default()),
        ..Setup::default()
    };
    let options = ["--pid", &pid, "--state-dir", "DIR"];
    let mut bench = Bench::started("attach", &options, &[], &setup);
    let state = bench.state(|state| state.isolation.holds()).await;
    assert_eq!(state.vcpus.len(), 2);
    assert!(state.iothreads.contains_key("disk"));
    qemu.kill().unwrap();
    qemu.wait().unwrap();
    assert_eq!(bench.exit_code().await, 0);
}
