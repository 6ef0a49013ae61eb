//! Pods, by the stand-in for kubelet and containerd; and the frame every test runs in.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Output;
use std::sync::Once;
use std::time::Instant;

use serde::Deserialize;
use stelia_cpus::CpuSet;

use crate::quiet::interrupts::remember;
use crate::support::guest::Accel;
use crate::support::host::{
    CGROUP, SLICE, Thread, container_of, cpus, leftovers, output, read, run, scopes, wait_until, wait_until_or,
};
use crate::support::promise::describe;

/// One pod, as `kubelet-standin pod show --json` tells it.
#[derive(Debug, Clone, Deserialize)]
pub struct Pod {
    pub name: String,
    pub uid: String,
    pub cgroup: String,
    pub pid: u32,
    /// None when kubelet gave it no CPUs of its own.
    pub cpus: Option<String>,
    /// Where the container's output is kept.
    pub log: PathBuf,
}

/// Run a test body, then delete its pods, and hold the node to being as clean as before.
pub fn on_node(body: impl FnOnce()) {
    on_node_undoing(|| (), body);
}

/// The same, with something to undo however the body ends: after its pods, before the look at what is left.
pub fn on_node_undoing(undo: impl FnOnce(), body: impl FnOnce()) {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        // Most tests need a container and not what made it; those that do say so. On Debian unstable what makes them is what is
        // new, and bookworm's node has no crun.
        let is_usual = std::env::var("NODE_IMAGE").is_ok_and(|image| image.starts_with("trixie"));
        let runtime = if is_usual { "direct" } else { "runc" };
        run(&["kubelet-standin", "init", "--runtime", runtime]);
        remember();
        println!("  guests run on {:?}", Accel::of_node());
    });
    let started = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(body));
    if result.is_err() {
        print_journal();
    }
    // Whatever the body wanted to see of an orderly end it has seen.
    let deleted: Vec<Output> = list()
        .iter()
        .map(|pod| output(&["kubelet-standin", "pod", "delete", &pod.name, "--grace", "0"]))
        .collect();
    let undone = catch_unwind(AssertUnwindSafe(undo));
    if let Err(panic) = result.and(undone) {
        resume_unwind(panic);
    }
    assert!(deleted.iter().all(|out| out.status.success()), "{deleted:?}");
    let clean = catch_unwind(|| {
        wait_until("nothing is left", || leftovers().is_empty().then_some(()));
    });
    if clean.is_err() {
        print_journal();
        panic!("left behind: {:#?}", leftovers());
    }
    println!("  whole test: {} ms", started.elapsed().as_millis());
}

fn print_journal() {
    let unit = ["journalctl", "-b", "--no-pager", "-o", "short-monotonic", "-n", "80"];
    println!("{}", run(&[&unit[..], &["-u", "stelia*"]].concat()));
}

pub fn list() -> Vec<Pod> {
    serde_json::from_str(&run(&["kubelet-standin", "pod", "list", "--json"])).expect("pod list")
}

impl Pod {
    /// `kubelet-standin pod start NAME OPTIONS -- COMMAND`
    pub fn start(name: &str, options: &[&str], command: &[&str]) -> Pod {
        let start = ["kubelet-standin", "pod", "start", name];
        Pod::of(&run(&[&start[..], options, &["--json", "--"], command].concat()))
    }

    fn of(text: &str) -> Pod {
        serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    pub fn show(name: &str) -> Pod {
        Pod::of(&run(&["kubelet-standin", "pod", "show", name, "--json"]))
    }

    /// A pod whose container runs a VM, not waited for.
    pub fn start_vm(name: &str, vcpus: u32, options: &[&str]) -> Pod {
        Pod::start_vm_with(name, vcpus, options, &["--qmp", "/run/qmp"])
    }

    /// The same with the runner's options.
    pub fn start_vm_with(name: &str, vcpus: u32, options: &[&str], runner: &[&str]) -> Pod {
        let count = vcpus.to_string();
        let options = [&["--cpus", &count], options].concat();
        Pod::start_qemu(Accel::of_node(), name, &options, runner, &["-smp", &count])
    }

    /// A pod whose container runs the runner with these options and QEMU with these, not waited for.
    pub fn start_qemu(accel: Accel, name: &str, options: &[&str], runner: &[&str], qemu: &[&str]) -> Pod {
        let command = [&["stelia-runner", "run"], runner, &["--"], &accel.qemu(), qemu].concat();
        Pod::start(name, &[accel.device(), options].concat(), &command)
    }

    /// A pod with a VM that is isolated and whose guest runs.
    pub fn vm(name: &str, vcpus: u32) -> Pod {
        let pod = Pod::start_vm(name, vcpus, &[]);
        pod.wait_running();
        pod
    }

    /// The same with a guest that is emulated, whatever this node has: a handful of tests see to it that nothing rests on KVM.
    pub fn emulated_vm(name: &str, vcpus: u32) -> Pod {
        let count = vcpus.to_string();
        let (options, runner) = (["--cpus", &count], ["--qmp", "/run/qmp"]);
        let pod = Pod::start_qemu(Accel::Tcg, name, &options, &runner, &["-smp", &count]);
        pod.wait_running();
        pod
    }

    pub fn wait_running(&self) {
        let logs = || format!("; its container says:\n{}", self.logs());
        wait_until_or(&format!("guest of {} running", self.name), logs, || {
            let logs = self.logs();
            let ended = !logs.contains("guest running") && crate::support::host::thread(self.pid).is_none();
            assert!(!ended, "the runner ended:\n{logs}");
            logs.contains("guest running").then_some(())
        });
        self.wait_settled();
    }

    /// Wait for the thread that KVM makes on x86 when a vCPU first enters the guest, and until it is off the vCPUs' CPUs.
    pub fn wait_settled(&self) {
        if !cfg!(target_arch = "x86_64") || !self.threads().vcpus.iter().any(|vcpu| vcpu.name.ends_with("/KVM")) {
            return;
        }
        wait_until(&format!("KVM's thread of {} where it belongs", self.name), || {
            let threads = self.threads().others;
            let late = threads.iter().find(|thread| thread.name.starts_with("kvm-nx-lpage"))?;
            (late.cgroup != self.vcpu()).then_some(())
        });
    }

    pub fn logs(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    pub fn kill(&self) {
        run(&["kubelet-standin", "pod", "kill", &self.name]);
    }

    pub fn exclusive(&self) -> CpuSet {
        cpus(self.cpus.as_deref().expect("a guaranteed pod"))
    }

    /// The container's own cgroup.
    pub fn origin(&self) -> PathBuf {
        PathBuf::from(CGROUP).join(self.cgroup.trim_start_matches('/'))
    }

    /// That this pod's is the only scope in stelia.slice.
    pub fn assert_alone(&self) {
        assert_eq!(scopes(), BTreeSet::from([self.scope()]));
    }

    pub fn scope(&self) -> PathBuf {
        PathBuf::from(format!("{SLICE}/stelia-instance-{}.scope", self.uid))
    }

    /// Whether the instance's cgroups are in the container's own.
    pub fn is_in_place(&self) -> bool {
        self.origin().join("vcpu").exists()
    }

    /// The root of the threaded domain.
    fn domain(&self) -> PathBuf {
        if self.is_in_place() {
            self.origin()
        } else {
            self.scope().join("instance")
        }
    }

    pub fn float(&self) -> PathBuf {
        self.domain()
            .join(if self.is_in_place() { "housekeeping" } else { "float" })
    }

    pub fn vcpu(&self) -> PathBuf {
        self.domain().join("vcpu")
    }

    /// All threads of the container: of vCPUs, of the anchor, and the others.
    pub fn threads(&self) -> Threads {
        let mut threads = Threads::default();
        for (pid, found) in container_of(self.pid) {
            // One that has ended meanwhile is none.
            let Ok(command) = fs::read_to_string(format!("/proc/{pid}/cmdline")) else {
                continue;
            };
            let anchor = command.contains("\0anchor");
            for thread in found {
                if anchor {
                    threads.anchor.push(thread);
                } else if thread.name.starts_with("CPU ") {
                    threads.vcpus.push(thread);
                } else {
                    threads.others.push(thread);
                }
            }
        }
        threads
    }
}

/// The shared pool, as kubelet has it; where its policy is `none`, as the daemon has it.
pub fn pool() -> CpuSet {
    let state: serde_json::Value = serde_json::from_str(&read("/var/lib/kubelet/cpu_manager_state")).expect("JSON");
    let pool = match state["policyName"].as_str() {
        Some("none") => describe()["node"]["pools"]["shared"].clone(),
        _ => state["defaultCpuSet"].clone(),
    };
    cpus(pool.as_str().expect("a CPU list"))
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Threads {
    pub vcpus: Vec<Thread>,
    pub anchor: Vec<Thread>,
    pub others: Vec<Thread>,
}
