//! Threads that are plugged and unplugged, and migrations.

use super::*;

async fn called(bench: &Bench, text: &str) {
    bench
        .until(text, || bench.calls.names().iter().any(|call| call == text))
        .await;
}

const TWO: &str = "AttachVcpus 0:7000:core-id=0 1:7001:core-id=1";
const THREE: &str = "AttachVcpus 0:7000:core-id=0 1:7001:core-id=1 2:7002:core-id=2";

#[tokio::test]
async fn a_plugged_vcpu_is_attached_when_the_guest_tells_of_it_and_an_unplugged_one_is_let_go() {
    let bench = Bench::running("").await;
    bench.write("vcpus", "3");
    bench.write("event", "ACPI_DEVICE_OST");
    called(&bench, THREE).await;
    bench.state(|state| state.vcpus.len() == 3).await;
    bench.write("vcpus", "2");
    bench.write("event", "DEVICE_DELETED");
    bench.state(|state| state.vcpus.len() == 2).await;
    assert_eq!(bench.calls.names()[1..], [TWO, THREE, TWO]);
    assert_eq!(bench.orders(), "cont");
}

#[tokio::test]
async fn one_that_nobody_tells_of_is_found_where_a_slot_is_free() {
    let bench = Bench::with(&[], &[("slots", ""), ("iothreads", "")]);
    bench.logged("guest running").await;
    bench.logged("1 I/O threads (disk: tid 7100)").await;
    assert_eq!(bench.state(|_| true).await.iothreads["disk"], 7100);
    bench.write("vcpus", "3");
    called(&bench, THREE).await;
}

#[tokio::test]
async fn where_no_slot_is_free_qemu_is_left_alone() {
    let bench = Bench::running("").await;
    sleep(Duration::from_millis(300)).await;
    let before = bench.read("commands");
    sleep(Duration::from_secs(3)).await;
    assert_eq!(bench.read("commands"), before);
}

#[tokio::test]
async fn a_reboot_changes_nothing_and_asks_once() {
    let bench = Bench::running("").await;
    bench.write("event", "RESET");
    bench.logged("QEMU: RESET").await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(bench.calls.names()[1..], [TWO]);
    assert_eq!(bench.read("commands").matches("query-cpus-fast").count(), 2);
}

/// As QEMU has them where its guest stops and it stays: with -no-shutdown, -action panic=pause, watchdog=pause, on an error of a disk.
#[tokio::test]
async fn a_guest_that_stopped_while_qemu_stays_is_not_ready_until_it_runs() {
    let bench = Bench::running("").await;
    for status in [
        "shutdown",
        "internal-error",
        "watchdog",
        "guest-panicked",
        "io-error",
        "paused",
        "suspended",
    ] {
        bench.write("run-state", status);
        bench.write("event", "STOP");
        let state = bench.state(|state| state.guest == status).await;
        let text = state.readiness().unwrap_err();
        let said = if status == "shutdown" { "shut down" } else { status };
        assert_eq!(text, format!("the guest is {said}"));
        assert!(state.liveness().is_ok());
        bench.write("run-state", "running");
        bench.write("event", "RESUME");
        bench.state(|state| state.readiness().is_ok()).await;
    }
    assert_eq!(bench.calls.names()[1..], [TWO]);
}

#[tokio::test]
async fn a_migration_with_an_address_comes_in_after_the_vcpus_have_their_cpus() {
    let mut bench = Bench::new(Some(Behaviour::default()), "", "-incoming tcp:0:4444");
    bench.logged("the migration may come in at tcp:0:4444").await;
    assert_eq!(bench.orders(), "migrate-incoming{\"uri\":\"tcp:0:4444\"}");
    let state = bench.state(|state| state.guest == "inmigrate").await;
    assert_eq!(state.readiness(), Ok("isolated, ready for the migration".into()));
    assert_eq!(bench.terminated().await, 3);
}

#[tokio::test]
async fn a_migration_waits_like_a_guest_where_isolation_fails() {
    let bench = Bench::new(Some(Behaviour::failing(99)), "", "-incoming tcp:0:4444");
    bench.logged("the guest stays paused").await;
    assert_eq!(bench.orders(), "");
}

#[tokio::test]
async fn iothreads_are_handed_over_again_when_the_instance_has_other_cpus() {
    let bench = Bench::with(&["--iothread-cpus=yes"], &[("iothreads", "")]);
    bench.logged("guest running").await;
    // After an unrelated signal the runner asks the daemon for the state only.
    bench.calls.tell.notify_one();
    sleep(Duration::from_millis(500)).await;
    let attach = format!("{TWO} iothreads=[7100]");
    assert_eq!(bench.calls.names()[1..], [attach.as_str()]);
    bench.give("2-4");
    bench.until("attached again", || bench.calls.names().len() > 2).await;
    assert_eq!(bench.calls.names()[1..], [attach.as_str(), attach.as_str()]);
}
