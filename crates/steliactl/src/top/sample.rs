//! What the kernel has counted so far: of each vCPU thread, of each instance's cgroups. Reads only; what cannot be read, or has
//! ended, is absent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use stelia_cpus::CpuSet;
use stelia_node::proc::start_time;

use super::super::node::{Node, Vcpu};
use super::super::threads::{Roots, field};

/// Everything at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sample {
    /// When, by a clock that only goes forward.
    pub at: Duration,
    /// The instances by pod.
    pub instances: BTreeMap<String, Instance>,
}

/// One instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Instance {
    /// isolated, contained, floating, …
    pub state: String,
    /// Whether all that is promised of it holds.
    pub whole: bool,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// CPU time of what floats, microseconds (`usage_usec` of its `cpu.stat`).
    pub float_us: Option<u64>,
    /// Time that the scope was throttled, microseconds (`throttled_usec` of its `cpu.stat`).
    pub throttled_us: Option<u64>,
    /// Its vCPU threads, by their index.
    pub vcpus: BTreeMap<u32, Thread>,
}

/// One vCPU thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thread {
    /// Thread and start time.
    pub task: (i32, u64),
    /// The CPU it is pinned to.
    pub cpu: Option<u32>,
    /// Time it ran, nanoseconds (`schedstat`).
    pub run_ns: Option<u64>,
    /// Time it could have run and had no CPU, nanoseconds (`schedstat`): what the guest counts as steal.
    pub delay_ns: Option<u64>,
    /// Moves to another CPU (`sched`; only kernels with CONFIG_SCHED_DEBUG have it).
    pub migrations: Option<u64>,
    /// How often something else was let run instead (`nonvoluntary_ctxt_switches`).
    pub involuntary: Option<u64>,
}

impl Sample {
    /// Reads what is counted of the instances that the daemon describes.
    pub fn read(node: &Node, roots: &Roots, at: Duration) -> Self {
        let instances = node.instances.iter().map(|(pod, instance)| {
            let scope = roots.cgroup.join(instance.scope.trim_matches('/'));
            let stat = |cgroup: &Path, name: &str| number(&fs::read_to_string(cgroup.join("cpu.stat")).ok()?, name);
            let threads = instance
                .vcpus
                .iter()
                .map(|vcpu| (vcpu.index, Thread::read(vcpu, &roots.proc)));
            let instance = Instance {
                state: instance.state.clone(),
                whole: instance.degraded.is_empty(),
                cpus: instance.exclusive.clone(),
                float_us: stat(&scope.join("instance/float"), "usage_usec"),
                throttled_us: stat(&scope, "throttled_usec"),
                vcpus: threads.collect(),
            };
            (pod.clone(), instance)
        });
        Self {
            at,
            instances: instances.collect(),
        }
    }
}

impl Thread {
    fn read(vcpu: &Vcpu, proc: &Path) -> Self {
        let mut thread = Self {
            task: (vcpu.task.id, vcpu.task.start),
            cpu: vcpu.cpu,
            ..Self::default()
        };
        // /proc has a folder for each thread, although it lists those of processes only.
        let id = vcpu.task.id.to_string();
        let folder = proc.join(&id).join("task").join(&id);
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        // The number may be another thread's by now.
        if start_time(&read("stat")) != Some(vcpu.task.start) {
            return thread;
        }
        let schedstat = read("schedstat");
        let mut times = schedstat.split_whitespace().map(|word| word.parse().ok());
        thread.run_ns = times.next().flatten();
        thread.delay_ns = times.next().flatten();
        thread.migrations = migrations(&read("sched"));
        thread.involuntary = field(&read("status"), "nonvoluntary_ctxt_switches").and_then(|count| count.parse().ok());
        thread
    }
}

/// `se.nr_migrations   :   12`.
fn migrations(sched: &str) -> Option<u64> {
    let line = sched.lines().find_map(|line| line.strip_prefix("se.nr_migrations"))?;
    line.trim_start().strip_prefix(':')?.trim().parse().ok()
}

/// A line `name number`.
fn number(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::testing::{PODS, node};

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_thread_is_read_while_it_is_the_one_that_was_pinned() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots::below(root.path());
        let mut node = node();
        node.instances.get_mut(PODS[0]).unwrap().scope = "/stelia.slice/a.scope".to_owned();
        let scope = "sys/fs/cgroup/stelia.slice/a.scope";
        write(
            root.path(),
            &format!("{scope}/instance/float/cpu.stat"),
            "usage_usec 700\nuser_usec 1\n",
        );
        write(
            root.path(),
            &format!("{scope}/cpu.stat"),
            "usage_usec 9\nthrottled_usec 30\n",
        );
        // Thread 70 started at 1, as the daemon says; 71 is somebody else by now.
        for (id, start) in [(70, 1), (71, 5)] {
            let task = format!("proc/{id}/task/{id}");
            let fields = "S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0";
            write(
                root.path(),
                &format!("{task}/stat"),
                &format!("{id} (CPU 0/KVM) x) {fields} {start} 0\n"),
            );
            write(root.path(), &format!("{task}/schedstat"), "5000 40 3\n");
            write(
                root.path(),
                &format!("{task}/sched"),
                "CPU 0/KVM (70, #threads: 1)\nse.nr_migrations      :     2\n",
            );
            write(
                root.path(),
                &format!("{task}/status"),
                "Name:\tx\nnonvoluntary_ctxt_switches:\t8\n",
            );
        }
        let sample = Sample::read(&node, &roots, Duration::from_secs(1));
        let instance = &sample.instances[PODS[0]];
        assert_eq!((instance.float_us, instance.throttled_us), (Some(700), Some(30)));
        let expected = Thread {
            task: (70, 1),
            cpu: Some(4),
            run_ns: Some(5000),
            delay_ns: Some(40),
            migrations: Some(2),
            involuntary: Some(8),
        };
        assert_eq!(instance.vcpus[&0], expected);
        assert_eq!((instance.vcpus[&1].run_ns, instance.vcpus[&1].cpu), (None, Some(5)));
        assert_eq!(sample.instances[PODS[1]].float_us, None);
    }
}
