//! An instance of the kernel's trace: several record side by side.

use std::fs;
use std::path::PathBuf;

use stelia_cpus::CpuSet;

use crate::support::host::{output, read};

const INSTANCES: &str = "/sys/kernel/tracing/instances";

/// It records from its making on, and is removed when it is dropped.
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

    fn start(name: &str, cpus: &CpuSet, event: &str, filter: &str) -> Trace {
        let folder = PathBuf::from(INSTANCES).join(format!("test-{name}"));
        fs::create_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let trace = Trace {
            folder,
            cpus: cpus.clone(),
        };
        let mask: u64 = cpus.iter().fold(0, |mask, cpu| mask | 1 << cpu);
        for (file, text) in [
            ("buffer_size_kb", "8192"),
            ("tracing_cpumask", &format!("{mask:x}")),
            (&format!("events/{event}/filter"), filter),
            (&format!("events/{event}/enable"), "1"),
        ] {
            let path = trace.folder.join(file);
            fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        trace
    }

    /// What was recorded: the trace, whole.
    pub fn text(self) -> String {
        fs::write(self.folder.join("tracing_on"), "0").expect("tracing_on");
        for cpu in self.cpus.iter() {
            let stats = read(self.folder.join(format!("per_cpu/cpu{cpu}/stats")));
            assert!(
                stats.lines().any(|line| line == "overrun: 0"),
                "the trace lost events: {stats}"
            );
        }
        let text = fs::read(self.folder.join("trace")).expect("trace");
        String::from_utf8_lossy(&text).into_owned()
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
        let entries: Vec<Entry> = lines
            .map(|line| entry(line).unwrap_or_else(|| panic!("no entry: {line}")))
            .collect();
        println!("  {} entries", entries.len());
        entries
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Also where the test has failed.
        output(&["rmdir", &self.folder.to_string_lossy()]);
    }
}
