//! What the path of a process's cgroup says of a pod that it may be in, where that is no container's cgroup as
//! [`ContainerCgroup`] has it.

use crate::{ContainerCgroup, PodUid};

/// Where a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessPlace {
    /// In a container's cgroup, or below it: the container's.
    Container(String),
    /// In a pod's cgroup, where kubelet has a `cgroupRoot`: the cgroup of all pods.
    OtherRoot(String),
    /// In a container of a pod, outside of the pod's cgroup: runtime and kubelet have different cgroup drivers, or kubelet makes no
    /// cgroups of pods (`cgroupsPerQOS: false`). The container's name in the cgroup tree.
    OutsideOfPods(String),
    /// In a pod's cgroup, in a container of cri-dockerd: its name there.
    Docker(String),
    /// In no pod that is known.
    Elsewhere,
}

impl ProcessPlace {
    /// By the path of the process's cgroup below the hierarchy's root.
    pub fn of(path: &str) -> Self {
        let mut above = Some(path);
        while let Some(cgroup) = above {
            if ContainerCgroup::parse(cgroup).is_some() {
                return Self::Container(cgroup.to_owned());
            }
            above = cgroup.rsplit_once('/').map(|(above, _)| above);
        }
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let all = names.iter().position(|name| is_of_all_pods(name));
        match (all, names.last()) {
            (Some(0), Some(last)) if is_dockers(last) => Self::Docker((*last).to_owned()),
            (Some(place), _) if place > 0 && names.len() > place + 1 => {
                let root = names.get(..=place).unwrap_or_default();
                Self::OtherRoot(format!("/{}", root.join("/")))
            }
            (None, Some(last)) if is_misplaced(last, path) => Self::OutsideOfPods((*last).to_owned()),
            _ => Self::Elsewhere,
        }
    }
}

/// `kubepods` (cgroupfs), or a slice of systemd's, whose name has those of the slices around it.
fn is_of_all_pods(name: &str) -> bool {
    name == "kubepods" || name == "kubepods.slice" || name.ends_with("-kubepods.slice")
}

fn is_dockers(name: &str) -> bool {
    name.strip_prefix("docker-")
        .is_some_and(|rest| rest.ends_with(".scope"))
}

/// A container's name that is not in a pod's cgroup: `kubepods-….slice:cri-containerd:ID`, which systemd would have made a scope in
/// that slice of; or a scope or a group of CRI's without any pod's.
fn is_misplaced(name: &str, path: &str) -> bool {
    let mut parts = name.split(':');
    let slice = parts.next().unwrap_or_default();
    let of_slice = slice.starts_with("kubepods") && slice.ends_with(".slice") && parts.count() == 2;
    let id = |prefix: &str, suffix: &str| {
        let id = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
        id.is_some_and(|id| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let of_cri = id("cri-containerd-", ".scope") || id("crio-", ".scope");
    of_slice || of_cri || (path.starts_with("/k8s.io/") && id("", ""))
}

/// The pod's UID in a path, whatever is around it.
pub fn pod_in(path: &str) -> Option<PodUid> {
    path.split(['/', ':']).find_map(|name| {
        let name = name.strip_suffix(".slice").unwrap_or(name);
        let (_, uid) = name
            .rsplit_once("pod")
            .filter(|(before, _)| !before.ends_with("kube"))?;
        PodUid::parse(&uid.replace('_', "-")).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";
    const UNIT: &str = "podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5";

    #[test]
    fn a_place_is_known_by_its_path() {
        let id = "5".repeat(64);
        let known = format!("/kubepods.slice/kubepods-{UNIT}.slice/cri-containerd-{id}.scope");
        for inside in ["", "/vcpu", "/container", "/container/kubepods/poda/b"] {
            let ProcessPlace::Container(found) = ProcessPlace::of(&format!("{known}{inside}")) else {
                panic!("{inside}")
            };
            assert!(found.starts_with(&known) && known.len() + "/container".len() >= found.len());
        }
        for (path, place) in [
            (
                format!(
                    "/k8s-infra.slice/k8s-infra-kubepods.slice/k8s-infra-kubepods-{UNIT}.slice/cri-containerd-{id}.scope"
                ),
                ProcessPlace::OtherRoot("/k8s-infra.slice/k8s-infra-kubepods.slice".into()),
            ),
            (
                format!("/kubelet/kubepods/burstable/pod{UID}/{id}"),
                ProcessPlace::OtherRoot("/kubelet/kubepods".into()),
            ),
            (
                format!("/system.slice/containerd.service/kubepods-{UNIT}.slice:cri-containerd:{id}"),
                ProcessPlace::OutsideOfPods(format!("kubepods-{UNIT}.slice:cri-containerd:{id}")),
            ),
            (
                format!("/system.slice/cri-containerd-{id}.scope"),
                ProcessPlace::OutsideOfPods(format!("cri-containerd-{id}.scope")),
            ),
            (format!("/k8s.io/{id}"), ProcessPlace::OutsideOfPods(id.clone())),
            (
                format!("/kubepods.slice/kubepods-{UNIT}.slice/docker-{id}.scope"),
                ProcessPlace::Docker(format!("docker-{id}.scope")),
            ),
            (
                format!("/kubepods.slice/kubepods-{UNIT}.slice/crio-conmon-{id}.scope"),
                ProcessPlace::Elsewhere,
            ),
            (format!("/system.slice/docker-{id}.scope"), ProcessPlace::Elsewhere),
            (
                "/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt/emulator".into(),
                ProcessPlace::Elsewhere,
            ),
            ("/kubepods.slice".into(), ProcessPlace::Elsewhere),
            ("/".into(), ProcessPlace::Elsewhere),
        ] {
            assert_eq!(ProcessPlace::of(&path), place, "{path}");
        }
    }

    #[test]
    fn the_pods_uid_is_found_in_every_form() {
        for path in [
            format!("/k8s-infra.slice/k8s-infra-kubepods.slice/k8s-infra-kubepods-{UNIT}.slice/x"),
            format!("/system.slice/containerd.service/kubepods-burstable-{UNIT}.slice:cri-containerd:a"),
            format!("/kubelet/kubepods/pod{UID}/a"),
        ] {
            assert_eq!(pod_in(&path).map(|uid| uid.to_string()).as_deref(), Some(UID), "{path}");
        }
        assert_eq!(pod_in("/kubepods.slice/x"), None);
    }
}
