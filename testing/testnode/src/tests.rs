use std::os::fd::AsFd;

use stelia_cpus::Topology;
use stelia_kernel::cgroup::{Cgroups, File, KernelCgroups};
use stelia_kernel::proc::Procs;

use super::conformance::{self, Expect};
use super::*;

/// Two sockets of two cores of two threads: CPUs 0-7.
fn node(kernel: Kernel) -> (Model, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let model = Model::node(&topology(2, 2, 2), directory.path(), kernel).unwrap();
    (model, directory)
}

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

fn read(model: &Model, at: &str, file: File) -> String {
    model.read(&path(at), file).unwrap()
}

fn write(model: &Model, at: &str, file: File, value: &str) {
    model.write(&path(at), file, value).unwrap();
}

/// A partition two levels down in stelia.slice, as the daemon makes it.
fn partition(model: &Model, list: &str) {
    for level in ["/stelia.slice", "/stelia.slice/x", "/stelia.slice/x/vcpu"] {
        model.create(&path(level)).unwrap();
        write(model, level, File::CpusExclusive, list);
        write(model, level, File::SubtreeControl, "+cpuset");
    }
    write(model, "/stelia.slice/x/vcpu", File::Cpus, list);
    write(model, "/stelia.slice/x/vcpu", File::Partition, "isolated");
}

#[test]
fn the_model_keeps_every_rule_of_the_list() {
    let (model, _directory) = node(Kernel::V6_12);
    let pid = model.spawn(1, "sleep").unwrap();
    assert_eq!(conformance::run(&model, &path("/conformance"), pid), []);
}

#[test]
fn an_older_kernel_keeps_the_part_without_partitions_and_has_no_exclusive_lists() {
    let (model, _directory) = node(Kernel::V6_1);
    let pid = model.spawn(1, "sleep").unwrap();
    assert_eq!(conformance::run(&model, &path("/conformance"), pid), []);
    let missing = model.read(&CgroupPath::slice(), File::CpusExclusive).unwrap_err();
    assert!(missing.is_gone(), "{missing}");
}

#[test]
fn the_list_tells_a_directory_from_a_cgroup() {
    let directory = tempfile::tempdir().unwrap();
    let mismatches = conformance::run(&KernelCgroups::new(directory.path()), &path("/conformance"), 1);
    let missing = |mismatch: &conformance::Mismatch| mismatch.expected == Expect::Works;
    assert!(mismatches.iter().any(missing), "{mismatches:?}");
}

#[test]
fn a_partition_that_would_take_the_last_cpus_is_refused_with_a_reason() {
    let (model, _directory) = node(Kernel::V6_12);
    partition(&model, "0-7");
    let text = read(&model, "/stelia.slice/x/vcpu", File::Partition);
    assert_eq!(text, "isolated invalid (Invalid cpu list in cpuset.cpus.exclusive)");
    assert_eq!(read(&model, "/system.slice", File::CpusEffective), "0-7");
}

#[test]
fn a_list_that_shrinks_above_ends_the_partition_and_growing_it_again_does_not_mend_it() {
    let (model, _directory) = node(Kernel::V6_12);
    partition(&model, "2-3");
    write(&model, "/stelia.slice", File::CpusExclusive, "2");
    let text = read(&model, "/stelia.slice/x/vcpu", File::Partition);
    assert!(text.starts_with("isolated invalid"), "{text}");
    assert_eq!(read(&model, "/system.slice", File::CpusEffective), "0-7");
    write(&model, "/stelia.slice", File::CpusExclusive, "2-3");
    let text = read(&model, "/stelia.slice/x/vcpu", File::Partition);
    assert!(text.starts_with("isolated invalid"), "{text}");
}

#[test]
fn a_siblings_cpus_that_meet_a_partition_end_it() {
    let (model, _directory) = node(Kernel::V6_12);
    partition(&model, "2-3");
    model.create(&path("/stelia.slice/x/float")).unwrap();
    write(&model, "/stelia.slice/x/float", File::Cpus, "0-3");
    assert_eq!(
        read(&model, "/stelia.slice/x/vcpu", File::Partition),
        "isolated invalid"
    );
    write(&model, "/stelia.slice/x/vcpu", File::Partition, "isolated");
    assert_eq!(
        read(&model, "/stelia.slice/x/vcpu", File::Partition),
        "isolated invalid (Cpu list in cpuset.cpus not exclusive)"
    );
}

#[test]
fn a_partition_whose_cpus_all_went_offline_stays_invalid_when_they_return() {
    let (model, directory) = node(Kernel::V6_12);
    partition(&model, "2-3");
    let vcpu = "/stelia.slice/x/vcpu";
    model.hotplug(&cpus("0-2,4-7")).unwrap();
    assert_eq!(read(&model, vcpu, File::Partition), "isolated", "one CPU is left");
    assert_eq!(
        Topology::read(&directory.path().join("sys")).unwrap().online(),
        cpus("0-2,4-7")
    );
    let pid = model.spawn(1, "task").unwrap();
    write(&model, "/stelia.slice/x/vcpu", File::SubtreeControl, "-cpuset");
    model.meddle(&path(vcpu), File::Procs, &pid.to_string()).unwrap();
    model.hotplug(&cpus("0-1,4-7")).unwrap();
    let text = "isolated invalid (No cpu available due to hotplug)";
    assert_eq!(read(&model, vcpu, File::Partition), text);
    assert_eq!(model.affinity(pid).unwrap(), cpus("0-1,4-7"), "it spills to the others");
    model.hotplug(&cpus("0-7")).unwrap();
    assert_eq!(read(&model, vcpu, File::Partition), text);
    write(&model, vcpu, File::Partition, "isolated");
    assert_eq!(read(&model, vcpu, File::Partition), "isolated");
}

#[test]
fn affinity_must_meet_the_cpuset_and_outlives_its_changes_on_newer_kernels_only() {
    for (kernel, after) in [(Kernel::V6_12, "1"), (Kernel::V6_1, "0-2")] {
        let (model, _directory) = node(kernel);
        let task = model.spawn(1, "task").unwrap();
        model.create(&path("/x")).unwrap();
        write(&model, "/x", File::Cpus, "0-1");
        write(&model, "/x", File::Procs, &task.to_string());
        let refused = model.set_affinity(task, Some(2)).unwrap_err();
        assert_eq!(refused.cause.raw_os_error(), Some(nix::libc::EINVAL));
        model.set_affinity(task, Some(1)).unwrap();
        let child = model.spawn_thread(task, "late").unwrap();
        assert_eq!(model.affinity(child).unwrap(), cpus("1"), "inherited");
        write(&model, "/x", File::Cpus, "0-2");
        assert_eq!(model.affinity(task).unwrap(), cpus(after), "{kernel:?}");
    }
}

#[test]
fn a_pidfd_names_its_process_until_it_ends_and_never_a_later_one_of_the_same_number() {
    let (model, directory) = node(Kernel::V6_12);
    let pid = model.spawn(1, "task").unwrap();
    let fd = model.pidfd(pid).unwrap();
    let passed_on = fd.try_clone().unwrap();
    assert_eq!(model.pid_of_pidfd(passed_on.as_fd()).unwrap(), pid);
    let file = std::fs::File::open(directory.path()).unwrap();
    let foreign = model.pid_of_pidfd(file.as_fd()).unwrap_err();
    assert!(foreign.to_string().contains("not a pidfd"));
    model.end(pid).unwrap();
    model.next_id(pid);
    assert_eq!(model.spawn(1, "task").unwrap(), pid);
    assert!(model.pid_of_pidfd(fd.as_fd()).unwrap_err().is_gone());
}
