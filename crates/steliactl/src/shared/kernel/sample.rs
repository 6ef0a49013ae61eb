//! The kernel's counters of each vCPU thread and each instance's cgroups. Only reads; what cannot be read, or has
//! ended, is absent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stelia_api::Reason;
use stelia_kernel::cgroup::{CgroupPath, Cgroups, File, KernelCgroups, value};
use stelia_kernel::counters::task;
use stelia_kernel::proc::{field, start_time};
use stelia_kubelet::PodUid;
use stelia_model::{Instance, PinnedThread};

use crate::shared::daemon::{Description, own_cpus};
use crate::shared::kernel::Roots;
use crate::shared::kernel::interrupts::{device_interrupts, read_table};
use crate::shared::kernel::threads;

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sample {
    /// When it was read, by a monotonic clock.
    pub at: Duration,
    /// What is wrong on the node.
    pub problems: Vec<Reason>,
    pub instances: BTreeMap<String, InstanceCounts>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct InstanceCounts {
    pub instance: Arc<Instance>,
    /// CPU time of the threads in `float`, microseconds (`usage_usec` of its `cpu.stat`).
    pub float_us: Option<u64>,
    /// Time that the scope was throttled, microseconds (`throttled_usec` of its `cpu.stat`).
    pub throttled_us: Option<u64>,
    /// Device interrupts on its exclusive CPUs since boot; `None` where it has none, or they cannot be counted.
    pub device_interrupts: Option<u64>,
    /// Bytes in the last-level caches, as `steliad-quiet` last read them from resctrl.
    pub llc_bytes: Option<u64>,
    pub vcpus: BTreeMap<u32, ThreadCounts>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ThreadCounts {
    /// Thread and start time.
    pub task: (i32, u64),
    pub cpu: Option<u32>,
    /// Time it ran, nanoseconds (`schedstat`).
    pub run_ns: Option<u64>,
    /// Time it was runnable and waited for a CPU, nanoseconds (`schedstat`): the guest sees it as steal.
    pub delay_ns: Option<u64>,
    /// Moves to another CPU (`sched`; only kernels with CONFIG_SCHED_DEBUG have it).
    pub migrations: Option<u64>,
    /// How long SMT siblings of its CPU stood idle by force while it ran, nanoseconds (`sched`; only kernels with core scheduling
    /// and schedstats have it).
    pub forced_idle_ns: Option<u64>,
    /// How often it was preempted (`nonvoluntary_ctxt_switches`).
    pub involuntary: Option<u64>,
}

impl Sample {
    /// Reads the counters of the instances that the daemon describes.
    pub(crate) fn read(description: &Description, roots: &Roots, at: Duration) -> Self {
        let interrupts = read_table(&roots.proc);
        let caches = &description.node.quiet.report.caches;
        let cgroups = KernelCgroups::new(&roots.cgroup);
        let stat = |cgroup: &CgroupPath, name: &str| value(&cgroups.read(cgroup, File::CpuStat).ok()?, name);
        let counts = |pod: &PodUid, instance: &Arc<Instance>| InstanceCounts {
            float_us: threads::float(instance).and_then(|float| stat(&float, "usage_usec")),
            throttled_us: stat(&instance.scope, "throttled_usec"),
            device_interrupts: interrupts
                .as_ref()
                .and_then(|table| device_interrupts(table, &own_cpus(instance))),
            llc_bytes: caches.get(pod.as_str()).and_then(|one| one.llc_bytes),
            vcpus: instance
                .vcpus
                .iter()
                .map(|vcpu| (vcpu.thread.role.into(), ThreadCounts::read(vcpu, &roots.proc)))
                .collect(),
            instance: Arc::clone(instance),
        };
        let instances = description.node.instances.iter();
        Self {
            at,
            problems: description.problems.clone(),
            instances: instances
                .map(|(pod, instance)| (pod.to_string(), counts(pod, instance)))
                .collect(),
        }
    }
}

impl ThreadCounts {
    fn read(vcpu: &PinnedThread, proc: &Path) -> Self {
        // /proc/TID exists for each thread, although a listing of /proc shows processes only.
        let id = vcpu.thread.task.id.to_string();
        let folder = proc.join(&id).join("task").join(&id);
        let bytes = |file: &str| fs::read(folder.join(file)).unwrap_or_default();
        let read = |file: &str| String::from_utf8_lossy(&bytes(file)).into_owned();
        let counters = task::parse(&bytes("schedstat")).ok();
        let (sched, status) = (read("sched"), read("status"));
        let count = |text, name| field(text, name)?.parse().ok();
        let migrations = count(&sched, "se.nr_migrations");
        let involuntary = count(&status, "nonvoluntary_ctxt_switches");
        let thread = Self {
            task: (vcpu.thread.task.id, vcpu.thread.task.start),
            cpu: vcpu.thread.cpu,
            ..Self::default()
        };
        // The number may have been reused. The start time is read last: if it is the thread's, everything read before
        // was too.
        if start_time(&read("stat")) != Some(vcpu.thread.task.start) {
            return thread;
        }
        Self {
            run_ns: counters.map(|counters| counters.run_ns),
            delay_ns: counters.map(|counters| counters.delay_ns),
            migrations,
            forced_idle_ns: forced_idle(&sched),
            involuntary,
            ..thread
        }
    }
}

/// `core_forceidle_sum   :   12.345678`, in milliseconds with six digits.
fn forced_idle(sched: &str) -> Option<u64> {
    let milliseconds: f64 = field(sched, "core_forceidle_sum")?.parse().ok()?;
    (milliseconds >= 0.0).then_some((milliseconds * 1e6) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
    use crate::tests::fixtures::write;

    #[test]
    fn milliseconds_with_six_digits_are_read() {
        let sched = "core_forceidle_sum                           :             2.500000\n";
        assert_eq!(forced_idle(sched), Some(2_500_000));
        assert_eq!(forced_idle("se.nr_migrations : 12\n"), None);
    }

    #[test]
    fn a_thread_is_read_while_it_is_the_one_that_was_pinned() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots::below(root.path());
        let mut node = node();
        instance_mut(&mut node, PODS[0]).scope = CgroupPath::slice().child("a.scope");
        let put = |path: String, text: &str| write(root.path(), &path, text);
        let scope = "sys/fs/cgroup/stelia.slice/a.scope";
        let float = "usage_usec 700\nuser_usec 1\n";
        put(format!("{scope}/instance/float/cpu.stat"), float);
        put(format!("{scope}/cpu.stat"), "usage_usec 9\nthrottled_usec 30\n");
        let interrupts = "CPU4 CPU5 CPU6\n 30: 1 2 4 x\n LOC: 9 9 9\n";
        put("proc/interrupts".to_owned(), interrupts);
        // Thread 70 started at 1, as the daemon says; number 71 has been reused.
        for (id, start) in [(70, 1), (71, 5)] {
            let task = format!("proc/{id}/task/{id}");
            let fields = "S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0";
            let stat = format!("{id} (CPU 0/KVM) x) {fields} {start} 0\n");
            for (file, text) in [
                ("stat", stat.as_str()),
                ("schedstat", "5000 40 3\n"),
                ("sched", "CPU 0/KVM (70, #threads: 1)\nse.nr_migrations      :     2\n"),
                ("status", "Name:\tx\nnonvoluntary_ctxt_switches:\t8\n"),
            ] {
                put(format!("{task}/{file}"), text);
            }
        }
        let sample = Sample::read(&node, &roots, Duration::from_secs(1));
        let instance = &sample.instances[PODS[0]];
        assert_eq!((instance.float_us, instance.throttled_us), (Some(700), Some(30)));
        // On its CPUs, 4 and 5; CPU 2 is not online.
        assert_eq!(instance.device_interrupts, Some(3));
        assert_eq!(sample.instances[PODS[1]].device_interrupts, None);
        let expected = ThreadCounts {
            task: (70, 1),
            cpu: Some(4),
            run_ns: Some(5000),
            delay_ns: Some(40),
            migrations: Some(2),
            involuntary: Some(8),
            forced_idle_ns: None,
        };
        assert_eq!(instance.vcpus[&0], expected);
        assert_eq!((instance.vcpus[&1].run_ns, instance.vcpus[&1].cpu), (None, Some(5)));
        assert_eq!(sample.instances[PODS[1]].float_us, None);
    }
}
