//! What an operator calls a VM: its pod's namespace and name, its UID, or the beginning of it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value, json};
use stelia_api::client::InstanceRow;
use stelia_kubelet::{PodName, PodUid};
use stelia_model::Instance;

use super::failure::Failure;
use super::node::Description;
use super::not_there::no_instance_among;
use crate::shared::output::{text_of, texts_of};

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

    /// By the properties of its Instance object.
    pub(crate) fn of_properties(uid: &str, properties: &Map<String, Value>) -> Self {
        Self {
            pod_uid: uid.to_owned(),
            pod_namespace: text_of(properties, "PodNamespace").to_owned(),
            pod_name: text_of(properties, "PodName").to_owned(),
        }
    }

    /// Whether KubeVirt runs the VM of this name in it, as `NAME` or `NAMESPACE/NAME`: it calls the pod `virt-launcher-NAME-` with
    /// five characters more.
    fn is_of_kubevirt_vm(&self, asked: &str) -> bool {
        let vm = match asked.split_once('/') {
            Some((namespace, vm)) if namespace == self.pod_namespace => vm,
            Some(_) => return false,
            None => asked,
        };
        !vm.is_empty() && self.kubevirt_vm() == Some(vm)
    }

    /// The name of the VM, if the pod is named as KubeVirt names them.
    pub(super) fn kubevirt_vm(&self) -> Option<&str> {
        let (vm, end) = self.pod_name.strip_prefix(KUBEVIRT_PREFIX)?.rsplit_once('-')?;
        (end.len() == KUBEVIRT_SUFFIX_LENGTH).then_some(vm)
    }

    pub(crate) fn is_named(&self) -> bool {
        !self.pod_name.is_empty()
    }

    /// The members of its JSON object.
    pub(crate) fn members(&self) -> Map<String, Value> {
        match json!(self) {
            Value::Object(members) => members,
            _ => Map::new(),
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

/// An instance as the daemon lists it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListedInstance {
    pub pod: Pod,
    pub row: InstanceRow,
    /// The properties of its object; `None`: it was deregistered meanwhile.
    pub properties: Option<Map<String, Value>>,
}

/// The number of pods that are named if more than one fits.
const MAX_CANDIDATES: usize = 5;

/// The instance that `asked` names: by its UID, by namespace and name, by the name alone, by the name of its KubeVirt VM, or
/// by the beginning of the UID. If an earlier kind of match has results, later kinds are not tried.
///
/// # Errors
/// Nothing fits, or more than one instance does.
pub(crate) fn pick(instances: Vec<ListedInstance>, asked: &str) -> Result<ListedInstance, Failure> {
    if asked.is_empty() {
        return Err(Failure::Usage("the VM's name is empty".to_owned()));
    }
    let pods: Vec<Pod> = instances.iter().map(|one| one.pod.clone()).collect();
    let mut fitting = fitting(instances, |one| &one.pod, asked);
    if fitting.len() > 1 {
        return Err(ambiguous(asked, fitting.iter().map(|one| &one.pod)));
    }
    fitting.pop().ok_or_else(|| no_instance_among(asked, &pods))
}

/// The error for a word that several pods have.
pub(super) fn ambiguous<'a>(asked: &str, pods: impl Iterator<Item = &'a Pod>) -> Failure {
    let mut pods: Vec<&Pod> = pods.collect();
    pods.sort_by_key(|pod| &pod.pod_uid);
    let first = pods.iter().take(MAX_CANDIDATES).map(|pod| pod.in_full());
    let more = match pods.len().saturating_sub(MAX_CANDIDATES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Failure::Usage(format!(
        "more than one instance fits {asked}: {}{more}",
        first.collect::<Vec<_>>().join(", ")
    ))
}

/// The characters of a UID's beginning that a command which changes something requires: the first group of a UID. A shorter word may be
/// a mistyped name.
const MIN_UID_LENGTH_FOR_CHANGE: usize = 8;

/// As [`pick`], for a command that changes something.
///
/// # Errors
/// As [`pick`]; and the beginning of the UID is too short.
pub(crate) fn pick_for_change(instances: Vec<ListedInstance>, asked: &str) -> Result<ListedInstance, Failure> {
    let found = pick(instances, asked)?;
    match uid_prefix_note(&found.pod, asked) {
        Some(text) if asked.len() < MIN_UID_LENGTH_FOR_CHANGE => Err(Failure::Usage(format!(
            "{text}: a command that changes something needs at least {MIN_UID_LENGTH_FOR_CHANGE} characters of it"
        ))),
        _ => Ok(found),
    }
}

/// What names a pod exactly; if an earlier kind of match has results, later kinds are not tried.
const NAMES: [fn(&Pod, &str) -> bool; 4] = [
    |pod, asked| pod.pod_uid == asked,
    |pod, asked| pod.is_named() && pod.to_string() == asked,
    |pod, asked| pod.is_named() && pod.pod_name == asked,
    |pod, asked| pod.is_of_kubevirt_vm(asked),
];

/// What is told where a word is no name of the pod but the beginning of its UID; `None` where it is a name.
pub(crate) fn uid_prefix_note(pod: &Pod, asked: &str) -> Option<String> {
    let is_name = NAMES.iter().any(|names| names(pod, asked));
    (!is_name).then(|| format!("{asked} is the beginning of the UID of {}", pod.in_full()))
}

/// Those whose pod `asked` names: by its UID, by namespace and name, by the name alone, by the name of its KubeVirt VM, or by the
/// beginning of the UID.
pub(crate) fn fitting<T>(all: Vec<T>, pod: impl Fn(&T) -> &Pod, asked: &str) -> Vec<T> {
    let beginning: fn(&Pod, &str) -> bool = |pod, asked| !asked.is_empty() && pod.pod_uid.starts_with(asked);
    let mut matchers = NAMES.into_iter().chain([beginning]);
    match matchers.find(|matcher| all.iter().any(|one| matcher(pod(one), asked))) {
        Some(matcher) => all.into_iter().filter(|one| matcher(pod(one), asked)).collect(),
        None => Vec::new(),
    }
}

/// The entries `POD: text` of a member of `Reconcile`'s answer, split.
pub(crate) fn lines_by_pod<'a>(answer: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    texts_of(answer, name).filter_map(|line| line.split_once(": "))
}

#[cfg(test)]
mod tests {
    use zbus::OwnedObjectPath;

    use super::*;
    use crate::tests::fixtures::pod;

    /// Words are `UID` or `UID=namespace/name`.
    fn pods(words: &[&str]) -> Vec<ListedInstance> {
        let path = OwnedObjectPath::try_from("/io/stelia/Isolation1/instance/x").unwrap();
        let found = |word: &&str| {
            let (uid, name) = word.split_once('=').unwrap_or((word, ""));
            let [container, state, cpus] = ["vm", "isolated", "2-3"].map(str::to_owned);
            ListedInstance {
                pod: pod(uid, name),
                row: (uid.to_owned(), container, path.clone(), state, cpus),
                properties: None,
            }
        };
        words.iter().map(found).collect()
    }

    #[test]
    fn a_change_needs_a_name_or_eight_characters_of_a_uid() {
        let words = ["3ceda12c-3ee9=team-a/web", "b9e"];
        for asked in ["3ceda12c", "3ceda12c-3", "web", "team-a/web", "b9e"] {
            assert!(pick_for_change(pods(&words), asked).is_ok(), "{asked}");
        }
        for asked in ["3", "3ceda12", "b"] {
            let failure = pick_for_change(pods(&words), asked).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.to_string().contains("at least 8 characters"), "{failure}");
        }
        assert_eq!(pick_for_change(pods(&words), "nobody").unwrap_err().exit_code(), 3);
    }

    #[test]
    fn a_vm_is_picked_by_its_uid_then_by_a_name_then_by_the_beginning_of_its_uid() {
        let names = ["aaa=default/vm", "bbb=default/db", "ccc=team-a/db", "ddd"];
        // The owner of a VM of KubeVirt gave it its own name.
        let of_kubevirt = [
            "aaa=team-a/virt-launcher-vm-5-x7k2p",
            "bbb=team-b/virt-launcher-vm-5-1-x7k2p",
        ];
        for (words, asked, expected) in [
            (&["aaa-1", "aab-2"][..], "aab", "aab-2"),
            (&["aa", "aab"], "aa", "aa"),
            (&["abc", "ddd=default/abc"], "abc", "abc"),
            (&["abcd", "ddd=default/abc"], "abc", "ddd"),
            (&names, "vm", "aaa"),
            (&names, "default/vm", "aaa"),
            (&names, "team-a/db", "ccc"),
            (&of_kubevirt, "vm-5", "aaa"),
            (&of_kubevirt, "team-a/vm-5", "aaa"),
            (&of_kubevirt, "vm-5-1", "bbb"),
        ] {
            assert_eq!(pick(pods(words), asked).unwrap().pod.pod_uid, expected, "{asked}");
        }
        for other in ["team-b/vm-5", "vm", "virt-launcher", ""] {
            assert!(pick(pods(&of_kubevirt), other).is_err(), "{other}");
        }
    }

    #[test]
    fn what_several_vms_have_names_them_and_is_wrong_usage() {
        for (words, asked, expected) in [
            (
                &["aaa=default/vm", "bbb=default/db", "ccc=team-a/db"][..],
                "db",
                "default/db (bbb), team-a/db (ccc)",
            ),
            // A pod that was made again under its name, while the former one ends.
            (
                &["aaa=default/vm", "bbb=default/vm"],
                "default/vm",
                "default/vm (aaa), default/vm (bbb)",
            ),
            (&["aab", "aaa=default/vm", "b"], "aa", "default/vm (aaa), aab"),
            (
                &["aa0", "aa1", "aa2", "aa3", "aa4", "aa5", "aa6", "aa7", "aa8"],
                "aa",
                "aa0, aa1, aa2, aa3, aa4 and 4 more",
            ),
        ] {
            let failure = pick(pods(words), asked).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            let text = format!("more than one instance fits {asked}: {expected}");
            assert_eq!(failure.to_string(), text);
        }
    }

    #[test]
    fn an_unknown_uid_has_its_own_exit_code() {
        // Neither a name that is not known nor half of one fits.
        for (word, asked, code) in [
            ("aaa", "c", 3),
            ("aaa", "/", 3),
            ("aaa=default/vm", "default", 3),
            ("aaa", "", 2),
        ] {
            assert_eq!(pick(pods(&[word]), asked).unwrap_err().exit_code(), code, "{asked}");
        }
    }

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
