//! The number of vCPUs follows the number of CPUs.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use tokio::time::{Instant, sleep};

use super::Bench;
use super::api::{self, CLOUD_HYPERVISOR};
use super::attach::{attached, qemu};
use super::fakes::Behaviour;
use crate::pause_mark::PauseMark;
use crate::resize::ResizeOutcome;
use crate::state::Isolation;

/// A runner whose guest runs, beside these files.
async fn running(files: &[(&str, &str)]) -> Bench {
    let bench = Bench::with(&[], files);
    bench.logged("guest running").await;
    bench
}

fn plug(core: u32) -> String {
    format!(r#"device_add{{"core-id":{core},"driver":"host-x86_64-cpu","id":"stelia-vcpu-{core}"}}"#)
}

fn unplug(core: u32) -> String {
    format!(r#"device_del{{"id":"/cpu/{core}"}}"#)
}

impl Bench {
    /// The daemon gives CPUs, and takes its time when the new vCPUs are handed over.
    async fn holds(&self, cpus: &str, vcpu: &str) {
        self.calls.hangs.store(true, Ordering::Relaxed);
        self.give(cpus);
        self.is_attached(vcpu).await;
    }

    /// The daemon says that the VM is about to lose CPUs: how many there are, and how many there will be.
    async fn announce(&self, now: u32, wanted: u32, deadline: u64) {
        *self.calls.pending.lock().unwrap() = Some((now, wanted, deadline));
        self.calls.tell.notify_one();
    }

    async fn resized(&self, to: usize, outcome: ResizeOutcome) {
        self.state(|state| {
            state
                .resize
                .is_some_and(|last| (last.to, last.outcome) == (to, outcome))
        })
        .await;
    }

    async fn ordered(&self, orders: &[&str]) {
        let orders = orders.join(" ");
        self.until(&orders, || self.orders() == orders).await;
    }

    async fn is_attached(&self, text: &str) {
        self.until(text, || {
            self.calls.names().last().is_some_and(|name| name.contains(text))
        })
        .await;
    }
}

#[tokio::test]
async fn new_vcpus_are_attached_while_the_guest_is_paused() {
    let mut bench = running(&[("slots", "4")]).await;
    // When the instance gets CPUs, and the daemon takes its time
    bench.holds("2-5", " 3:7003:").await;
    // Then the guest is paused as long as its new vCPUs are not attached
    bench.state(|state| state.guest == "paused").await;
    let grown = ["cont", "stop", &plug(2), &plug(3)];
    assert_eq!(bench.orders(), grown.join(" "));
    bench.calls.hangs.store(false, Ordering::Relaxed);
    bench.resized(4, ResizeOutcome::Done).await;
    bench
        .state(|state| state.guest == "running" && state.vcpus.len() == 4)
        .await;
    let grown = [&grown[..], &["cont"]].concat();
    bench.ordered(&grown).await;
    // And given up again, while it runs.
    bench.give("2-3");
    bench.resized(2, ResizeOutcome::Done).await;
    assert_eq!(
        bench.orders(),
        [&grown[..], &[&unplug(3), &unplug(2)]].concat().join(" ")
    );
    bench.is_attached(" 1:7001:core-id=1").await;
    assert_eq!(bench.terminated().await, 7);
}

#[tokio::test]
async fn a_daemon_that_restarts_meanwhile_pins_new_vcpus_before_they_run() {
    let bench = running(&[("slots", "4")]).await;
    // Given a daemon that is killed when new vCPUs are handed over
    bench.holds("2-5", " 3:7003:").await;
    bench.calls.hang_up.notify_one();
    bench.is_attached("hung up").await;
    bench.calls.hangs.store(false, Ordering::Relaxed);
    // Then the next one has them while the guest is still paused.
    bench.is_attached(" 3:7003:").await;
    bench.resized(4, ResizeOutcome::Done).await;
    bench.ordered(&["cont", "stop", &plug(2), &plug(3), "cont"]).await;
    let log = bench.read("log");
    assert!(
        !log.contains("without isolation") && !log.contains("while the guest runs"),
        "{log}"
    );
}

/// The second is as arm64's machine type `virt`: "The feature 'query-hotpluggable-cpus' is not enabled" (QEMU 7.2).
#[rstest]
#[case::no_slot(&[("slots", "2")], "no free slot", false, 2)]
#[case::machine_type(&[("slots", "4"), ("refuses", "query-hotpluggable-cpus")], "this machine type plugs no vCPUs", false, 2)]
#[case::too_few_slots(&[("slots", "3")], "the VM has 3 vCPUs now, 2 before", true, 3)]
#[case::refuses_the_first(&[("slots", "4"), ("refuses", "device_add")], "", true, 2)]
#[tokio::test]
async fn a_vm_that_cannot_have_all_vcpus_says_why_uses_its_slots_and_runs(
    #[case] files: &[(&str, &str)],
    #[case] text: &str,
    #[case] is_tried: bool,
    #[case] vcpus: usize,
) {
    let bench = running(files).await;
    bench.give("2-5");
    bench.resized(4, ResizeOutcome::Impossible).await;
    bench.logged(text).await;
    let tried = ["cont", "stop", &plug(2), "cont"];
    bench.ordered(if is_tried { &tried } else { &tried[..1] }).await;
    assert_eq!(bench.state(|state| state.guest == "running").await.vcpus.len(), vcpus);
}

#[tokio::test]
async fn what_was_plugged_before_a_refusal_is_attached() {
    let bench = running(&[("slots", "4"), ("refuses", "device_add\n1")]).await;
    bench.give("2-5");
    bench.resized(4, ResizeOutcome::Impossible).await;
    let tried = ["cont", "stop", &plug(2), &plug(3), "cont"];
    bench.ordered(&[&tried[..], &["stop", &plug(3), "cont"]].concat()).await;
    bench.is_attached(" 2:7002:").await;
    assert_eq!(bench.state(|state| state.guest == "running").await.vcpus.len(), 3);
}

#[tokio::test]
async fn a_vmm_that_dies_at_a_plug_ends_the_runner() {
    let mut bench = running(&[("slots", "4"), ("dies", "device_add")]).await;
    bench.give("2-5");
    assert_eq!(bench.exit_code().await, 9);
}

#[tokio::test]
async fn a_guest_that_another_program_paused_stays_paused() {
    let bench = running(&[("slots", "4")]).await;
    bench.write("run-state", "paused");
    bench.state(|state| state.guest == "paused").await;
    // It cannot give up a vCPU, and is not asked.
    bench.give("2");
    sleep(Duration::from_millis(500)).await;
    assert_eq!(bench.orders(), "cont");
    bench.give("2-4");
    bench.resized(3, ResizeOutcome::Done).await;
    bench.ordered(&["cont", &plug(2)]).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(bench.orders(), ["cont", &plug(2)].join(" "));
    assert!(!PauseMark::exists(bench.dir.path()));
}

#[tokio::test]
async fn a_guest_that_migrated_away_while_it_was_paused_is_not_continued() {
    let bench = running(&[("slots", "3")]).await;
    bench.holds("2-4", " 2:7002:").await;
    assert!(PauseMark::exists(bench.dir.path()));
    bench.write("run-state", "postmigrate");
    bench.calls.hangs.store(false, Ordering::Relaxed);
    bench.logged("the guest is not paused any more").await;
    bench.resized(3, ResizeOutcome::Done).await;
    assert_eq!(bench.orders(), ["cont", "stop", &plug(2)].join(" "));
    // And it is asked for nothing.
    bench.give("2");
    sleep(Duration::from_millis(500)).await;
    assert_eq!(bench.orders(), ["cont", "stop", &plug(2)].join(" "));
    assert!(!PauseMark::exists(bench.dir.path()));
}

#[tokio::test]
async fn a_guest_is_not_paused_for_long_however_long_the_daemon_takes() {
    let bench = running(&[("slots", "3")]).await;
    bench.holds("2-4", " 2:7002:").await;
    let paused = Instant::now();
    bench.logged("they are attached while the guest runs").await;
    bench.ordered(&["cont", "stop", &plug(2), "cont"]).await;
    assert!(paused.elapsed() < Duration::from_secs(10));
    bench.calls.hangs.store(false, Ordering::Relaxed);
    bench.resized(3, ResizeOutcome::Done).await;
    assert_eq!(bench.orders(), ["cont", "stop", &plug(2), "cont"].join(" "));
}

/// A runner that ended while the guest was paused for its new vCPUs: the next one beside the same QEMU lets it run.
#[tokio::test]
async fn a_runner_that_finds_a_guest_paused_by_the_one_before_lets_it_run() {
    let (dir, mut child) = qemu("running");
    let socket = dir.path().join("qmp");
    while !socket.exists() {
        sleep(Duration::from_millis(20)).await;
    }
    std::fs::write(dir.path().join("slots"), "4").unwrap();
    let path = dir.path().to_owned();
    let mut bench = attached(dir, &["--qmp", "DIR/qmp"]);
    bench.logged("attached to a guest that ran before").await;
    bench.holds("2-4", " 2:7002:").await;
    let anchor = Pid::from_raw(bench.calls.pid("anchor")).unwrap();
    bench.signal(Signal::KILL);
    bench.runner.wait().unwrap();
    kill_process(anchor, Signal::KILL).unwrap();
    assert!(PauseMark::new(Some(&path), i32::try_from(child.id()).unwrap()).is_set());
    assert_eq!(bench.orders(), ["stop", &plug(2)].join(" "));
    // When the runner is started again
    bench.calls.hangs.store(false, Ordering::Relaxed);
    *bench.calls.cpus.lock().unwrap() = "2-4".into();
    bench.restart("attach", &["--qmp", "DIR/qmp"]);
    // Then its vCPUs are attached and it runs.
    bench.ordered(&["stop", &plug(2), "cont"]).await;
    let state = bench
        .state(|state| state.guest == "running" && state.isolation == Isolation::Isolated)
        .await;
    assert_eq!(state.vcpus.len(), 3);
    assert!(!PauseMark::exists(&path));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn a_runner_that_is_told_to_leave_lets_the_guest_run_before() {
    let (dir, mut child) = qemu("running");
    std::fs::write(dir.path().join("slots"), "4").unwrap();
    let mut bench = attached(dir, &["--qmp", "DIR/qmp"]);
    bench.logged("attached to a guest that ran before").await;
    bench.holds("2-4", " 2:7002:").await;
    bench.signal(Signal::TERM);
    bench.ordered(&["stop", &plug(2), "cont"]).await;
    bench.calls.hangs.store(false, Ordering::Relaxed);
    assert_eq!(bench.exit_code().await, 0);
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn a_guest_that_is_paused_for_its_vcpus_powers_down() {
    let mut bench = running(&[("slots", "3")]).await;
    bench.holds("2-4", " 2:7002:").await;
    assert_eq!(bench.terminated().await, 7);
    assert_eq!(
        bench.orders(),
        ["cont", "stop", &plug(2), "cont", "system_powerdown"].join(" ")
    );
}

#[tokio::test]
async fn a_guest_that_refuses_is_asked_until_the_deadline_and_believed_when_it_answers_late() {
    let bench = running(&[("slots", "2"), ("keeps-vcpus", "")]).await;
    bench.give("2");
    bench.resized(1, ResizeOutcome::Refused).await;
    let orders = bench.orders();
    let requests = orders.strip_prefix("cont ").unwrap();
    assert!(requests.split(' ').all(|request| request == unplug(1)), "{orders}");
    assert!(requests.contains(' '), "it was booting, perhaps: {orders}");
    bench.give("2");
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(bench.orders(), orders, "not after the deadline");
    bench.write("vcpus", "1");
    bench.write("event", "DEVICE_DELETED");
    bench.resized(1, ResizeOutcome::Done).await;
    assert_eq!(bench.state(|state| state.vcpus.len() == 1).await.guest, "running");
}

#[tokio::test]
async fn cpus_that_come_back_while_the_guest_gives_up_its_vcpus_are_used_again() {
    let bench = running(&[("slots", "2"), ("keeps-vcpus", "")]).await;
    bench.give("2");
    bench.resized(1, ResizeOutcome::Requested).await;
    bench.give("2-3");
    sleep(Duration::from_millis(300)).await;
    std::fs::remove_file(bench.dir.path().join("keeps-vcpus")).unwrap();
    bench.write("vcpus", "1");
    bench.write("event", "DEVICE_DELETED");
    bench.resized(2, ResizeOutcome::Done).await;
    bench.ordered(&["cont", &unplug(1), "stop", &plug(1), "cont"]).await;
}

/// The daemon refuses a thread that has ended.
#[tokio::test]
async fn vcpus_that_are_unplugged_while_they_are_attached_are_no_failure() {
    let bench = Bench::under(Some(Behaviour::failing(1)), &[], &[("slots", "3"), ("vcpus", "3")]);
    bench.calls.hangs.store(true, Ordering::Relaxed);
    bench.is_attached(" 2:7002:").await;
    bench.write("vcpus", "2");
    bench.calls.hangs.store(false, Ordering::Relaxed);
    bench.logged("guest running").await;
    assert!(!bench.read("log").contains("next try in"), "{}", bench.read("log"));
    assert_eq!(bench.state(|state| state.guest == "running").await.vcpus.len(), 2);
}

#[tokio::test]
async fn vcpus_are_given_up_before_their_cpus_go() {
    let bench = Bench::with(&[], &[("slots", "3"), ("vcpus", "3")]);
    *bench.calls.pending.lock().unwrap() = Some((0, 0, 0));
    bench.logged("guest running").await;
    bench.give("2-4");
    bench.announce(3, 1, u64::MAX).await;
    bench.resized(1, ResizeOutcome::Done).await;
    bench.logged("the VM is to lose 2 CPUs").await;
    // The new attach is the answer.
    bench.is_attached("AttachVcpus 0:7000:core-id=0").await;
    let given_up = ["cont", &unplug(2), &unplug(1)];
    assert_eq!(bench.orders(), given_up.join(" "));
    // Then the CPUs go, and nothing is left to do.
    *bench.calls.pending.lock().unwrap() = Some((0, 0, 0));
    bench.give("2");
    sleep(Duration::from_millis(500)).await;
    assert_eq!(bench.orders(), given_up.join(" "));
}

#[tokio::test]
async fn cpus_that_stay_after_all_get_their_vcpus_back() {
    let bench = running(&[("slots", "2")]).await;
    bench.announce(2, 1, u64::MAX).await;
    bench.resized(1, ResizeOutcome::Done).await;
    bench.announce(0, 0, 0).await;
    bench.resized(2, ResizeOutcome::Done).await;
    bench.ordered(&["cont", &unplug(1), "stop", &plug(1), "cont"]).await;
}

#[tokio::test]
async fn at_the_daemons_deadline_a_guest_has_refused() {
    let bench = running(&[("slots", "2"), ("keeps-vcpus", "")]).await;
    let asked = Instant::now();
    // It has passed already: the guest has a second nevertheless.
    bench.announce(2, 1, 1).await;
    bench.resized(1, ResizeOutcome::Refused).await;
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn with_resize_no_nothing_is_plugged() {
    let bench = Bench::with(&["--resize=no"], &[("slots", "4")]);
    bench.logged("guest running").await;
    bench.give("2-5");
    bench.announce(4, 1, u64::MAX).await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(bench.orders(), "cont");
}

/// A guest agent on the bench's socket `agent`, with vCPUs that are online, and what it was asked.
fn agent(bench: &Bench, online: Vec<bool>) -> Arc<Mutex<Vec<String>>> {
    let listener = UnixListener::bind(bench.dir.path().join("agent")).unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = asked.clone();
    tokio::spawn(async move {
        let mut online = online;
        loop {
            let mut lines = BufReader::new(listener.accept().await.unwrap().0);
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).await.is_ok_and(|count| count > 0) {
                let text = line.strip_prefix(b"\xff").unwrap_or(&line);
                let request: Value = serde_json::from_slice(text).unwrap();
                line.clear();
                let name = request["execute"].as_str().unwrap();
                let before: &[u8] = if name == "guest-sync-delimited" { b"\xff" } else { b"" };
                let answer = match name {
                    "guest-sync-delimited" => request["arguments"]["id"].clone(),
                    "guest-get-vcpus" => online
                        .iter()
                        .enumerate()
                        .map(|(id, online)| json!({"logical-id": id, "online": online, "can-offline": id > 0}))
                        .collect(),
                    _ => {
                        let vcpus = request["arguments"]["vcpus"].as_array().unwrap();
                        heard.lock().unwrap().push(request["arguments"]["vcpus"].to_string());
                        for vcpu in vcpus {
                            let id = usize::try_from(vcpu["logical-id"].as_u64().unwrap()).unwrap();
                            online[id] = vcpu["online"].as_bool().unwrap();
                        }
                        vcpus.len().into()
                    }
                };
                let text = [before, json!({"return": answer}).to_string().as_bytes(), b"\n"].concat();
                let _ = lines.get_mut().write_all(&text).await;
            }
        }
    });
    asked
}

#[tokio::test]
async fn a_guest_agent_is_asked_first_and_takes_back_what_stays() {
    let files = [("slots", "3"), ("vcpus", "3"), ("keeps-vcpus", "")];
    let bench = Bench::with(&["--guest-agent", "DIR/agent"], &files);
    let asked = agent(&bench, vec![true; 3]);
    bench.logged("guest running").await;
    bench.give("2-4");
    bench.announce(3, 1, 1).await;
    bench.logged("the guest took 2 of 2 vCPUs offline").await;
    bench.resized(1, ResizeOutcome::Refused).await;
    bench.logged("the guest brought 2 vCPUs online again").await;
    let set = |online: bool| format!(r#"[{{"logical-id":2,"online":{online}}},{{"logical-id":1,"online":{online}}}]"#);
    assert_eq!(*asked.lock().unwrap(), [set(false), set(true)]);
    assert_eq!(bench.orders(), ["cont", &unplug(2), &unplug(1)].join(" "));
}

#[tokio::test]
async fn without_an_agent_in_the_guest_it_is_asked_by_acpi() {
    let bench = Bench::with(&["--guest-agent", "DIR/agent"], &[("slots", "2")]);
    let _silent = UnixListener::bind(bench.dir.path().join("agent")).unwrap();
    bench.logged("guest running").await;
    bench.give("2");
    bench.resized(1, ResizeOutcome::Done).await;
    bench.logged("the guest is asked by ACPI alone").await;
    assert_eq!(bench.orders(), ["cont", &unplug(1)].join(" "));
}

const PAUSE: &str = CLOUD_HYPERVISOR[0];
const RESUME: &str = CLOUD_HYPERVISOR[1];

fn desired(vcpus: u32) -> String {
    format!(r#"PUT /api/v1/vm.resize {{"desired_vcpus": {vcpus}}}"#)
}

#[tokio::test]
async fn cloud_hypervisor_grows_while_it_is_paused_and_shrinks_while_it_runs() {
    let bench = api::running("cloud-hypervisor max=4").await;
    bench.give("2-6");
    bench.resized(5, ResizeOutcome::Impossible).await;
    bench.logged("the VM has 4 vCPUs now, 2 before").await;
    bench.logged("has all of its 4 vCPUs (max of --cpus)").await;
    let state = bench
        .state(|state| state.guest == "running" && state.vcpus.len() == 4)
        .await;
    assert_eq!(state.isolation, Isolation::Isolated);
    let grown = [PAUSE, RESUME, PAUSE, &desired(4), RESUME];
    assert_eq!(api::orders(&bench), grown);
    bench.give("2-3");
    bench.resized(2, ResizeOutcome::Done).await;
    assert_eq!(api::orders(&bench), [&grown[..], &[&desired(2)]].concat());
}

#[rstest]
#[case::without_a_maximum("cloud-hypervisor", "has all of its 2 vCPUs", &[PAUSE, RESUME])]
#[case::one_that_only_says_so("cloud-hypervisor static max=4", "started no thread", &[PAUSE, RESUME, PAUSE, "4", "2", RESUME])]
#[case::firecracker("firecracker", "cannot change the number of vCPUs", &api::FIRECRACKER[..2])]
#[tokio::test]
async fn a_vmm_that_cannot_plug_says_so_and_its_guest_runs(
    #[case] how: &str,
    #[case] text: &str,
    #[case] expected: &[&str],
) {
    let bench = api::running(how).await;
    bench.give("2-5");
    bench.resized(4, ResizeOutcome::Impossible).await;
    bench.logged(text).await;
    let state = bench.state(|state| state.guest == "running").await;
    assert_eq!(state.vcpus.len(), 2);
    let expected: Vec<String> = expected
        .iter()
        .map(|order| order.parse().map_or((*order).to_owned(), desired))
        .collect();
    assert_eq!(api::orders(&bench), expected);
}

#[tokio::test]
async fn a_cloud_hypervisor_whose_guest_keeps_its_vcpus_is_asked_once() {
    let bench = api::running("cloud-hypervisor keeps-vcpus max=4").await;
    bench.announce(2, 1, 1).await;
    bench.resized(1, ResizeOutcome::Refused).await;
    // It does not grow before the guest has answered.
    bench.announce(0, 0, 0).await;
    bench.give("2-4");
    bench.resized(3, ResizeOutcome::Impossible).await;
    bench.logged("pending removal (status 429)").await;
    bench
        .state(|state| state.guest == "running" && state.vcpus.len() == 2)
        .await;
}
