//! Pods, by the stand-in for kubelet and containerd; and the frame every test runs in.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Once;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use stelia_cpus::CpuSet;

use super::*;
use crate::quiet::interrupts::remember;

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

/// The same, with something to undo however the body ends, before the look at what is left. The daemon's settings are undone in any case.
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
    let delete = |pod: &Pod| output(&["kubelet-standin", "pod", "delete", &pod.name, "--grace", "0"]);
    let deleted: Vec<Output> = pods().iter().map(delete).collect();
    let undone = catch_unwind(AssertUnwindSafe(undo)).and(catch_unwind(unconfigure));
    if let Err(panic) = result.and(undone) {
        resume_unwind(panic);
    }
    assert!(deleted.iter().all(|out| out.status.success()), "{deleted:?}");
    let clean = catch_unwind(|| {
        wait_until("nothing is left", || leftovers().is_empty());
    });
    if clean.is_err() {
        print_journal();
        panic!("left behind: {:#?}", leftovers());
    }
    println!("  whole test: {} ms", started.elapsed().as_millis());
}

fn print_journal() {
    println!("{}", journal_of(&["stelia*", "kubelet", "crio"]));
}

/// Those of the stand-in.
pub fn pods() -> Vec<Pod> {
    parse(&run("kubelet-standin pod list --json"))
}

impl Pod {
    /// `kubelet-standin pod start NAME OPTIONS -- COMMAND`
    pub fn start(name: &str, options: &[&str], command: &[&str]) -> Pod {
        let start = ["kubelet-standin", "pod", "start", name];
        parse(&run(&[&start[..], options, &["--json", "--"], command].concat()))
    }

    pub fn idle(name: &str, options: &[&str]) -> Pod {
        Pod::start(name, options, &["sh", "-c", "sleep 100000; true"])
    }

    pub fn show(name: &str) -> Pod {
        parse(&run(&["kubelet-standin", "pod", "show", name, "--json"]))
    }

    pub fn now(&self) -> Pod {
        Pod::show(&self.name)
    }

    /// Its next container.
    pub fn restart(&self) -> Pod {
        run(&["kubelet-standin", "pod", "restart", &self.name]);
        self.now()
    }

    /// kubelet resizes its container in place; the pod as it is then.
    pub fn resize(&self, option: &str, value: &str) -> Pod {
        run(&["kubelet-standin", "pod", "resize", &self.name, option, value]);
        self.now()
    }

    pub fn delete(&self, grace: u32) {
        run(&format!("kubelet-standin pod delete {} --grace {grace}", self.name));
    }

    /// Until its container has ended; the exit code.
    pub fn wait(&self) -> String {
        run(&["kubelet-standin", "pod", "wait", &self.name])
    }

    pub fn exec_words(&self) -> [&str; 5] {
        ["kubelet-standin", "pod", "exec", &self.name, "--"]
    }

    pub fn exec_command(&self) -> Command {
        let mut command = Command::new("kubelet-standin");
        command.args(["pod", "exec", &self.name, "--"]);
        command
    }

    /// Run a command in its container; it must succeed.
    pub fn exec(&self, command: &(impl Argv + ?Sized)) -> String {
        run(&[&self.exec_words()[..], &command.argv()].concat())
    }

    pub fn try_exec(&self, command: &(impl Argv + ?Sized)) -> Output {
        output(&[&self.exec_words()[..], &command.argv()].concat())
    }

    /// A shell exec'd into it leaves a process that sleeps.
    pub fn exec_sleeper(&self) {
        self.exec(&["sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo started"]);
    }

    pub fn deregister(&self) {
        run(&["steliactl", "release", &self.uid]);
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
        Pod::start_vm(name, vcpus, &[]).running()
    }

    pub fn wait_running(&self) {
        let logs = || format!("; its container says:\n{}", self.logs());
        wait_until_or(&format!("guest of {} running", self.name), logs, || {
            let logs = self.logs();
            let is_running = logs.contains("guest running");
            assert!(is_running || thread(self.pid).is_some(), "the runner ended:\n{logs}");
            is_running
        });
        self.wait_settled();
    }

    pub fn running(self) -> Pod {
        self.wait_running();
        self
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
        utf8(&fs::read(&self.log).unwrap_or_default())
    }

    pub fn kill(&self) {
        run(&["kubelet-standin", "pod", "kill", &self.name]);
    }

    /// The instance's state by ListInstances, which every release answers alike; none when it is not listed. A daemon that is
    /// just being started again is asked again: no answer is no state.
    pub fn state(&self) -> Option<String> {
        for _ in 0..100 {
            let answer = output(&busctl(MANAGER, "Manager", &["ListInstances"]));
            if answer.status.success() {
                let answer = json(&utf8(&answer.stdout));
                let rows = answer["data"][0].as_array().expect("rows");
                let row = rows.iter().find(|row| row[0] == *self.uid)?;
                return row[3].as_str().map(str::to_owned);
            }
            sleep(Duration::from_millis(100));
        }
        panic!("ListInstances fails for 10 s");
    }

    pub fn is(&self, state: &str) -> bool {
        self.state().as_deref() == Some(state)
    }

    pub fn assert_is(&self, state: &str) {
        assert_eq!(self.state().as_deref(), Some(state), "{}", self.name);
    }

    pub fn wait_state(&self, state: &str) {
        wait_until(&format!("{} {state}", self.name), || self.is(state));
    }

    pub fn wait_released(&self) {
        wait_until(&format!("{} has no instance", self.name), || self.state().is_none());
    }

    pub fn described(&self) -> Value {
        describe()["node"]["instances"][&self.uid].clone()
    }

    /// Whether what `steliactl show` prints has this text.
    pub fn shows(&self, text: &str) -> bool {
        run(&["steliactl", "--json", "show", &self.uid]).contains(text)
    }

    /// Whether `verify` has nothing to say of it, and what it prints.
    pub fn verified(&self) -> (bool, String) {
        let out = output(&["steliactl", "verify", "--now", &self.uid]);
        (out.status.success(), utf8(&out.stdout))
    }

    pub fn exclusive(&self) -> CpuSet {
        cpus(self.cpus.as_deref().expect("a guaranteed pod"))
    }

    /// The container's own cgroup.
    pub fn origin(&self) -> PathBuf {
        PathBuf::from(CGROUP).join(self.cgroup.trim_start_matches('/'))
    }

    pub fn file(&self, name: &str) -> String {
        read(self.origin().join(name))
    }

    pub fn scope_file(&self, name: &str) -> String {
        read(self.scope().join(name))
    }

    pub fn vcpu_file(&self, name: &str) -> String {
        read(self.vcpu().join(name))
    }

    pub fn partition(&self) -> String {
        self.vcpu_file("cpuset.cpus.partition")
    }

    pub fn effective(&self) -> CpuSet {
        cpus(&self.vcpu_file("cpuset.cpus.effective"))
    }

    pub fn float_cpus(&self) -> CpuSet {
        cpus(&read(self.float().join("cpuset.cpus")))
    }

    /// A file of the container, as the node sees it.
    pub fn inside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }

    /// That this pod's is the only scope in stelia.slice.
    pub fn assert_alone(&self) {
        assert_eq!(scopes(), BTreeSet::from([self.scope()]));
    }

    pub fn unit(&self) -> String {
        format!("stelia-instance-{}.scope", self.uid)
    }

    pub fn scope(&self) -> PathBuf {
        PathBuf::from(SLICE).join(self.unit())
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
    let state = kubelet_state();
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

impl Threads {
    /// Those of no vCPU whose names begin so.
    pub fn named(&self, beginning: &str) -> Vec<&Thread> {
        let is_so = |thread: &&Thread| thread.name.starts_with(beginning);
        self.others.iter().filter(is_so).collect()
    }

    pub fn one(&self, beginning: &str) -> &Thread {
        self.named(beginning)
            .first()
            .unwrap_or_else(|| panic!("no {beginning}: {self:#?}"))
    }

    /// How long its vCPUs ran, ns.
    pub fn ran(&self) -> u64 {
        self.vcpus.iter().map(|vcpu| run_time(vcpu.tid)).sum()
    }

    pub fn identities(&self) -> BTreeSet<(u32, u64)> {
        identities(&self.vcpus)
    }
}

/// The runtime's name of a container, by its scope. The processes may be in a cgroup below that.
pub fn container_id(pod: &Pod) -> String {
    let scope = pod.cgroup.split('/').find_map(|part| part.strip_suffix(".scope"));
    let Some((_, id)) = scope.and_then(|scope| scope.rsplit_once('-')) else {
        panic!("no container's scope: {}", pod.cgroup)
    };
    id.to_owned()
}

/// Which threads they are, whatever CPUs they have.
pub fn identities(threads: &[Thread]) -> BTreeSet<(u32, u64)> {
    threads.iter().map(|thread| (thread.tid, thread.start)).collect()
}
