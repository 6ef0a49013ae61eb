//! What names a VM on the command line: the namespace and name of its pod, or the name alone, the name of its KubeVirt VM, its UID or the
//! beginning of it, or a pattern as a shell has it. The beginning of a name is no name.

use std::collections::BTreeMap;
use std::str::FromStr;

use stelia_cpus::text::near;

use super::failure::Failure;
use super::pod::Pod;
use crate::shared::output::{cut, note};

/// The number of names that a message offers, of pods that it names, and the columns of what was asked for that it repeats.
const MAX_OFFERED: usize = 3;
const MAX_CANDIDATES: usize = 5;
const MAX_REPEATED: usize = 80;

/// The characters of a UID's beginning that a command which changes something requires: the first group of a UID. A shorter word may be
/// a mistyped name.
const MIN_UID_LENGTH_FOR_CHANGE: usize = 8;

/// Whether a text is a pattern with `*`, `?` or `[a-z]` and no word.
pub(crate) fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// A word or a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmPattern {
    text: String,
    /// `None` for a word.
    glob: Option<glob::Pattern>,
}

/// Why a text is neither a name nor a pattern.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatternError {
    #[error("a name or a pattern is expected, not an empty word")]
    Empty,
    #[error(transparent)]
    Glob(#[from] glob::PatternError),
}

impl FromStr for VmPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        Ok(Self {
            text: text.to_owned(),
            glob: is_glob(text).then(|| glob::Pattern::new(text)).transpose()?,
        })
    }
}

impl VmPattern {
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The name or UID; `None` for a pattern.
    pub(super) fn word(&self) -> Option<&str> {
        self.glob.is_none().then_some(self.text.as_str())
    }

    /// Whether a name of the pod fits the pattern. The UID is one only where there is no other: `a*` and `db*` would fit UIDs of VMs with
    /// other names.
    pub(crate) fn selects(&self, pod: &Pod) -> bool {
        let Some(glob) = &self.glob else { return false };
        let of_pod = [pod.pod_name.clone(), pod.to_string()].into_iter();
        let mut names = of_pod.chain(pod.kubevirt_names().into_iter().flatten());
        names.any(|name| glob.matches(&name))
    }

    /// Those whose pod it names or fits.
    pub(super) fn among<T>(&self, all: Vec<T>, pod: impl Fn(&T) -> &Pod) -> Vec<T> {
        match self.word() {
            Some(word) => fitting(all, pod, word),
            None => all.into_iter().filter(|one| self.selects(pod(one))).collect(),
        }
    }
}

/// What names a pod exactly; if an earlier kind of match has results, later kinds are not tried.
const NAMES: [fn(&Pod, &str) -> bool; 4] = [
    |pod, asked| pod.pod_uid == asked,
    |pod, asked| pod.is_named() && pod.to_string() == asked,
    |pod, asked| pod.is_named() && pod.pod_name == asked,
    |pod, asked| {
        pod.kubevirt_names()
            .is_some_and(|names| names.iter().any(|name| name == asked))
    },
];

/// Those whose pod this word names: exactly, or by the beginning of its UID where it names none exactly.
fn fitting<T>(all: Vec<T>, pod: impl Fn(&T) -> &Pod, asked: &str) -> Vec<T> {
    let beginning: fn(&Pod, &str) -> bool = |pod, asked| !asked.is_empty() && pod.pod_uid.starts_with(asked);
    let mut matchers = NAMES.into_iter().chain([beginning]);
    match matchers.find(|matcher| all.iter().any(|one| matcher(pod(one), asked))) {
        Some(matcher) => all.into_iter().filter(|one| matcher(pod(one), asked)).collect(),
        None => Vec::new(),
    }
}

/// What is told where a word is no name of the pod but the beginning of its UID; `None` where it is a name.
pub(super) fn uid_prefix_note(pod: &Pod, asked: &str) -> Option<String> {
    let is_name = NAMES.iter().any(|names| names(pod, asked));
    (!is_name).then(|| format!("{asked} is the beginning of the UID of {}", pod.in_full()))
}

/// The one pod that a word names. The beginning of a UID is told; for a command that changes something it must not be too short.
///
/// # Errors
/// Nothing fits, or more than one pod does.
pub(crate) fn one(pods: Vec<Pod>, asked: &str, for_change: bool) -> Result<Pod, Failure> {
    if asked.is_empty() {
        return Err(Failure::Usage("the VM's name is empty".to_owned()));
    }
    let none = none_among(asked, &pods);
    let mut found = fitting(pods, |pod| pod, asked);
    if found.len() > 1 {
        return Err(ambiguous(asked, found.iter()));
    }
    let pod = found.pop().ok_or(none)?;
    match uid_prefix_note(&pod, asked) {
        Some(text) if for_change && asked.len() < MIN_UID_LENGTH_FOR_CHANGE => Err(Failure::Usage(format!(
            "{text}: a command that changes something needs at least {MIN_UID_LENGTH_FOR_CHANGE} characters of it"
        ))),
        told => {
            told.iter().for_each(|text| note(text));
            Ok(pod)
        }
    }
}

/// The error for a word that several pods have.
pub(super) fn ambiguous<'a>(asked: &str, pods: impl Iterator<Item = &'a Pod>) -> Failure {
    let mut pods: Vec<&Pod> = pods.collect();
    pods.sort_by_key(|pod| &pod.pod_uid);
    let first: Vec<String> = pods.iter().take(MAX_CANDIDATES).map(|pod| pod.in_full()).collect();
    let more = match pods.len().saturating_sub(MAX_CANDIDATES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Failure::Usage(format!("several VMs are called {asked}: {}{more}", first.join(", ")))
}

/// For a pod that is known to have no VM.
pub(crate) fn no_instance(asked: &str) -> Failure {
    Failure::NoSuchInstance(format!("pod {} has no VM on this node", cut(asked, MAX_REPEATED)))
}

/// The error for a name or a pattern that none of these pods fits.
pub(crate) fn none_among<'a>(asked: &str, pods: impl IntoIterator<Item = &'a Pod>) -> Failure {
    let what = if is_glob(asked) { "fits" } else { "is called" };
    let meant = perhaps_meant(asked, pods);
    let asked = cut(asked, MAX_REPEATED);
    Failure::NoSuchInstance(format!("no VM on this node {what} {asked}{meant}"))
}

/// "; did you mean a/web, a/web-2, …?" with the names that contain the one that none of these pods has, or else with the one that is most
/// like it; empty where none is.
fn perhaps_meant<'a>(asked: &str, pods: impl IntoIterator<Item = &'a Pod>) -> String {
    let word = asked.rsplit('/').next().unwrap_or_default().trim_matches(['*', '?']);
    let named = pods.into_iter().filter(|pod| pod.is_named() && !word.is_empty());
    let names: BTreeMap<String, &str> = named.map(|pod| (pod.to_string(), pod.pod_name.as_str())).collect();
    let mut offered: Vec<&str> = names
        .iter()
        .filter(|(_, name)| name.contains(word))
        .map(|(full, _)| full.as_str())
        .collect();
    if offered.is_empty() {
        let nearest = near::nearest(word, names.values().copied());
        let full = names.iter().find(|(_, name)| Some(**name) == nearest);
        offered.extend(full.map(|(full, _)| full.as_str()));
    }
    let more = if offered.len() > MAX_OFFERED { ", …" } else { "" };
    offered.truncate(MAX_OFFERED);
    match offered.as_slice() {
        [] => String::new(),
        some => format!("; did you mean {}{more}?", some.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixtures::pod;

    /// Words are `UID` or `UID=namespace/name`.
    fn pods(words: &[&str]) -> Vec<Pod> {
        let pods = words.iter().map(|word| {
            let (uid, name) = word.split_once('=').unwrap_or((word, ""));
            pod(uid, name)
        });
        pods.collect()
    }

    #[test]
    fn a_vm_is_named_by_its_uid_then_by_a_name_then_by_the_beginning_of_its_uid() {
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
            assert_eq!(one(pods(words), asked, false).unwrap().pod_uid, expected, "{asked}");
        }
        for (words, asked, code) in [
            (&of_kubevirt[..], "team-b/vm-5", 3),
            (&of_kubevirt, "vm", 3),
            (&of_kubevirt, "virt-launcher", 3),
            (&names, "default", 3),
            (&names, "default/", 3),
            (&names, "v", 3),
            (&names, "/", 3),
            (&names, "db*", 3),
            (&names, "", 2),
        ] {
            assert_eq!(one(pods(words), asked, false).unwrap_err().exit_code(), code, "{asked}");
        }
    }

    #[test]
    fn a_change_needs_a_name_or_eight_characters_of_a_uid() {
        let words = ["3ceda12c-3ee9=team-a/web", "b9e"];
        let code = |asked: &str| one(pods(&words), asked, true).map_err(|failure| failure.exit_code());
        for asked in ["3ceda12c", "3ceda12c-3", "web", "team-a/web", "b9e"] {
            assert!(code(asked).is_ok(), "{asked}");
        }
        for (asked, expected) in [("3", 2), ("3ceda12", 2), ("b", 2), ("nobody", 3)] {
            assert_eq!(code(asked), Err(expected), "{asked}");
        }
    }

    #[test]
    fn what_several_vms_have_is_wrong_usage_and_names_them() {
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
            (
                &["aa0", "aa1", "aa2", "aa3", "aa4", "aa5", "aa6"],
                "aa",
                "aa0, aa1, aa2, aa3, aa4 and 2 more",
            ),
        ] {
            let failure = one(pods(words), asked, false).unwrap_err();
            assert!(
                failure.exit_code() == 2 && failure.to_string().ends_with(expected),
                "{failure}"
            );
        }
    }

    #[test]
    fn patterns_are_those_of_a_shell_and_fit_uids_only_where_there_is_no_name() {
        let of_kubevirt = pod("db9f1c7e", "team-a/virt-launcher-web-x7k2p");
        let unnamed = Pod::unnamed(&of_kubevirt.pod_uid);
        for (pattern, by_name, by_uid) in [
            ("we*", true, false),
            ("we[a-c]", true, false),
            ("we?", true, false),
            ("we[!b]", false, false),
            ("eb*", false, false),
            ("team-a/we*", true, false),
            ("team-b/we*", false, false),
            ("team-a/*", true, false),
            ("virt-launcher-*", true, false),
            ("db*", false, true),
        ] {
            let parsed: VmPattern = pattern.parse().unwrap();
            let selected = (parsed.selects(&of_kubevirt), parsed.selects(&unnamed));
            assert_eq!(selected, (by_name, by_uid), "{pattern}");
        }
        assert!("vm-[".parse::<VmPattern>().is_err() && "".parse::<VmPattern>().is_err());
    }

    #[test]
    fn what_may_be_meant_is_offered() {
        let known = [
            "u=team-a/virt-launcher-web-1-x7k2p",
            "u=team-a/virt-launcher-web-2-abcde",
            "u=team-a/database",
            "3ceda12c",
        ];
        for (asked, meant) in [
            (
                "web",
                "; did you mean team-a/virt-launcher-web-1-x7k2p, team-a/virt-launcher-web-2-abcde?",
            ),
            ("databse", "; did you mean team-a/database?"),
            // In another namespace.
            ("team-b/database", "; did you mean team-a/database?"),
            ("databse*", "; did you mean team-a/database?"),
            ("cache", ""),
            ("", ""),
        ] {
            assert_eq!(perhaps_meant(asked, &pods(&known)), meant, "{asked}");
        }
        let many: Vec<Pod> = (0..9).map(|at| pod("u", &format!("a/vm-{at}"))).collect();
        assert_eq!(perhaps_meant("vm", &many), "; did you mean a/vm-0, a/vm-1, a/vm-2, …?");
        for long in ["x".repeat(5_000), "=".repeat(5_000)] {
            let failure = none_among(&long, &many);
            assert!(failure.exit_code() == 3 && failure.to_string().len() < 250, "{failure}");
        }
    }
}
