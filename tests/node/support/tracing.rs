//! Who is switched in on CPUs, and where vCPUs enter their guests, by the kernel's own trace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use stelia_cpus::CpuSet;

use super::{Pod, Thread, container_and_nested, output, put, read, run, thread, utf8};

const TRACING: &str = "/sys/kernel/tracing";

/// (CPU, name, thread) -> times switched in.
pub type Switches = BTreeMap<(u32, String, u32), u32>;

/// As the kernel wants them.
fn mask(cpus: &CpuSet) -> String {
    format!("{:x}", cpus.iter().fold(0_u64, |mask, cpu| mask | 1 << cpu))
}

/// A trace, whole: no event was lost on these CPUs.
fn whole(folder: &str, cpus: &CpuSet) -> String {
    for cpu in cpus.iter() {
        let stats = read(format!("{folder}/per_cpu/cpu{cpu}/stats"));
        let is_whole = stats.lines().any(|line| line == "overrun: 0");
        assert!(is_whole, "the trace lost events: {stats}");
    }
    utf8(&fs::read(format!("{folder}/trace")).expect("trace"))
}

fn tracing(file: &str, value: &str) {
    put(format!("{TRACING}/{file}"), value);
}

pub fn record(cpus: &CpuSet, meanwhile: Duration) {
    start_recording(cpus);
    sleep(meanwhile);
    stop_recording();
}

pub fn start_recording(cpus: &CpuSet) {
    tracing("tracing_on", "0");
    tracing("buffer_size_kb", "16384");
    tracing("tracing_cpumask", &mask(cpus));
    tracing("events/sched/sched_switch/enable", "1");
    tracing("trace", "");
    tracing("tracing_on", "1");
}

pub fn stop_recording() {
    tracing("tracing_on", "0");
    tracing("events/sched/sched_switch/enable", "0");
}

/// What was recorded. To be read when the noise is over: it is a lot to do on the shared CPUs.
pub fn recorded(cpus: &CpuSet) -> Switches {
    switches(&whole(TRACING, cpus))
}

/// What is switched in on these CPUs in 5 s, beside two busy loops a CPU in system.slice.
pub fn recorded_under_noise(cpus: &CpuSet) -> Switches {
    let noise = "for n in $(seq 16); do { while :; do :; done; } & done; wait";
    run(&["systemd-run", "--quiet", "--unit=noise", "sh", "-c", noise]);
    record(cpus, Duration::from_secs(5));
    let switches = recorded(cpus);
    run("systemctl stop noise");
    switches
}

pub fn switches(trace: &str) -> Switches {
    let mut counts = BTreeMap::new();
    for line in trace.lines().filter(|line| line.contains("sched_switch:")) {
        let parsed = (|| {
            let cpu = line.split_once('[')?.1.split_once(']')?.0.parse().ok()?;
            let (name, rest) = line.split_once("next_comm=")?.1.split_once(" next_pid=")?;
            Some((cpu, name.to_owned(), rest.split_whitespace().next()?.parse().ok()?))
        })();
        *counts.entry(parsed.unwrap_or_else(|| panic!("{line}"))).or_insert(0) += 1;
    }
    counts
}

/// A kernel thread that is bound to this one CPU. One that ended meanwhile is told by its name.
fn bound_kernel_thread(cpu: u32, name: &str, tid: u32) -> bool {
    let Some(thread) = thread(tid) else {
        return name.starts_with(&format!("kworker/{cpu}:"));
    };
    let user = fs::read(format!("/proc/{tid}/cmdline")).is_ok_and(|line| !line.is_empty());
    !user && thread.allowed.len() == 1 && thread.allowed.contains(cpu)
}

/// Those that are neither one of these vCPU threads on its own CPU nor the kernel's own for that CPU.
pub fn strange_to_vcpus(seen: &Switches, vcpus: &[Thread]) -> Switches {
    let ours = |cpu: u32, tid: u32| vcpus.iter().any(|vcpu| vcpu.tid == tid && vcpu.allowed.contains(cpu));
    let known = |cpu, name: &str, tid| ours(cpu, tid) || tid == 0 || bound_kernel_thread(cpu, name, tid);
    let strange = seen.iter().filter(|((cpu, name, tid), _)| !known(*cpu, name, *tid));
    strange.map(|(who, times)| (who.clone(), *times)).collect()
}

pub fn times(of: &Switches) -> u64 {
    of.values().map(|times| u64::from(*times)).sum()
}

/// Those that ran on the container's CPUs, and are neither its own nor bound to a CPU.
pub fn foreign(pod: &Pod, switches: &Switches) -> Vec<(u32, String, u32)> {
    foreign_to(&own_threads(pod), &pod.exclusive(), switches)
}

/// The container's threads, in PID namespaces within its own too.
pub fn own_threads(pod: &Pod) -> BTreeSet<u32> {
    let processes = container_and_nested(pod.pid).into_values();
    processes.flatten().map(|thread| thread.tid).collect()
}

/// Those that ran on these CPUs, and are neither these threads nor bound to a CPU.
pub fn foreign_to(own: &BTreeSet<u32>, cpus: &CpuSet, switches: &Switches) -> Vec<(u32, String, u32)> {
    let is_bound = |cpu: u32, name: &str| {
        let of_cpu = [format!("/{cpu}"), format!("/{cpu}:")];
        name.ends_with(&of_cpu[0]) || name.contains(&of_cpu[1])
    };
    let foreign = switches
        .keys()
        .filter(|(cpu, _, _)| cpus.contains(*cpu))
        .filter(|(cpu, name, tid)| *tid != 0 && !own.contains(tid) && !is_bound(*cpu, name));
    foreign.cloned().collect()
}

/// An instance of the kernel's trace: several record side by side. It records from its making on, and is removed when it is dropped.
pub struct Trace {
    folder: PathBuf,
    cpus: CpuSet,
}

/// A vCPU entered its guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub tid: u32,
    pub cpu: u32,
}

impl Trace {
    /// What is switched in on these CPUs.
    pub fn switches(name: &str, cpus: &CpuSet) -> Trace {
        Trace::start(name, cpus, "sched/sched_switch", "0")
    }

    /// Where vCPUs enter their guest, on these CPUs, with a filter of the event.
    pub fn entries(name: &str, cpus: &CpuSet, filter: &str) -> Trace {
        Trace::start(name, cpus, "kvm/kvm_entry", filter)
    }

    /// How often a task with a name of this pattern is switched in on these CPUs.
    pub fn switches_to(name: &str, cpus: &CpuSet, pattern: &str) -> Trace {
        Trace::start(name, cpus, "sched/sched_switch", &format!("next_comm ~ \"{pattern}\""))
    }

    fn start(name: &str, cpus: &CpuSet, event: &str, filter: &str) -> Trace {
        let folder = PathBuf::from(format!("{TRACING}/instances/test-{name}"));
        fs::create_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let trace = Trace {
            folder,
            cpus: cpus.clone(),
        };
        for (file, text) in [
            ("buffer_size_kb", "8192"),
            ("tracing_cpumask", &mask(cpus)),
            (&format!("events/{event}/filter"), filter),
            (&format!("events/{event}/enable"), "1"),
        ] {
            put(trace.folder.join(file), text);
        }
        trace
    }

    /// What was recorded: the trace, whole.
    pub fn text(self) -> String {
        put(self.folder.join("tracing_on"), "0");
        whole(&self.folder.to_string_lossy(), &self.cpus)
    }

    /// The entries that were recorded, in the order of their time.
    pub fn end(self) -> Vec<Entry> {
        let text = self.text();
        let lines = text.lines().filter(|line| line.contains(" kvm_entry: "));
        let entry = |line: &str| {
            // A thread's name may have blanks and brackets: "CPU 2/KVM-1234  [005] d.... 12.345: kvm_entry: vcpu 2, rip 0x…".
            let (thread, rest) = line.rsplit_once(" [")?;
            Some(Entry {
                tid: thread.trim().rsplit_once('-')?.1.parse().ok()?,
                cpu: rest.split_once(']')?.0.parse().ok()?,
            })
        };
        let entries = lines.map(|line| entry(line).unwrap_or_else(|| panic!("no entry: {line}")));
        let entries: Vec<Entry> = entries.collect();
        println!("  {} entries", entries.len());
        entries
    }

    /// vCPUs entered, and on the pod's CPUs alone.
    pub fn assert_entered_on_own(self, pod: &Pod) {
        let entered: CpuSet = self.end().iter().map(|entry| entry.cpu).collect();
        let is_own = !entered.is_empty() && entered.is_subset(&pod.exclusive());
        assert!(is_own, "{entered}\n{}", pod.logs());
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Also where the test has failed.
        output(&["rmdir", &self.folder.to_string_lossy()]);
    }
}
