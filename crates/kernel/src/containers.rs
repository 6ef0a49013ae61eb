//! The containers of pods: their cgroups, those that run, and what each says of itself in its cgroup and in what the runtime
//! wrote down.

use std::collections::BTreeSet;
use std::path::Path;

use stelia_cpus::CpuSet;
use stelia_kubelet::cpu_manager_state::{Use, Uses};
use stelia_kubelet::{ContainerCgroup, CpuManagerState, CpuRequest, PodUid};

use crate::cgroup::{CgroupError, CgroupPath, Cgroups, CpuQuota, File, optional, populated, read_cpus};
use crate::vmm_processes::ProcessesError;
use crate::{oci, runtime_config};

/// Limit of the cgroups that are read in one cgroup of a container.
pub const MAX_CGROUPS: usize = 256;

/// Another container of the pod, one that has processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveContainer {
    /// The runtime's id.
    pub id: String,
    /// Its name by the runtime's annotations, where one was found.
    pub name: Option<String>,
    /// Its `cpuset.cpus`; empty where it is not restricted.
    pub cpus: CpuSet,
    pub request: CpuRequest,
}

/// The containers of a pod that have processes, except for the one with the id `own`. `run` is `/run`.
pub fn live_containers(
    cgroups: &dyn Cgroups,
    run: &Path,
    pod: &PodUid,
    own: Option<&str>,
) -> Result<Vec<LiveContainer>, CgroupError> {
    live_containers_among(cgroups, run, pod_containers(cgroups, pod)?, own)
}

/// The containers of `found` that have processes, except for the one with the id `own`.
pub fn live_containers_among(
    cgroups: &dyn Cgroups,
    run: &Path,
    found: Vec<(CgroupPath, ContainerCgroup)>,
    own: Option<&str>,
) -> Result<Vec<LiveContainer>, CgroupError> {
    let mut live = Vec::new();
    for (path, container) in found {
        if own == Some(container.container_id.as_str()) || !populated(cgroups, &path)? {
            continue;
        }
        // An empty list is not restricted (the pod's sandbox).
        let cpus = read_cpus(cgroups, &path, File::Cpus)?;
        let written = runtime_config::container(run, &container);
        live.push(LiveContainer {
            name: written.name,
            cpus,
            request: container_request(cgroups, &path, written.shares)?,
            id: container.container_id,
        });
    }
    Ok(live)
}

/// What a container requests, by its cgroup and the `cpu.shares` in the runtime's configuration.
pub fn container_request(
    cgroups: &dyn Cgroups,
    container: &CgroupPath,
    shares: Option<u64>,
) -> Result<CpuRequest, CgroupError> {
    // With crun the processes are one level below, in a cgroup whose weight was not set from the request.
    let weight = optional(cgroups.read(&container_scope(container), File::CpuWeight))?;
    Ok(CpuRequest {
        shares,
        weight: weight.and_then(|text| text.parse().ok()),
    })
}

/// The cgroup of the whole container, given the one its processes are in: the same, or with crun the scope around it.
pub fn container_scope(origin: &CgroupPath) -> CgroupPath {
    CgroupPath::parse(ContainerCgroup::whole(origin.as_str())).unwrap_or_else(|| origin.clone())
}

/// The cgroup that the container's processes are in and, where that is a subgroup of the scope, the scope: limits of
/// both apply.
pub fn container_levels(origin: &CgroupPath) -> Vec<CgroupPath> {
    let whole = container_scope(origin);
    let mut levels = vec![origin.clone()];
    levels.extend((whole != *origin).then_some(whole));
    levels
}

/// The cgroup that the processes of a container are in, given its whole cgroup or that one: with crun a subgroup of the scope. It only
/// tells where they are, because with crun the container may own it: what the container is given is read from the scope. If the scope
/// itself has processes, or the runtime is not crun (`node` is `/`), the container may have made a subgroup of that name, and the scope
/// is the answer. `None` where the path is no container's.
pub fn process_cgroup(
    cgroups: &dyn Cgroups,
    node: &Path,
    path: &CgroupPath,
) -> Result<Option<(CgroupPath, ContainerCgroup)>, CgroupError> {
    let whole = container_scope(path);
    let Some(container) = ContainerCgroup::parse(whole.as_str()) else {
        return Ok(None);
    };
    let subgroup = whole.child(ContainerCgroup::SUBGROUP);
    let Some(inside) = ContainerCgroup::parse(subgroup.as_str()) else {
        return Ok(Some((whole, container)));
    };
    // A scope whose own processes cannot be listed (it was made threaded) has none that could be moved.
    let has_own = || cgroups.read(&whole, File::Procs).is_ok_and(|text| !text.is_empty());
    let is_cruns = || oci::kind_of(node, &inside.container_id) == Some(oci::Kind::Crun);
    if populated(cgroups, &subgroup)? && !has_own() && is_cruns() {
        return Ok(Some((subgroup, inside)));
    }
    Ok(Some((whole, container)))
}

/// Why a container may make and write cgroups below its own, by its configuration and the owners of its cgroups; `None` where it may not. Its
/// root, where that is the host's, may all the same if nothing (seccomp, a security module) keeps it from mounting cgroups in a user
/// namespace that it makes.
pub fn writes_cgroups(
    cgroups: &dyn Cgroups,
    origin: &CgroupPath,
    written: &runtime_config::Container,
) -> Result<Option<String>, CgroupError> {
    for level in container_levels(origin) {
        let owner = cgroups.owner(&level)?;
        if owner != 0 {
            return Ok(Some(format!("user {owner} owns {level}")));
        }
    }
    Ok(written.writes_cgroups.map(str::to_owned))
}

/// The containers of a pod, in whichever of its places kubelet put it, each by its whole cgroup.
pub fn pod_containers(cgroups: &dyn Cgroups, pod: &PodUid) -> Result<Vec<(CgroupPath, ContainerCgroup)>, CgroupError> {
    let unit = pod.as_str().replace('-', "_");
    let places = [
        format!("/kubepods.slice/kubepods-pod{unit}.slice"),
        format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{unit}.slice"),
        format!("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{unit}.slice"),
        format!("/kubepods/pod{pod}"),
        format!("/kubepods/burstable/pod{pod}"),
        format!("/kubepods/besteffort/pod{pod}"),
    ];
    let mut found = Vec::new();
    for place in places.iter().filter_map(|place| CgroupPath::parse(place)) {
        if cgroups.exists(&place) {
            found.extend(containers_in(cgroups, &place)?);
        }
    }
    Ok(found)
}

/// The containers of every pod, each by its whole cgroup.
pub fn all_containers(cgroups: &dyn Cgroups) -> Result<Vec<(CgroupPath, ContainerCgroup)>, CgroupError> {
    let mut found = Vec::new();
    let roots = ["/kubepods.slice", "/kubepods"];
    let mut levels: Vec<CgroupPath> = roots.into_iter().filter_map(CgroupPath::parse).collect();
    // kubepods / (QoS class) / pod / container
    for _ in 0..3 {
        let mut next = Vec::new();
        for parent in levels {
            if !cgroups.exists(&parent) {
                continue;
            }
            for name in cgroups.children(&parent)? {
                let child = parent.child(&name);
                match ContainerCgroup::parse(child.as_str()) {
                    Some(container) => found.push((child, container)),
                    None => next.push(child),
                }
            }
        }
        levels = next;
    }
    Ok(found)
}

/// The cgroups of pods, in whichever class.
pub fn pod_cgroups(cgroups: &dyn Cgroups) -> Result<Vec<CgroupPath>, CgroupError> {
    let mut pods = Vec::new();
    let roots = ["/kubepods.slice", "/kubepods"]
        .into_iter()
        .filter_map(CgroupPath::parse);
    for root in roots.filter(|root| cgroups.exists(root)) {
        for name in cgroups.children(&root)? {
            let child = root.child(&name);
            // What is no pod's is a QoS class.
            match PodUid::from_cgroup(root.name(), &name) {
                Some(_) => pods.push(child),
                None => {
                    let names = match cgroups.children(&child) {
                        Err(error) if !error.is_gone() => return Err(error),
                        names => names.unwrap_or_default(),
                    };
                    let within = names
                        .iter()
                        .filter(|name| PodUid::from_cgroup(root.name(), name).is_some());
                    pods.extend(within.map(|name| child.child(name)));
                }
            }
        }
    }
    Ok(pods)
}

/// The containers of the pod of the container in `origin`.
pub fn sibling_containers(
    cgroups: &dyn Cgroups,
    origin: &CgroupPath,
) -> Result<Vec<(CgroupPath, ContainerCgroup)>, CgroupError> {
    let Some(pod) = container_scope(origin).parent() else {
        return Ok(Vec::new());
    };
    containers_in(cgroups, &pod)
}

/// The containers in a pod's cgroup, each by its whole cgroup.
pub fn containers_in(
    cgroups: &dyn Cgroups,
    pod: &CgroupPath,
) -> Result<Vec<(CgroupPath, ContainerCgroup)>, CgroupError> {
    let children = cgroups.children(pod)?.into_iter().map(|name| pod.child(&name));
    let found = children.filter_map(|child| ContainerCgroup::parse(child.as_str()).map(|container| (child, container)));
    Ok(found.collect())
}

/// The container's cgroups with processes besides the one that its processes are in: below that, and where it is a subgroup of the
/// container's scope, the scope itself and what is beside it. `read` counts the cgroups that were found, also where this fails.
///
/// # Errors
/// A cgroup that is there cannot be read, or there are more than [`MAX_CGROUPS`] in one.
pub fn populated_elsewhere(
    cgroups: &dyn Cgroups,
    origin: &CgroupPath,
    read: &mut usize,
) -> Result<Vec<CgroupPath>, ProcessesError> {
    let mut found = Vec::new();
    for level in container_levels(origin) {
        if level != *origin && cgroups.read(&level, File::Procs).is_ok_and(|text| !text.is_empty()) {
            found.push(level.clone());
        }
        let names = cgroups.some_children(&level, MAX_CGROUPS + 1)?;
        *read += names.len();
        if names.len() > MAX_CGROUPS {
            return Err(ProcessesError::TooMany {
                cgroup: level,
                most: MAX_CGROUPS,
                what: "cgroups",
            });
        }
        for name in names {
            let child = level.child(&name);
            if child != *origin && populated(cgroups, &child)? {
                found.push(child);
            }
        }
    }
    Ok(found)
}

/// The kind of partition that a container's cgroup is already; `None` if it is none.
pub fn partition_kind(cgroups: &dyn Cgroups, origin: &CgroupPath) -> Result<Option<String>, CgroupError> {
    for level in container_levels(origin) {
        let kind = optional(cgroups.read(&level, File::Partition))?.unwrap_or_default();
        if !matches!(kind.as_str(), "" | "member") {
            return Ok(Some(kind));
        }
    }
    Ok(None)
}

/// The least `cpu.max` of a container and its pod, thousandths of a CPU; `None` without a limit.
pub fn limit_milli(cgroups: &dyn Cgroups, origin: &CgroupPath) -> Result<Option<u64>, CgroupError> {
    let pod = container_scope(origin).parent();
    least_limit_milli(cgroups, container_levels(origin).into_iter().chain(pod))
}

/// The least `cpu.max` of these cgroups, thousandths of a CPU; `None` without a limit.
pub fn least_limit_milli(
    cgroups: &dyn Cgroups,
    levels: impl IntoIterator<Item = CgroupPath>,
) -> Result<Option<u64>, CgroupError> {
    let mut least: Option<u64> = None;
    for level in levels {
        let text = optional(cgroups.read(&level, File::CpuMax))?;
        let limit = text.and_then(|text| CpuQuota::parse(&text)?.milli());
        least = least.into_iter().chain(limit).min();
    }
    Ok(least)
}

/// Which of a pod's entries in kubelet's state are exclusive and which are the pod's shared pool, by what its running
/// containers request.
///
/// A container with exclusive CPUs requests exactly as many, and has them for as long as it runs. That one requests as
/// many as the pod has says nothing: a container without a request has the whole pod's shares.
pub fn entry_uses(state: &CpuManagerState, pod: &PodUid, running: &[LiveContainer]) -> Uses {
    let (Some(own), Some(entries)) = (state.pod_entries.get(pod), state.entries.get(pod)) else {
        return Uses::new();
    };
    let together = |entry: &CpuSet| {
        let here = |name: &&String| entries.get(*name) == Some(entry);
        let names = running.iter().filter_map(|container| container.name.as_ref());
        names.filter(here).collect::<BTreeSet<_>>().len() > 1
    };
    // A container without a name may be any of those with the same CPUs.
    let several = |entry: &CpuSet| entries.values().filter(|other| *other == entry).count() > 1;
    let told = |name: &String, entry: &CpuSet| {
        let named = |other: &&LiveContainer| other.name.as_ref() == Some(name);
        let nameless = |other: &&LiveContainer| other.name.is_none() && other.cpus == *entry;
        let by_name = running.iter().any(|other| named(&other));
        let is_it = |other: &&LiveContainer| if by_name { named(other) } else { nameless(other) };
        let told = running.iter().filter(is_it);
        let told = told.filter_map(|container| container.request.is_of(entry.len()));
        // If several containers may be this one, one with such a request is enough: no float may run on CPUs that could
        // be exclusive.
        let may_be_exclusive = told.max()?;
        if together(entry) {
            Some(Use::Shared)
        } else if may_be_exclusive {
            (entry != own).then_some(Use::Exclusive)
        } else if !by_name && several(entry) {
            // It may be another's request: an init container runs on the pool where a later one will be alone.
            None
        } else {
            Some(Use::Shared)
        }
    };
    let known = entries.iter().map(|(name, entry)| (name.clone(), told(name, entry)));
    known.filter_map(|(name, what)| Some((name, what?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::KernelCgroups;
    use crate::test_root::Root;

    #[test]
    fn of_a_container_with_too_many_cgroups_none_is_read() {
        let root = Root::new();
        let origin = CgroupPath::parse("/a").unwrap();
        for number in 0..3 * MAX_CGROUPS {
            std::fs::create_dir_all(root.join(format!("a/{number}"))).unwrap();
        }
        let cgroups = KernelCgroups::new(&*root);
        let mut read = 0;
        let refused = populated_elsewhere(&cgroups, &origin, &mut read).unwrap_err();
        assert_eq!(
            (refused.to_string().as_str(), read),
            ("/a has more than 256 cgroups", MAX_CGROUPS + 1)
        );
        assert_eq!(cgroups.children(&origin).unwrap().len(), 3 * MAX_CGROUPS);
    }

    #[test]
    fn the_other_containers_that_run_are_found_with_their_names() {
        let root = Root::new();
        let pod = "cgroup/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice";
        for (id, populated, cpus) in [("a1", 1, "2-3"), ("b2", 1, "2"), ("c3", 0, "3"), ("d4", 1, "")] {
            let scope = format!("{pod}/cri-containerd-{id}.scope");
            let events = format!("populated {populated}\nfrozen 0\n");
            root.file(&format!("{scope}/cgroup.events"), events)
                .file(&format!("{scope}/cpuset.cpus"), cpus)
                .file(&format!("{scope}/cpu.weight"), "118\n");
        }
        // Made by crun: the processes are one level below the scope that has the weight.
        let inside = format!("{pod}/cri-containerd-b2.scope/container");
        root.file(&format!("{inside}/cgroup.events"), "populated 1\nfrozen 0\n")
            .file(&format!("{inside}/cpuset.cpus"), "2\n")
            .file(&format!("{inside}/cpu.weight"), "100\n");
        root.file(
            "run/containerd/io.containerd.runtime.v2.task/k8s.io/b2/config.json",
            r#"{"annotations":{"io.kubernetes.cri.container-name":"sidecar"},"linux":{"resources":{"cpu":{"shares":3072}}}}"#,
        );
        let cgroups = KernelCgroups::new(root.join("cgroup"));
        let uid = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
        let live = live_containers(&cgroups, &root.join("run"), &uid, Some("a1")).unwrap();
        let container = |id: &str, name: Option<&str>, cpus: &str, shares| LiveContainer {
            id: id.into(),
            request: CpuRequest {
                shares,
                weight: Some(118),
            },
            name: name.map(str::to_owned),
            cpus: cpus.parse().unwrap(),
        };
        // c3 has ended; d4 is the sandbox.
        assert_eq!(
            live,
            [
                container("b2", Some("sidecar"), "2", Some(3072)),
                container("d4", None, "", None)
            ]
        );
    }

    #[test]
    fn only_cruns_subgroup_has_the_processes_of_a_container() {
        let root = Root::new();
        let pod = "kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice";
        root.program("usr/bin/crun", "");
        for (id, state, own) in [
            ("a1", "status", ""),
            ("b2", "state.json", ""),
            ("c3", "status", "77\n"),
            ("d4", "", ""),
        ] {
            let scope = format!("cgroup/{pod}/cri-containerd-{id}.scope");
            root.file(&format!("{scope}/cgroup.procs"), own);
            root.file(&format!("{scope}/container/cgroup.events"), "populated 1\nfrozen 0\n");
            let bundle = format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}");
            root.file(&format!("{bundle}/config.json"), "{}");
            root.file(&format!("{bundle}/options.json"), r#"{"binary_name":"crun"}"#);
            if !state.is_empty() {
                root.file(&format!("run/containerd/runc/k8s.io/{id}/{state}"), "{}");
            }
        }
        let cgroups = KernelCgroups::new(root.join("cgroup"));
        let of = |id: &str| {
            let scope = CgroupPath::parse(&format!("/{pod}/cri-containerd-{id}.scope")).unwrap();
            let subgroup = scope.child(ContainerCgroup::SUBGROUP);
            // Whichever of the two is named.
            let [by_scope, by_subgroup] =
                [&scope, &subgroup].map(|path| process_cgroup(&cgroups, &root, path).unwrap());
            assert_eq!(by_scope, by_subgroup, "{id}");
            let (path, container) = by_scope.unwrap();
            assert_eq!(container.in_subgroup, path == subgroup, "{id}");
            path == subgroup
        };
        assert!(of("a1"), "crun's");
        assert!(!of("b2"), "runc's, which makes none");
        assert!(!of("c3"), "the scope has processes of its own");
        assert!(!of("d4"), "of a runtime that is not known");
    }
}
