//! Instances without a VM.

use std::fs;

use super::{Bus, Pod, kind, thread, wait_until};

/// The stand-in's words for a pod with a CPU of its own.
pub const ONE_CPU: [&str; 2] = ["--cpus", "1"];

/// A pod of three processes that sleep: the first is the vCPU, another the anchor, and the third floats. It costs the node less than a VM.
pub struct Sleeper {
    pub pod: Pod,
    pub anchor: u32,
    pub floats: u32,
}

impl Sleeper {
    pub fn start(name: &str, options: &[&str]) -> Self {
        let script = "sleep 100001 & sleep 100002 & exec sleep 100003";
        let pod = Pod::start(name, options, &["sh", "-c", script]);
        let of = |seconds: &str, procs: &str| -> Option<u32> {
            procs.lines().find_map(|pid| {
                let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
                (line == format!("sleep\0{seconds}\0")).then(|| pid.parse().ok())?
            })
        };
        let (anchor, floats) = wait_until("three that sleep", || {
            let procs = pod.file("cgroup.procs");
            of("100003", &procs)?;
            Some((of("100001", &procs)?, of("100002", &procs)?))
        });
        Self { pod, anchor, floats }
    }

    /// One with a CPU, registered and attached.
    pub fn isolated(bus: &Bus, name: &str) -> Self {
        let sleeper = Self::start(name, &ONE_CPU);
        sleeper.isolate(bus);
        sleeper
    }

    pub fn isolate(&self, bus: &Bus) {
        let path = bus.register(&self.pod, self.anchor);
        let attached = bus.try_attach(&path, self.pod.pid, &[1]);
        attached.unwrap_or_else(|error| panic!("attach {}: {error}", self.pod.name));
    }

    pub fn assert_whole(&self) {
        let pod = &self.pod;
        let exclusive = pod.exclusive();
        let has = (&*pod.partition(), &pod.effective());
        assert_eq!(has, (kind(), &exclusive), "{}", pod.name);
        let found = |pid: u32| thread(pid).unwrap_or_else(|| panic!("{} lost its process {pid}", pod.name));
        let (first, floats, anchor) = (found(pod.pid), found(self.floats), found(self.anchor));
        assert_eq!((first.cgroup, first.allowed), (pod.vcpu(), exclusive));
        assert_eq!((floats.cgroup, floats.allowed), (pod.float(), pod.float_cpus()));
        assert_eq!(anchor.cgroup, pod.origin());
    }
}
