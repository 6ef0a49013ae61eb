//! The guest's memory follows the VM's memory limit.

use std::time::Duration;

use tokio::time::sleep;

use super::Bench;
use crate::resize::ResizeOutcome;

const MIB: u64 = 1 << 20;
const YES: [&str; 2] = ["--resize-memory", "yes"];

/// 256 MiB of at most 1 GiB, beside 1 GiB of the guest's.
const VIRTIO_MEM: &str = r#"[{"type":"virtio-mem","data":{"id":"vm0","memdev":"/objects/m","memaddr":4294967296,"node":0,
    "block-size":2097152,"requested-size":268435456,"size":268435456,"max-size":1073741824}}]"#;

async fn running(options: &[&str], files: &[(&str, &str)]) -> Bench {
    let bench = Bench::with(options, files);
    *bench.calls.memory_limit.lock().unwrap() = Some(2048 * MIB);
    bench.logged("guest running").await;
    bench
}

fn plug(mib: u64) -> String {
    let bytes = mib * MIB;
    format!(r#"qom-set{{"path":"/machine/peripheral/vm0","property":"requested-size","value":{bytes}}}"#)
}

fn balloon(mib: u64) -> String {
    format!(r#"balloon{{"value":{}}}"#, mib * MIB)
}

impl Bench {
    /// The daemon says that the VM may use so much memory.
    fn limit(&self, mib: u64) {
        *self.calls.memory_limit.lock().unwrap() = Some(mib * MIB);
        self.calls.tell.notify_one();
    }

    async fn has_memory(&self, from: u64, to: u64, outcome: ResizeOutcome) {
        self.state(|state| {
            let last = state.memory_resize;
            last.is_some_and(|last| (last.from, last.to, last.outcome) == (from * MIB, to * MIB, outcome))
        })
        .await;
    }
}

#[tokio::test]
async fn virtio_mem_follows_the_limit_up_and_down() {
    let bench = running(&YES, &[("memory-devices", VIRTIO_MEM)]).await;
    bench.limit(2048 + 512);
    bench.has_memory(1280, 1792, ResizeOutcome::Done).await;
    bench.limit(2048 - 100);
    bench.has_memory(1792, 1180, ResizeOutcome::Done).await;
    // Neither beyond the device nor below what the guest was started with.
    bench.limit(8192);
    bench.has_memory(1180, 2048, ResizeOutcome::Done).await;
    bench
        .logged("1180 MiB of memory are to become 2048 MiB instead of 7424 MiB")
        .await;
    bench.limit(512);
    bench.has_memory(2048, 1024, ResizeOutcome::Done).await;
    assert_eq!(
        bench.orders(),
        ["cont", &plug(768), &plug(156), &plug(1024), &plug(0)].join(" ")
    );
    bench.limit(500);
    bench.has_memory(1024, 0, ResizeOutcome::Impossible).await;
    bench
        .logged("1024 MiB of memory stay instead of 0 MiB: the VMM can give it 1024 MiB to 2048 MiB")
        .await;
}

#[tokio::test]
async fn a_balloon_takes_memory_and_gives_it_back() {
    let bench = running(&YES, &[("balloon", "1073741824")]).await;
    bench.limit(2048 - 300);
    bench.has_memory(1024, 724, ResizeOutcome::Done).await;
    bench.limit(2048);
    bench.has_memory(724, 1024, ResizeOutcome::Done).await;
    bench.limit(4096);
    bench.has_memory(1024, 3072, ResizeOutcome::Impossible).await;
    assert_eq!(bench.orders(), ["cont", &balloon(724), &balloon(1024)].join(" "));
}

#[tokio::test]
async fn without_a_device_the_refusal_names_what_is_missing() {
    let bench = running(&YES, &[]).await;
    bench
        .logged("--resize-memory=yes has no effect: QEMU has neither virtio-mem (with an id) nor a balloon")
        .await;
    bench.limit(4096);
    bench.has_memory(0, 0, ResizeOutcome::Impossible).await;
    bench
        .logged("the memory limit changed, and the guest's memory stays as it is: QEMU has neither")
        .await;
    assert_eq!(bench.orders(), "cont");
}

#[tokio::test]
async fn without_the_option_nobody_is_asked() {
    let bench = running(&[], &[("memory-devices", VIRTIO_MEM), ("slots", "3")]).await;
    bench.limit(4096);
    // What came with the same signal was seen.
    bench.give("2-4");
    bench
        .state(|state| state.resize.is_some_and(|last| last.outcome == ResizeOutcome::Done))
        .await;
    assert!(!bench.read("commands").contains("memory") && !bench.orders().contains("qom-set"));
    assert_eq!(bench.state(|_| true).await.memory_resize, None);
}

#[tokio::test]
async fn what_qemu_refuses_is_not_requested_again() {
    let bench = running(&YES, &[("memory-devices", VIRTIO_MEM), ("refuses", "qom-set")]).await;
    bench.limit(3072);
    bench.has_memory(1280, 2048, ResizeOutcome::Impossible).await;
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(bench.orders(), ["cont", &plug(1024)].join(" "));
}

#[tokio::test]
async fn a_guest_is_asked_once_and_may_take_its_time() {
    let bench = running(&YES, &[("memory-devices", VIRTIO_MEM), ("keeps-memory", "")]).await;
    bench.limit(1948);
    bench.has_memory(1280, 1180, ResizeOutcome::Requested).await;
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(bench.orders(), ["cont", &plug(156)].join(" "));
    let given = bench
        .read("memory-devices")
        .replace("\"size\":268435456", "\"size\":163577856");
    bench.write("memory-devices", &given);
    bench.has_memory(1280, 1180, ResizeOutcome::Done).await;
}

#[tokio::test]
async fn a_paused_guest_is_asked_when_it_runs() {
    let bench = running(&YES, &[("balloon", "1073741824")]).await;
    bench.write("run-state", "paused");
    bench.write("event", "STOP");
    bench.state(|state| state.guest == "paused").await;
    bench.limit(1948);
    sleep(Duration::from_millis(500)).await;
    assert_eq!(bench.orders(), "cont");
    bench.write("run-state", "running");
    bench.has_memory(1024, 924, ResizeOutcome::Done).await;
}

#[tokio::test]
async fn memory_is_given_up_as_soon_as_it_is_announced_and_grows_when_the_limit_does() {
    let options = [&YES[..], &["--memory-limit", "DIR/limit"]].concat();
    let bench = running(&options, &[("balloon", "1073741824"), ("limit", "2147483648")]).await;
    bench.write("limit", "2042626048\n");
    bench.has_memory(1024, 924, ResizeOutcome::Done).await;
    // kubelet lowers the limit when the VM uses less.
    bench.limit(1948);
    bench.write("limit", "2147483648");
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(bench.orders(), ["cont", &balloon(924)].join(" "));
    bench.limit(2048);
    bench.has_memory(924, 1024, ResizeOutcome::Done).await;
}
