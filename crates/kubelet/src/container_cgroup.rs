//! The cgroups that kubelet and the container runtimes make for containers.

use crate::PodUid;

/// What CRI-O's names of containers' cgroups begin with, and behind it those of their monitors.
const CRIO: &str = "crio-";
const CONMON: &str = "conmon-";

/// A container's cgroup below kubepods, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerCgroup {
    /// The pod.
    pub pod: PodUid,
    /// The runtime's id of the container.
    pub container_id: String,
    /// Whether this is [`SUBGROUP`](Self::SUBGROUP) in the container's scope. Then the processes are here, and the unit
    /// that systemd knows, with the settings that only a unit has, is one level up.
    pub in_subgroup: bool,
}

impl ContainerCgroup {
    /// The cgroup in a container's scope into which crun puts the processes. If crun's annotation
    /// `run.oci.systemd.subgroup` is empty they are in the scope, as with runc; another name is not supported: such a
    /// cgroup is not recognised as a container's.
    pub const SUBGROUP: &str = "container";

    /// Parses a cgroup path such as `/kubepods.slice/kubepods-pod<uid>.slice/cri-containerd-<id>.scope` (systemd
    /// driver, containerd or CRI-O, any QoS class) or `/kubepods/burstable/pod<uid>/<id>` (cgroupfs driver; of CRI-O
    /// `crio-<id>`).
    ///
    /// The path must be exactly the container's own cgroup, or [`SUBGROUP`](Self::SUBGROUP) in its scope; nothing else
    /// below it is a container. CRI-O's `crio-conmon-<id>`, with `.scope` or without, is refused: it holds the
    /// container's monitor, a process of the host.
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        let in_subgroup = matches!(
            parts.as_slice(),
            ["kubepods.slice", .., scope, Self::SUBGROUP] if scope.ends_with(".scope")
        );
        if in_subgroup {
            parts.pop();
        }
        let (top, pod, container) = match parts.as_slice() {
            [top, pod, container] => (*top, *pod, *container),
            [top, qos, pod, container] if is_qos(top, qos) => (*top, *pod, *container),
            _ => return None,
        };
        let pod = PodUid::from_cgroup(top, pod)?;
        let container_id = match top {
            "kubepods.slice" => {
                let container = container.strip_suffix(".scope")?;
                ["cri-containerd-", CRIO]
                    .iter()
                    .find_map(|prefix| container.strip_prefix(prefix))?
            }
            // containerd's name is the id alone.
            _ => container.strip_prefix(CRIO).unwrap_or(container),
        };
        if container.starts_with(CRIO) && container_id.starts_with(CONMON) {
            return None;
        }
        let id_is_plain = (1..=128).contains(&container_id.len())
            && container_id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        id_is_plain.then(|| Self {
            pod,
            container_id: container_id.to_owned(),
            in_subgroup,
        })
    }

    /// Whether this is the cgroup of a container's monitor, which CRI-O may make beside the container's. A container cannot make one there.
    pub fn is_monitor(path: &str) -> bool {
        let monitored = path.rsplit_once('/').and_then(|(pod, name)| {
            let id = name.strip_prefix(CRIO)?.strip_prefix(CONMON)?;
            Self::parse(&format!("{pod}/{CRIO}{id}"))
        });
        monitored.is_some()
    }

    /// The cgroup of the whole container, from the path of the cgroup with its processes: for
    /// [`SUBGROUP`](Self::SUBGROUP) its scope, otherwise the same path. A path that is not a container's is returned
    /// unchanged.
    pub fn whole(path: &str) -> &str {
        let outer = path
            .strip_suffix(Self::SUBGROUP)
            .and_then(|rest| rest.strip_suffix('/'));
        match outer {
            Some(outer) if Self::parse(path).is_some_and(|container| container.in_subgroup) => outer,
            _ => path,
        }
    }
}

fn is_qos(top: &str, name: &str) -> bool {
    match top {
        "kubepods.slice" => matches!(name, "kubepods-burstable.slice" | "kubepods-besteffort.slice"),
        "kubepods" => matches!(name, "burstable" | "besteffort"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const UID: &str = "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5";

    #[rstest]
    #[case("/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-50ab.scope")]
    #[case(
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/crio-50ab.scope"
    )]
    #[case("/kubepods/podb9e4f71c-64a5-4f8d-8574-41363cbaf8e5/50ab")]
    #[case("/kubepods/podb9e4f71c-64a5-4f8d-8574-41363cbaf8e5/crio-50ab")]
    #[case("/kubepods/burstable/podb9e4f71c-64a5-4f8d-8574-41363cbaf8e5/crio-50ab")]
    #[case("/kubepods/besteffort/podb9e4f71c-64a5-4f8d-8574-41363cbaf8e5/50ab")]
    fn every_drivers_name_gives_pod_and_container(#[case] path: &str) {
        let cgroup = ContainerCgroup::parse(path).unwrap();
        assert_eq!((cgroup.pod.as_str(), cgroup.container_id.as_str()), (UID, "50ab"));
        assert!(!cgroup.in_subgroup);
        assert_eq!(ContainerCgroup::whole(path), path);
    }

    #[rstest]
    #[case("/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-50ab.scope")]
    #[case(
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/crio-50ab.scope"
    )]
    fn cruns_subgroup_is_the_container_too(#[case] scope: &str) {
        let path = format!("{scope}/container");
        let cgroup = ContainerCgroup::parse(&path).unwrap();
        assert_eq!((cgroup.pod.as_str(), cgroup.container_id.as_str()), (UID, "50ab"));
        assert!(cgroup.in_subgroup);
        assert_eq!(ContainerCgroup::whole(&path), scope);
        assert_eq!(ContainerCgroup::parse(&format!("{path}/container")), None);
    }

    #[test]
    fn the_cgroupfs_driver_has_no_subgroup() {
        // With the cgroupfs driver `container` is an id like any other.
        let path = format!("/kubepods/pod{UID}/container");
        assert!(!ContainerCgroup::parse(&path).unwrap().in_subgroup);
        assert_eq!(ContainerCgroup::whole(&path), path);
        assert_eq!(
            ContainerCgroup::parse(&format!("/kubepods/pod{UID}/50ab/container")),
            None
        );
    }

    #[rstest]
    #[case("/")]
    #[case(
        "/system.slice/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-a.scope"
    )]
    #[case("/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice")]
    #[case("/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-a.scope/below")]
    #[case("/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-a.scope/crun-exec")]
    #[case("/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/container")]
    #[case("/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/other-a.scope/container")]
    #[case("/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/crio-conmon-a.scope")]
    #[case("/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/crio-conmon-a.scope/container")]
    #[case("/kubepods/podb9e4f71c-64a5-4f8d-8574-41363cbaf8e5/crio-conmon-a")]
    #[case("/kubepods/besteffort/podb9e4f71c-64a5-4f8d-8574-41363cbaf8e5/crio-conmon-a")]
    #[case("/kubepods.slice/kubepods-pod..slice/cri-containerd-a.scope")]
    #[case("/kubepods/podb9e4f71c-64a5-4f8d-8574-41363cbaf8e5/..")]
    fn anything_else_is_no_container(#[case] path: &str) {
        assert_eq!(ContainerCgroup::parse(path), None);
    }
}
