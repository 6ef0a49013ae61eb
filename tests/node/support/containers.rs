//! VMs and containers that a rule adopts, and containers whose own cgroup is the partition.

use std::path::{Path, PathBuf};

use stelia_cpus::CpuSet;

use super::*;

/// No audit but those that are asked for.
pub const NO_AUDIT: &str = "audit-interval-s = 3600\n";
/// The rule that adopts the containers of pods `database-*`.
pub const DATABASES: &str =
    "audit-interval-s = 3600\n[[adopt]]\nname = \"databases\"\nkind = \"container\"\npods = [\"database-*\"]\n";
/// Some threads that use its CPUs, and a service that waits.
pub const SERVICE: &str = "for n in 1 2 3; do { while :; do :; done; } & done; exec sleep 100000";
/// `MESSAGE_ID` of an adoption.
pub const ADOPTED: &str = "3d1f0b7c5e9a4c62a8f4d2b96071ce58";

/// A test whose VMs need KVM.
pub fn on_kvm_node(body: impl FnOnce()) {
    needs_kvm();
    on_node(body);
}

/// The same with these settings of the daemon's.
pub fn configured_on_kvm(settings: &str, body: impl FnOnce()) {
    needs_kvm();
    configured(settings, body);
}

/// A test with these settings of the daemon's.
pub fn configured(settings: &str, body: impl FnOnce()) {
    on_node(|| {
        configure(settings);
        body();
    });
}

/// The reason and the text why the VM of this pod is not adopted.
pub fn refused(pod: &Pod) -> Option<(String, String)> {
    let described = describe();
    let all = described["node"]["unadopted"].as_array().expect("a list");
    let one = all.iter().find(|one| one["pod"] == *pod.uid)?;
    let text = |name: &str| one[name].as_str().expect("a text").to_owned();
    Some((text("reason"), text("text")))
}

/// How the container differs from that of an adopted VM with these vCPU threads. In a scope its first process stays behind.
pub fn wrong_if_adopted(pod: &Pod, is_vcpu: impl Fn(&Thread) -> bool) -> Option<String> {
    let threads = all_threads(container_and_nested(pod.pid)).into_iter();
    let (vcpus, others): (Vec<Thread>, Vec<Thread>) = threads.partition(is_vcpu);
    if !pod.is("isolated") || vcpus.len() != pod.exclusive().len() {
        return Some(format!("{:?}, {:?}, {vcpus:#?}", pod.state(), refused(pod)));
    }
    let is_first = |thread: &Thread| thread.tid == pod.pid && !pod.is_in_place();
    wrong(pod, &vcpus, &others, &near_pool(pod), is_first)
}

pub fn until_adopted(pod: &Pod, is_vcpu: impl Fn(&Thread) -> bool) {
    let wrong = || wrong_if_adopted(pod, &is_vcpu);
    wait_until_or(
        &format!("{} is adopted", pod.name),
        || format!(": {:?}", wrong()),
        || wrong().is_none(),
    );
}

/// As QEMU names them, where it names its threads.
pub fn is_qemus_vcpu(thread: &Thread) -> bool {
    thread.name.starts_with("CPU ")
}

/// The whole container's cgroup: crun puts the processes one level below.
pub fn own(pod: &Pod) -> PathBuf {
    let origin = pod.origin();
    if origin.ends_with("container") {
        origin.parent().map(Path::to_owned).unwrap_or_default()
    } else {
        origin
    }
}

pub fn database(name: &str, runtime: &str, options: &[&str]) -> Pod {
    let options = [&["--runtime", runtime], options].concat();
    Pod::start(&format!("database-{name}"), &options, &["sh", "-c", SERVICE])
}

/// What a program in the container reads.
fn read_inside(pod: &Pod) -> CpuSet {
    cpus(&pod.exec("cat /sys/fs/cgroup/cpuset.cpus.effective"))
}

/// Whether its cgroup is the partition, and nobody else may use its CPUs.
pub fn is_partition(pod: &Pod) -> bool {
    let own = own(pod);
    let (exclusive, file) = (pod.exclusive(), |name: &str| read(own.join(name)));
    file("cpuset.cpus.partition") == "root"
        && cpus(&file("cpuset.cpus.effective")) == exclusive
        && cpus(&file("cpuset.cpus.exclusive")) == exclusive
        && exclusive.is_subset(&partitioned())
        && workers().is_disjoint(&exclusive)
        && pod.is("isolated")
}

/// A thread of the container that is outside its cgroup, or may run on CPUs that are not its own.
pub fn moved_thread(pod: &Pod) -> Option<Thread> {
    let (own, exclusive) = (own(pod), pod.exclusive());
    let is_in_place = |thread: &Thread| thread.cgroup.starts_with(&own) && thread.allowed.is_subset(&exclusive);
    let mut threads = all_threads(container_and_nested(pod.pid)).into_iter();
    threads.find(|thread| !is_in_place(thread))
}

/// Wait until the container is a partition. Nothing of it was moved, and it reads the same CPUs as before.
pub fn until_partition(pod: &Pod, when: &str) {
    let seen = || {
        let files = ["cpuset.cpus", "cpuset.cpus.exclusive", "cpuset.cpus.partition"];
        let files = files.map(|file| read(own(pod).join(file)));
        format!(": {:?}, {files:?}, {:?}", pod.state(), refused(pod))
    };
    wait_until_or(&format!("a partition {when}"), seen, || is_partition(pod));
    assert_eq!(moved_thread(pod), None);
    assert_eq!(read_inside(pod), pod.exclusive(), "{when}: what a program in it reads");
    run(&["steliactl", "verify", "--now", &pod.uid]);
}

/// Whether the container is as kubelet made it.
pub fn is_given_back(pod: &Pod) -> bool {
    let own = own(pod);
    let file = |name: &str| read(own.join(name));
    file("cpuset.cpus.partition") == "member"
        && file("cpuset.cpus.exclusive").is_empty()
        && lists_above(&own).iter().skip(1).all(String::is_empty)
        && pod.state().is_none()
        && read_inside(pod) == pod.exclusive()
}

/// The exclusive lists of a cgroup, and of those above it up to kubepods.
pub fn lists_above(cgroup: &Path) -> Vec<String> {
    let levels = cgroup.ancestors().take_while(|level| *level != Path::new(CGROUP));
    levels.map(|level| read(level.join("cpuset.cpus.exclusive"))).collect()
}

/// The VM's cgroups are gone and its CPUs anybody's; its container, if that lives on, is an ordinary one.
pub fn until_adoption_ended(pod: &Pod) {
    wait_until("its CPUs are given back", || pod.state().is_none());
    wait_until("its cgroups are gone", || !pod.vcpu().exists() && !pod.scope().exists());
    assert!(pod.exclusive().is_disjoint(&partitioned()));
    assert_eq!(pod.file("cgroup.type"), "domain");
}
