//! The pod of a VM, by which operators know it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value, json};
use stelia_api::reason::naming;
use stelia_kubelet::{PodName, PodUid};
use stelia_model::Instance;

use super::names::{VmPattern, is_glob};
use super::node::Description;
use crate::shared::output::{counted, some_of};

/// The beginning of the names of KubeVirt's pods (`generateName` in virt-controller's `services/template.go`), and the length of what the
/// API server appends.
const KUBEVIRT_PREFIX: &str = "virt-launcher-";
const KUBEVIRT_SUFFIX_LENGTH: usize = 5;

/// How a pod is identified in every JSON object. Namespace and name are empty where they are not known.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Pod {
    pub pod_uid: String,
    pub pod_namespace: String,
    pub pod_name: String,
}

impl Pod {
    pub(crate) fn unnamed(uid: &str) -> Self {
        Self {
            pod_uid: uid.to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn new(uid: impl ToString, name: Option<&PodName>) -> Self {
        Self {
            pod_uid: uid.to_string(),
            pod_namespace: name.map_or("", PodName::namespace).to_owned(),
            pod_name: name.map_or("", PodName::name).to_owned(),
        }
    }

    pub(crate) fn of(uid: &PodUid, instance: &Instance) -> Self {
        Self::new(uid, instance.pod_name.as_ref())
    }

    /// All names of the VM but its UID, each alone and behind the namespace. A pod that is named as KubeVirt names them
    /// (`virt-launcher-NAME-` with five characters more) has that of its VM too.
    fn names(&self) -> Vec<String> {
        let kubevirt = self
            .pod_name
            .strip_prefix(KUBEVIRT_PREFIX)
            .and_then(|rest| rest.rsplit_once('-'));
        let kubevirt = kubevirt.filter(|(vm, end)| !vm.is_empty() && end.len() == KUBEVIRT_SUFFIX_LENGTH);
        let names = [
            Some(self.pod_name.as_str()).filter(|_| self.is_named()),
            kubevirt.map(|(vm, _)| vm),
        ];
        let both = |name: &str| [name.to_owned(), format!("{}/{name}", self.pod_namespace)];
        names.into_iter().flatten().flat_map(both).collect()
    }

    /// Whether this is a name of the VM. The UID of one of these pods names no other: a tenant may call a pod by it.
    pub(super) fn is_called(&self, asked: &str, among: &Pods) -> bool {
        self.pod_uid == asked || (!among.has(asked) && self.names().iter().any(|name| name == asked))
    }

    /// Whether this is a name of the VM, or fits one. The UID fits a pattern only where there is no other name: `a*` and `db*` would fit UIDs of
    /// VMs with other names.
    pub(crate) fn fits(&self, pattern: &VmPattern, among: &Pods) -> bool {
        match pattern.as_str() {
            word if !is_glob(word) => self.is_called(word, among),
            _ if self.is_named() => self.names().iter().any(|name| pattern.matches(name)),
            _ => pattern.matches(&self.pod_uid),
        }
    }

    pub(crate) fn is_named(&self) -> bool {
        !self.pod_name.is_empty()
    }

    /// The members of its JSON object.
    pub(crate) fn members(&self) -> Map<String, Value> {
        json!(self).as_object().cloned().unwrap_or_default()
    }

    /// A fix with this pod, where its name is known, in its commands.
    pub(crate) fn in_fix(&self, fix: String) -> String {
        if self.is_named() {
            naming(&fix, &self.pod_namespace, &self.pod_name)
        } else {
            fix
        }
    }

    /// The name with the UID, because several pods may have the same name.
    pub(crate) fn in_full(&self) -> String {
        if self.is_named() {
            format!("{self} ({})", self.pod_uid)
        } else {
            self.pod_uid.clone()
        }
    }
}

/// `namespace/name`; the UID where the name is not known.
impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_named() {
            write!(f, "{}/{}", self.pod_namespace, self.pod_name)
        } else {
            f.write_str(&self.pod_uid)
        }
    }
}

/// Pods by UID, for answers that name pods by their UIDs only.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pods(BTreeMap<String, Pod>);

impl Pods {
    pub(crate) fn of(description: &Description) -> Self {
        let instances = description.node.instances.iter();
        instances.map(|(uid, one)| Pod::of(uid, one)).collect()
    }

    /// The VMs that were released or ended, as far as they had names.
    pub(crate) fn of_former(description: &Description) -> Self {
        let named = description.node.former.iter().filter(|one| one.pod_name.is_some());
        named.map(|one| Pod::new(&one.pod, one.pod_name.as_ref())).collect()
    }

    /// By the names of kubelet's log directories, `NAMESPACE_NAME_UID` (`BuildPodLogsDirectory` in kubelet's
    /// `kuberuntime/helpers.go`): for pods that are not instances. What cannot be read is not known; a directory may
    /// outlive its pod.
    pub(crate) fn by_logs(root: &Path) -> Self {
        let entries = fs::read_dir(root.join("var/log/pods")).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let pod = |directory: String| {
            let (namespace, rest) = directory.split_once('_')?;
            let (name, uid) = rest.split_once('_')?;
            Some(Pod::new(uid, Some(&PodName::new(namespace, name)?)))
        };
        names.filter_map(pod).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pod> {
        self.0.values()
    }

    pub(crate) fn has(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    /// Adds the others, which replace pods of the same UID.
    pub(crate) fn add(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    pub(crate) fn get(&self, uid: &str) -> Pod {
        self.0.get(uid).cloned().unwrap_or_else(|| Pod::unnamed(uid))
    }
}

impl FromIterator<Pod> for Pods {
    fn from_iter<I: IntoIterator<Item = Pod>>(pods: I) -> Self {
        Self(pods.into_iter().map(|pod| (pod.pod_uid.clone(), pod)).collect())
    }
}

/// The number of VMs that are named where not all are.
pub(super) const MAX_NAMED: usize = 3;

/// "team-a/web", "2 VMs (team-a/db, team-a/web)", "200 VMs (team-a/vm-1, team-a/vm-2, team-a/vm-3, …)".
pub(crate) fn whose(pods: &[&Pod]) -> String {
    if let [pod] = pods {
        return pod.to_string();
    }
    let names = some_of(pods.iter().map(ToString::to_string), MAX_NAMED);
    format!("{} VMs ({names})", pods.len())
}

/// Stands for the node where something is told by the UIDs of pods.
pub(crate) const NODE: &str = "-";

/// "the node, 2 VMs"; `None` of none.
pub(crate) fn counted_uids<'a>(uids: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut uids: BTreeSet<&str> = uids.collect();
    let node = uids.remove(NODE).then(|| "the node".to_owned());
    let vms = (!uids.is_empty()).then(|| counted(uids.len() as u64, "VM"));
    let both: Vec<String> = node.into_iter().chain(vms).collect();
    (!both.is_empty()).then(|| both.join(", "))
}

/// The entries `POD: text` of a member of `Reconcile`'s answer, split.
pub(crate) fn lines_by_pod<'a>(answer: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let lines = answer.get(name).and_then(Value::as_array).into_iter().flatten();
    lines.filter_map(|line| line.as_str()?.split_once(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_log_directories_name_pods() {
        let root = tempfile::tempdir().unwrap();
        for directory in ["team-a_web-0_aaa", "no-name", "x_Y_bbb", "default_vm.1_ccc"] {
            fs::create_dir_all(root.path().join("var/log/pods").join(directory)).unwrap();
        }
        let pods = Pods::by_logs(root.path());
        assert_eq!(pods.get("aaa").to_string(), "team-a/web-0");
        assert_eq!(pods.get("ccc").to_string(), "default/vm.1");
        assert_eq!(pods.get("bbb").to_string(), "bbb");
        assert_eq!(Pods::by_logs(Path::new("/nonexistent")).get("aaa").to_string(), "aaa");
    }
}
