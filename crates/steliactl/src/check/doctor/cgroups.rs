//! Where the cgroups of pods are: VMs are admitted and adopted only where kubelet and the runtime make them below kubepods.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use stelia_kernel::proc::unified_cgroup;
use stelia_kubelet::process_place::ProcessPlace;

use super::Facts;
use super::checks::{Finding, failed, ok};
use crate::shared::kernel::numbered;

/// The end of every text: the consequence.
const UNTIL_CHANGED: &str = "until then no VM of such a pod is admitted or adopted";

/// Processes of pods that are not below kubepods, or of a runtime that is not known: one of each place, with its id and cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Misplaced {
    other_roots: BTreeMap<String, i32>,
    outside: Option<(i32, String)>,
    docker: Option<(i32, String)>,
}

impl Misplaced {
    /// By the cgroups of all processes; `proc` is `/proc`.
    pub(super) fn read(proc: &Path) -> Self {
        let mut found = Self::default();
        for (pid, folder) in numbered(proc) {
            // A process that ends meanwhile has none.
            let text = fs::read_to_string(folder.join("cgroup")).unwrap_or_default();
            if let Some(cgroup) = unified_cgroup(&text) {
                found.add(pid, cgroup.as_str());
            }
        }
        found
    }

    fn add(&mut self, pid: i32, cgroup: &str) {
        match ProcessPlace::of(cgroup) {
            ProcessPlace::OtherRoot(root) => {
                self.other_roots.entry(root).or_insert(pid);
            }
            ProcessPlace::OutsideOfPods(_) if self.outside.is_none() => self.outside = Some((pid, cgroup.to_owned())),
            ProcessPlace::Docker(name) if self.docker.is_none() => self.docker = Some((pid, name)),
            ProcessPlace::OutsideOfPods(_)
            | ProcessPlace::Docker(_)
            | ProcessPlace::Container(_)
            | ProcessPlace::Elsewhere => {}
        }
    }
}

/// Reports the first thing that keeps pods' cgroups from where they are looked for.
pub(super) fn check(facts: &Facts) -> Finding {
    let stopped = facts.files.stopped.as_ref().and_then(|(_, read)| read.as_ref().ok());
    let kubelet = facts.kubelet.as_ref().ok().or(stopped);
    let misplaced = &facts.misplaced;
    if let Some(kubelet) = kubelet.filter(|kubelet| !kubelet.cgroup_root.trim_matches('/').is_empty()) {
        return failed(
            format!(
                "kubelet's cgroupRoot is {}: pods' cgroups are looked for in /kubepods.slice and /kubepods only",
                kubelet.cgroup_root
            ),
            format!(
                "drain the node, remove cgroupRoot or --cgroup-root from kubelet's configuration, and restart it; {UNTIL_CHANGED}"
            ),
        );
    }
    if let Some(kubelet) = kubelet.filter(|kubelet| !kubelet.cgroups_per_qos) {
        return failed(
            format!(
                "kubelet makes no cgroups of pods (cgroupsPerQOS: {})",
                kubelet.cgroups_per_qos
            ),
            format!(
                "drain the node, remove cgroupsPerQOS or --cgroups-per-qos from kubelet's configuration, and restart it; {UNTIL_CHANGED}"
            ),
        );
    }
    if let Some((pid, cgroup)) = &misplaced.outside {
        return failed(
            format!("process {pid} is in {cgroup}, a container outside of its pod's cgroup"),
            format!(
                "give the runtime the cgroup driver that kubelet has (containerd: SystemdCgroup = true for runc, CRI-O: cgroup_manager), \
                 drain the node and restart both; {UNTIL_CHANGED}"
            ),
        );
    }
    if let Some((pid, name)) = &misplaced.docker {
        return failed(
            format!("process {pid} is in {name}, a container of cri-dockerd"),
            format!("run pods with containerd or CRI-O; {UNTIL_CHANGED}"),
        );
    }
    if let Some((root, pid)) = misplaced.other_roots.first_key_value() {
        return failed(
            format!("process {pid} is in a pod below {root}: a kubelet with a cgroupRoot, or one in a container"),
            format!("remove cgroupRoot from the configuration of the kubelet that made it; {UNTIL_CHANGED}"),
        );
    }
    ok("pods are below /kubepods.slice or /kubepods")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_of_each_wrong_place_is_kept() {
        let unit = "kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice";
        let mut found = Misplaced::default();
        for (pid, cgroup) in [
            (1, "/init.scope".to_owned()),
            (2, format!("/kubepods.slice/{unit}/cri-containerd-a.scope")),
            (3, format!("/system.slice/containerd.service/{unit}:cri-containerd:a")),
            (4, format!("/system.slice/containerd.service/{unit}:cri-containerd:b")),
            (5, format!("/kubepods.slice/{unit}/docker-a.scope")),
            (
                6,
                format!("/k8s.slice/k8s-kubepods.slice/k8s-{unit}/cri-containerd-a.scope"),
            ),
            (
                7,
                format!("/k8s.slice/k8s-kubepods.slice/k8s-{unit}/cri-containerd-b.scope"),
            ),
        ] {
            found.add(pid, &cgroup);
        }
        assert_eq!(found.outside.map(|(pid, _)| pid), Some(3));
        assert_eq!(found.docker, Some((5, "docker-a.scope".to_owned())));
        assert_eq!(
            found.other_roots,
            [("/k8s.slice/k8s-kubepods.slice".to_owned(), 6)].into()
        );
    }
}
