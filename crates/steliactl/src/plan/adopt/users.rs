//! Processes that run a VM, wherever they are: the dry run has a line for each, also where no container has it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use stelia_decide::adopt::{is_vcpu, is_vmm};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::proc::{KernelProcs, Procs};
use stelia_kubelet::process_place::{ProcessPlace, pod_in};
use stelia_settings::AdoptRule;

use super::VmLine;
use super::admission::Refusal;
use crate::shared::daemon::Pod;
use crate::shared::kernel::numbered;

/// Limit of the open files of a process that are read.
const MAX_FILES: usize = 65_536;
/// Bytes read of a command line.
const MAX_PROGRAM: usize = 4096;

/// A process that has a VM of KVM's open, or is named as a VMM with vCPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VmProcess {
    pub(super) pid: i32,
    /// The program, or its name where it has none.
    pub(super) program: String,
    pub(super) cgroup: CgroupPath,
    /// Its threads that a rule, or a ready-made one, takes for vCPUs.
    pub(super) vcpus: usize,
}

/// All of them on this node. One that ends meanwhile, or cannot be read, is left out.
pub(super) fn find(proc: &Path, procs: &KernelProcs, rules: &[&AdoptRule]) -> Vec<VmProcess> {
    let pids: BTreeSet<i32> = numbered(proc).map(|(pid, _)| pid).collect();
    pids.into_iter()
        .filter_map(|pid| vm_process(proc, procs, rules, pid))
        .collect()
}

fn vm_process(proc: &Path, procs: &KernelProcs, rules: &[&AdoptRule], pid: i32) -> Option<VmProcess> {
    let name = procs.name(pid);
    let command = procs.command(pid, MAX_PROGRAM).unwrap_or_default();
    let program = command.into_iter().next().unwrap_or_default();
    let has_vm = has_vm(proc, pid);
    if !has_vm && !is_vmm(rules, &name, &program) {
        return None;
    }
    // A thread is a process's own only where it is the first.
    let (process, _) = procs.process_and_affinity(pid).ok()?;
    let threads = procs.thread_ids(pid).ok()?;
    let vcpus = threads
        .iter()
        .filter(|thread| is_vcpu(rules, &procs.name(**thread)))
        .count();
    let program = program
        .rsplit('/')
        .next()
        .filter(|program| !program.is_empty())
        .unwrap_or(&name);
    if process != pid || !(has_vm || vcpus > 0) {
        return None;
    }
    Some(VmProcess {
        pid,
        program: program.to_owned(),
        cgroup: procs.cgroup(pid).ok()?,
        vcpus,
    })
}

/// Whether it has a VM or a vCPU of KVM's open (`virt/kvm/kvm_main.c`, `anon_inode_getfd`).
fn has_vm(proc: &Path, pid: i32) -> bool {
    let files = fs::read_dir(proc.join(pid.to_string()).join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    files.take(MAX_FILES).any(|file| {
        let target = fs::read_link(file.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        target.starts_with("anon_inode:kvm-vm") || target.starts_with("anon_inode:kvm-vcpu")
    })
}

/// The line of one that is in no container whose VM was found.
pub(super) fn line(process: &VmProcess, refusal: Refusal) -> VmLine {
    let cgroup = process.cgroup.as_str();
    let mut line = VmLine {
        pod: pod_in(cgroup).map_or_else(Pod::default, |uid| Pod::unnamed(uid.as_str())),
        container: process.cgroup.name().to_owned(),
        vmm: Some(process.program.clone()),
        vmm_pid: Some(process.pid),
        vcpus: (process.vcpus > 0).then_some(process.vcpus),
        ..VmLine::default()
    };
    line.refused(refusal);
    line
}

/// Why a process in this place is not adopted; `None` for one in a container that kubelet's driver and the runtime agree on.
pub(super) fn misplaced(process: &VmProcess) -> Option<Refusal> {
    let (pid, cgroup) = (process.pid, &process.cgroup);
    let (reason, text) = match ProcessPlace::of(cgroup.as_str()) {
        ProcessPlace::Container(_) => return None,
        ProcessPlace::OtherRoot(root) => (
            "OutsideKubepods",
            format!(
                "process {pid} is below {root}: kubelet has a cgroupRoot, and pods are looked for in /kubepods.slice and /kubepods only. \
                 Remove cgroupRoot (/usr/share/doc/steliad/kubelet.md)"
            ),
        ),
        ProcessPlace::OutsideOfPods(_) => (
            "OutsideKubepods",
            format!(
                "process {pid} is in {cgroup}, not in its pod's cgroup: the runtime must have kubelet's cgroup driver (containerd: \
                 SystemdCgroup = true), and kubelet cgroupsPerQOS"
            ),
        ),
        ProcessPlace::Docker(name) => (
            "Unnamed",
            format!(
                "process {pid} is in {name}: of cri-dockerd's containers nothing is known, only of containerd's and CRI-O's"
            ),
        ),
        ProcessPlace::Elsewhere => (
            "NotInPod",
            format!("process {pid} is in {cgroup}, which is no pod's container"),
        ),
    };
    Some((reason.to_owned(), text))
}
