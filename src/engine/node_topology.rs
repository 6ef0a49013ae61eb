//! The node's object for schedulers, made from the view and from what the view lacks: all pods, and what kubelet's other managers assigned.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use stelia_api::{Error, ErrorKind as Kind};
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups};
use stelia_kernel::{System, containers};
use stelia_koordinator::allocator::CpuSource;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::memory_and_devices::{self, DevicePlaces, LivePods};
use stelia_koordinator::report::name::{self, NameError};
use stelia_koordinator::report::profile::{self, Profile};
use stelia_koordinator::report::{ApiVersion, Facts, NodeResourceTopology, ReportedPod, numa};
use stelia_kubelet::config::{KubeletConfig, parse_bool};
use stelia_kubelet::devices::device_manager_state;
use stelia_kubelet::memory::MEMORY_MANAGER_STATE;
use stelia_kubelet::{CheckpointError, DeviceManagerState, MemoryManagerState, PodName, PodUid, QosClass};
use stelia_model as model;

use super::node_facts;

/// The form of the object, by its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectForm {
    pub(crate) profile: Profile,
    pub(crate) version: ApiVersion,
    /// Over which pods its fingerprint is computed.
    pub(crate) method: Method,
}

/// The name that kubelet gives the Node, as far as it can be known without the API server.
///
/// # Errors
/// No Node can have that name.
pub(crate) fn node_name(config: Option<&KubeletConfig>) -> Result<String, NameError> {
    let overridden = config.and_then(|config| config.hostname_override.as_deref());
    let host = rustix::system::uname();
    name::check(name::of_host(overridden, &host.nodename().to_string_lossy()))
}

/// kubelet's configuration: `None` where no kubelet is known to run, and why it cannot be read where one does.
pub(crate) type Configuration<'a> = Result<Option<&'a KubeletConfig>, &'a str>;

/// The object of the Node `name`, from the view and from what is read now. Where no kubelet runs the object has less, which is not an error.
/// Where kubelet chooses the CPUs and its configuration cannot be read, there is no object: its reserved CPUs and its alignment of pods are
/// unknown. Blocks.
///
/// # Errors
/// The CPUs cannot be told apart, or kubelet's configuration or the NUMA nodes cannot be read.
pub(crate) fn node_topology(
    system: &System,
    view: &model::Node,
    config: Configuration<'_>,
    name: String,
    form: ObjectForm,
) -> Result<NodeResourceTopology, Error> {
    let (config, unread) = usable(config, view.cpu_source).map_err(|problem| Kind::Failed.because(problem))?;
    let numa = numa::read(&system.sys).map_err(Error::failed)?;
    let facts = node_facts(view, config, numa, name);
    let mut facts = facts.map_err(|problem| Kind::KubeletStateUnusable.because(problem))?;
    let kubelet = config.map_or_else(|| KubeletConfig::default().root_dir, |config| config.root_dir.clone());
    let places = Places {
        cgroups: &*system.cgroups,
        root: system.root(),
        kubelet: &kubelet,
    };
    complete(&mut facts, view, places);
    facts.problems.extend(unread);
    Ok(profile::object(&facts, form.profile, form.version, form.method))
}

/// The configuration, and what is wrong with it where steliad chooses the CPUs.
///
/// # Errors
/// It cannot be read, and kubelet chooses the CPUs by it.
fn usable<'a>(
    config: Configuration<'a>,
    source: CpuSource,
) -> Result<(Option<&'a KubeletConfig>, Option<String>), String> {
    match config {
        Ok(config) => Ok((config, None)),
        Err(problem) => {
            let problem = format!("kubelet's configuration cannot be used: {problem}");
            if source.needs_static_policy() {
                Err(problem)
            } else {
                Ok((None, Some(problem)))
            }
        }
    }
}

/// The places from which the object is completed.
#[derive(Clone, Copy)]
struct Places<'a> {
    cgroups: &'a dyn Cgroups,
    /// `/`: what `/sys` and `/var` are in.
    root: &'a Path,
    /// kubelet's root directory.
    kubelet: &'a Path,
}

/// Add what the view lacks. What cannot be read is left out, and named in the facts' problems.
fn complete(facts: &mut Facts, view: &model::Node, places: Places<'_>) {
    let Places { cgroups, root, kubelet } = places;
    let pods = pods(cgroups).map_err(|cause| format!("the pods' cgroups: {cause}"));
    let pods = note(&mut facts.problems, pods);
    let living: Option<BTreeSet<PodUid>> = pods.as_ref().map(|pods| pods.keys().cloned().collect());
    memory(facts, living.as_ref(), kubelet);
    caches(facts, &root.join("sys"));
    let with_devices = devices(facts, living.as_ref(), root, kubelet);
    let by_logs = by_logs(root);
    let named = |pod: &PodUid| {
        let instance = view.instances.get(pod).and_then(|instance| instance.pod_name.clone());
        instance.or_else(|| by_logs.get(pod).cloned())
    };
    for allocation in &mut facts.allocations {
        allocation.name = named(&allocation.pod);
    }
    facts.pods = pods.map(|pods| {
        let pods = pods.into_iter().map(|(pod, class)| {
            let exclusive = class == QosClass::Guaranteed || with_devices.contains(&pod);
            let name = named(&pod);
            (pod, ReportedPod { name, exclusive })
        });
        pods.collect()
    });
}

fn note<T>(problems: &mut Vec<String>, read: Result<T, String>) -> Option<T> {
    read.map_err(|problem| problems.push(problem)).ok()
}

/// The pods that have a cgroup, with their classes.
fn pods(cgroups: &dyn Cgroups) -> Result<BTreeMap<PodUid, QosClass>, CgroupError> {
    let paths = containers::pod_cgroups(cgroups)?;
    let pod = |path: &CgroupPath| {
        let top = path.as_str().split('/').nth(1)?;
        let pod = PodUid::from_cgroup(top, path.name())?;
        Some((pod, QosClass::of(path.as_str())))
    };
    Ok(paths.iter().filter_map(pod).collect())
}

/// One of kubelet's files; `None` without one.
fn state<T>(path: &Path, parse: fn(&[u8]) -> Result<T, CheckpointError>) -> Result<Option<T>, String> {
    let named = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
    match fs::read(path) {
        Ok(bytes) => parse(&bytes).map(Some).map_err(|cause| named(&cause)),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(named(&cause)),
    }
}

/// Add the Memory Manager's assignments. While they are unknown no memory is reported, because a scheduler would count on memory that
/// other pods have.
fn memory(facts: &mut Facts, living: LivePods<'_>, kubelet: &Path) {
    let path = kubelet.join(MEMORY_MANAGER_STATE);
    match note(&mut facts.problems, state(&path, MemoryManagerState::parse)) {
        Some(Some(state)) => {
            memory_and_devices::memory(&mut facts.numa, &state, living);
            facts.kubelet.managers.memory_groups = memory_and_devices::groups(&state, living);
        }
        Some(None) => {}
        None => {
            // Whoever places pods must not take it for a Memory Manager that assigns none.
            facts.kubelet.managers.memory_groups = Some(BTreeMap::new());
            for node in facts.numa.values_mut() {
                node.memory = None;
                node.huge_pages.clear();
            }
        }
    }
}

/// Add the L3 caches, where kubelet aligns CPUs with them.
fn caches(facts: &mut Facts, sys: &Path) {
    let option = facts.kubelet.cpu_options.get("prefer-align-cpus-by-uncorecache");
    if option.is_some_and(|text| parse_bool(text) == Some(true)) {
        facts.kubelet.managers.caches = facts.topology.caches(sys);
    }
}

/// Add the devices. Returns the pods that have one of a reported resource.
fn devices(facts: &mut Facts, living: LivePods<'_>, root: &Path, kubelet: &Path) -> BTreeSet<PodUid> {
    let path = device_manager_state(root, kubelet);
    let Some(Some(state)) = note(&mut facts.problems, DeviceManagerState::read(&path)) else {
        return BTreeSet::new();
    };
    facts.devices = memory_and_devices::devices(&state, living, |resource| {
        let places = DevicePlaces::new(root, &state, resource);
        move |id: &str| places.by_id(id)
    });
    let reported = |resource: &str| facts.devices.values().any(|devices| devices.contains_key(resource));
    let entries = state.entries.into_iter().filter(|entry| reported(&entry.resource));
    entries.map(|entry| entry.pod).collect()
}

/// Pods' names by kubelet's log directories, `NAMESPACE_NAME_UID` (`BuildPodLogsDirectory` in kubelet's
/// `kuberuntime/helpers.go`). A directory may outlive its pod, and any that is in doubt names nobody.
fn by_logs(root: &Path) -> BTreeMap<PodUid, PodName> {
    let entries = fs::read_dir(root.join("var/log/pods")).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut named: BTreeMap<PodUid, Option<PodName>> = BTreeMap::new();
    for name in names {
        let parts: Vec<&str> = name.split('_').collect();
        let [namespace, name, uid] = parts.as_slice() else {
            continue;
        };
        if let (Ok(uid), Some(name)) = (PodUid::parse(uid), PodName::new(namespace, name)) {
            // Two directories of one pod contradict each other.
            named.entry(uid).and_modify(|name| *name = None).or_insert(Some(name));
        }
    }
    named.into_iter().filter_map(|(uid, name)| Some((uid, name?))).collect()
}

#[cfg(test)]
mod tests;
