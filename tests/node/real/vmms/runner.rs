//! Started by `stelia-runner`.

use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use super::{CPUS, SOCKET, Vm, Vmm, Way, guest};
use crate::descriptors::{INITRAMFS, assert_network_answers, make_guest, make_tap, open_devices, remove_tap};
use crate::memory;
use crate::support::*;

/// For how long the runner's questions are counted.
const COUNTED: Duration = Duration::from_secs(10);
/// The most of them in that time: at first ten a second, then fewer and fewer.
const MAX_QUESTIONS: usize = 60;

impl Vm {
    fn run(vmm: Vmm, words: &[String]) -> Self {
        guest::make();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let name = format!("{}-runner", vmm.name());
        Self::by_runner(vmm, &name, &["--cpus", CPUS], &["--grace", "60"], &words)
    }

    fn probe(&self, what: &str) -> (bool, String) {
        probe_at(&self.pod, what, &format!("--api-socket {SOCKET}"))
    }

    pub fn until_ready(&self) {
        self.until_probed(true, "isolated");
    }

    /// Waits until the runner, where there is one, says this.
    pub fn until_probed(&self, ready: bool, text: &str) {
        if self.way != Way::Runner {
            return;
        }
        let seen = || format!(": {:?}\n{}", self.probe("readiness"), self.pod.logs());
        wait_until_or(&format!("the probe says {ready}, {text:?}"), seen, || {
            let (now, said) = self.probe("readiness");
            now == ready && said.starts_with(text)
        });
        assert!(self.probe("liveness").0);
    }

    pub fn runner_says(&self) -> Value {
        json(&self.probe("state").1)
    }

    /// How often the VMM was asked something: Firecracker logs each request, and Cloud Hypervisor has a thread that wakes for it, twice at most.
    fn questions(&self) -> usize {
        match self.vmm {
            Vmm::CloudHypervisor => {
                let threads = self.threads().others;
                let server = threads.iter().find(|thread| thread.name == "http-server");
                let status = status(server.expect("its server").tid);
                number(&field(&status, "voluntary_ctxt_switches:"))
            }
            Vmm::Firecracker => self.pod.logs().matches("The API server received").count(),
            Vmm::Crosvm => panic!("the runner knows no crosvm"),
        }
    }

    /// Counts the runner's questions for some seconds in which nobody else asks.
    fn assert_at_most_questions(&self, step: &str, at_most: usize) {
        let before = self.questions();
        sleep(COUNTED);
        let asked = self.questions() - before;
        self.note(step, &format!("{asked} questions or wakes in {COUNTED:?}"));
        assert!(asked <= at_most, "{step}: {asked}");
    }

    pub fn assert_runner_sees_shutdown(&self) {
        self.until_probed(false, "the guest is shut down");
        assert_eq!(self.runner_says()["guest"], "shutdown");
        self.assert_at_most_questions("shutdown", MAX_QUESTIONS);
        assert!(!self.pod.logs().contains("debug-threads"), "{}", self.pod.logs());
    }

    /// A VM from its boot to its end, whose VMM is asked at most so often while it runs. The folder of its snapshot, and the guest's sign of life then.
    fn lived(vmm: Vmm, at_most_questions: usize) -> (String, u32) {
        let vm = Self::run(vmm, &guest::words(vmm));
        vm.until_ready();
        // How long the guest ran before its vCPUs were attached.
        let state = vm.runner_says();
        vm.note("boot", &format!("window {}", state["window"]));
        assert_eq!(state["paused-start"], false);
        let is_told = state["window"]["wall-us"].as_u64().is_some_and(|wall| wall > 0);
        assert!(is_told, "{state}");
        assert!(state["window"]["run-us"].is_u64(), "{state}");
        vm.go_through_its_life();
        vm.assert_at_most_questions("running", at_most_questions);
        vm.terminate();
        (vm.snapshot(), vm.saved.get())
    }

    /// From what was saved at this sign of life: paused, until it is isolated.
    fn assert_restored(&self, saved: u32) {
        self.until_isolated("restore", 2);
        self.until_ready();
        let state = self.runner_says();
        assert!(state["window"].is_null(), "{state}");
        assert_eq!(state["paused-start"], true, "{state}");
        self.goes_on_where_it_was_saved(saved);
        self.terminate();
    }

    /// As kubelet ends a pod: the guest powers off in its time, and the container's exit code is the VMM's.
    fn terminate(&self) {
        kill("-TERM", self.pod.pid);
        let code = self.pod.wait();
        let log = self.pod.logs();
        // A thread of Cloud Hypervisor 53.0 may panic as it ends, and its seccomp filter forbids what a panic does: it ends with SIGSYS.
        let has_crashed = code == "159" && log.contains("after the thread's local data has been destroyed");
        assert!(code == "0" || has_crashed, "{code}: {log}");
        self.until_given_back("end by SIGTERM");
        self.pod.delete(0);
    }
}

#[test]
fn cloud_hypervisor_by_the_runner() {
    on_kvm_node(|| {
        let vmm = Vmm::CloudHypervisor;
        let (folder, saved) = Vm::lived(vmm, 20);
        let vm = Vm::run(vmm, &["--restore".to_owned(), format!("source_url=file://{folder}")]);
        vm.assert_restored(saved);
    });
}

#[test]
fn firecracker_by_the_runner() {
    on_kvm_node(|| {
        let vmm = Vmm::Firecracker;
        let (folder, saved) = Vm::lived(vmm, 2);
        // Another program loads what was saved into a Firecracker that has no VM yet, and leaves it paused.
        let vm = Vm::run(vmm, &[]);
        wait_until("the API answers", || vm.api().is_there());
        vm.assert_at_most_questions("not configured", MAX_QUESTIONS);
        vm.assert_pause_answer("not configured", false);
        vm.load_snapshot(&folder, false);
        vm.assert_restored(saved);
    });
}

#[test]
fn cloud_hypervisors_guest_grows_and_shrinks_with_its_containers_memory_limit() {
    on_kvm_node(|| {
        let vmm = Vmm::CloudHypervisor;
        memory::make_guest();
        let plugs = "size=256M,hotplug_method=virtio-mem,hotplug_size=512M";
        let balloon = "size=512M --balloon size=0";
        for (name, given, steps) in [("plugs", plugs, [856, 728, 600]), ("balloon", balloon, [400, 500, 600])] {
            let kernel_words = memory::kernel_words();
            let devices = format!("--cpus boot=2 --memory {given}");
            let command = guest::boot(memory::INITRAMFS, &kernel_words, &devices);
            let options = ["--cpus", "2", "--memory", "600M"];
            let name = format!("cloud-hypervisor-{name}");
            let vm = Vm::by_runner(vmm, &name, &options, &["--resize-memory", "yes"], &command);
            vm.until_isolated("boot", 2);
            vm.until_ready();
            let first = memory::until_said(&vm.pod);
            for mib in steps {
                memory::limit(&vm.pod, mib);
                memory::until_it_has(&vm.pod, first + mib - 600);
                memory::until_limited(&vm.pod, mib);
            }
            vm.pod.delete(0);
        }
    });
}

/// A tap that the runner opens: the container may create no network interface.
#[test]
fn cloud_hypervisor_with_a_tap_by_descriptor() {
    needs_kvm();
    on_node_undoing(remove_tap, || {
        let vmm = Vmm::CloudHypervisor;
        make_tap();
        make_guest();
        let card = "--cpus boot=2 --memory size=128M --net fd={fd:net},mac=02:00:00:00:00:01";
        let command = guest::boot(INITRAMFS, KERNEL_WORDS, card);
        let options = ["--cpus", "2", "--device", "/dev/net/tun"];
        let runner = ["--fd", "net=tap:stelia-tap0"];
        let vm = Vm::by_runner(vmm, "cloud-hypervisor-tap", &options, &runner, &command);
        vm.until_isolated("boot", 2);
        vm.until_ready();
        assert_network_answers();
        let open = open_devices(&vm.pod);
        for (process, open) in &open {
            let is_vmm = process.starts_with("cloud-hyper");
            let has_tap = open.iter().any(|device| device == "/dev/net/tun");
            assert_eq!(has_tap, is_vmm, "{process}: {open:?}");
        }
        vm.pod.delete(0);
    });
}
