//! The promise of an isolated instance, held against the kernel.

use stelia_cpus::CpuSet;

use super::*;

/// Everything an isolated instance promises. `vcpus` is how many its guest has. Answers its threads.
pub fn assert_isolated(pod: &Pod, vcpus: usize) -> Threads {
    assert_isolated_beside(pod, vcpus, &near_pool(pod))
}

/// The same of an instance that floats on these CPUs.
pub fn assert_isolated_beside(pod: &Pod, vcpus: usize, shared: &CpuSet) -> Threads {
    let threads = pod.threads();
    assert_eq!(threads.vcpus.len(), vcpus, "{threads:#?}");
    assert_eq!(wrong(pod, &threads.vcpus, &threads.others, shared, |_| false), None);
    assert!(threads.others.len() >= 3, "{threads:#?}");
    let [anchor] = &threads.anchor[..] else {
        panic!("not one anchor: {threads:#?}")
    };
    let (place, file, left) = if pod.is_in_place() {
        (pod.float(), "cgroup.threads", String::new())
    } else {
        (pod.origin(), "cgroup.procs", anchor.tid.to_string())
    };
    assert_eq!(anchor.cgroup, place, "{anchor:?}");
    assert_eq!(pod.file(file), left, "what is left in the origin");
    assert_eq!(cpus(&pod.vcpu_file("cpuset.cpus")), pod.exclusive());
    pod.assert_is("isolated");
    threads
}

/// How the container differs from that of a VM with these vCPU threads, each alone on a CPU, whose other threads float on `shared`. Those of
/// which `stays` is true may be where their runtime put them.
pub fn wrong(
    pod: &Pod,
    vcpus: &[Thread],
    others: &[Thread],
    shared: &CpuSet,
    stays: impl Fn(&Thread) -> bool,
) -> Option<String> {
    let exclusive = pod.exclusive();
    let mut used = CpuSet::new();
    for vcpu in vcpus {
        let is_alone = vcpu.allowed.len() == 1 && vcpu.allowed.is_disjoint(&used);
        if vcpu.cgroup != pod.vcpu() || !is_alone || !vcpu.allowed.is_subset(&exclusive) {
            return Some(format!("{vcpu:?}, with CPUs of {exclusive}, of which {used} are used"));
        }
        used = used.union(&vcpu.allowed);
    }
    let floats = |thread: &Thread| thread.cgroup == pod.float() && thread.allowed == *shared;
    let is_right = |thread: &Thread| floats(thread) || stays(thread) && thread.cgroup == pod.origin();
    if let Some(stray) = others.iter().find(|thread| !is_right(thread)) {
        return Some(format!("{stray:?}, not in {} on {shared}", pod.float().display()));
    }
    let own = cpus(&pod.vcpu_file("cpuset.cpus.exclusive"));
    let (partition, effective, float) = (pod.partition(), pod.effective(), pod.float_cpus());
    if partition != kind() || own != exclusive || effective != exclusive || float != *shared {
        return Some(format!("{partition} of {own} on {effective}, float on {float}"));
    }
    // Nobody else may use them, by the kernel's own word.
    let above = if pod.is_in_place() {
        format!("{CGROUP}/kubepods.slice")
    } else {
        SLICE.to_owned()
    };
    let (taken, given) = (partitioned(), cpus(&read(format!("{above}/cpuset.cpus.exclusive"))));
    let everybodys = ["system.slice", "init.scope", "kubepods.slice"].map(super::effective);
    let is_kept_off = |others: &CpuSet| others.is_disjoint(&exclusive);
    let is_kept = everybodys.iter().all(is_kept_off)
        && is_kept_off(&workers())
        && exclusive.is_subset(&taken)
        && exclusive.is_subset(&given);
    (!is_kept).then(|| {
        format!(
            "taken {taken}, given {given}, others {everybodys:?}, workers {}",
            workers()
        )
    })
}

/// A container that was deregistered is where and as kubelet made it. `before` are its threads when it was an instance.
pub fn assert_given_back(pod: &Pod, before: Threads) {
    assert!(!pod.scope().exists());
    assert_eq!(pod.state(), None);
    assert_eq!(read(format!("{SLICE}/cpuset.cpus.exclusive")), "");
    assert_eq!(partitioned(), CpuSet::new());
    let origin = cpus(&pod.file("cpuset.cpus"));
    assert_eq!(origin, pod.exclusive());
    for was in [before.vcpus, before.others, before.anchor].concat() {
        let now = thread(was.tid).unwrap_or_else(|| panic!("{was:?} is gone"));
        assert_eq!((now.start, now.cgroup.clone()), (was.start, pod.origin()), "{now:?}");
        assert_eq!(now.allowed, origin, "{now:?}");
    }
}

pub fn near_pool(pod: &Pod) -> CpuSet {
    near(&pool(), &pod.exclusive())
}

/// Whether it is so now: while something is being repaired.
pub fn is_isolated(pod: &Pod, vcpus: usize) -> bool {
    let threads = pod.threads();
    let is_wrong = || wrong(pod, &threads.vcpus, &threads.others, &near_pool(pod), |_| false).is_some();
    threads.vcpus.len() == vcpus && pod.is("isolated") && !is_wrong()
}

/// Drift found and repaired since the daemon started.
pub fn counters() -> (u64, u64) {
    let description = describe();
    let count = |name: &str| description["node"]["counters"][name].as_u64().expect("a number");
    (count("drift_found"), count("drift_repaired"))
}

/// What of the pool is in the NUMA nodes of an instance; all of it when that is too little.
fn near(pool: &CpuSet, exclusive: &CpuSet) -> CpuSet {
    let nodes = [0, 1].map(|node| cpus(&read(format!("/sys/devices/system/node/node{node}/cpulist"))));
    let of_vm = nodes.iter().filter(|node| !node.is_disjoint(exclusive));
    let near = of_vm.fold(CpuSet::new(), |all, node| all.union(&node.intersection(pool)));
    if near.len() < 2 { pool.clone() } else { near }
}

/// What `doctor` finds of the places of memory and devices, VM by VM.
pub fn doctor_of_places() -> Vec<String> {
    let (checks, _) = printed("steliactl --json doctor");
    let checks = checks.as_array().expect("a list").iter();
    let found = checks.filter(|check| check["check"] == "locality");
    let facts = found.filter_map(|check| check["fact"].as_str());
    facts.flat_map(|fact| fact.split("; ")).map(str::to_owned).collect()
}

/// Each vCPU is alone on one CPU of these, in its own cgroup; the CPUs that they have.
pub fn assert_seated(pod: &Pod, vcpus: &[Thread]) -> CpuSet {
    for vcpu in vcpus {
        assert_eq!((&vcpu.cgroup, vcpu.allowed.len()), (&pod.vcpu(), 1), "{vcpu:?}");
    }
    vcpus.iter().fold(CpuSet::new(), |used, vcpu| used.union(&vcpu.allowed))
}
