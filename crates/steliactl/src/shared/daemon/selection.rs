//! The VMs that a command is about: by patterns, by namespace and by state.

use std::collections::BTreeSet;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap_complete::engine::ArgValueCandidates;
use stelia_api::State;

use super::candidates::vms;
use super::failure::Failure;
use super::name::{VmPattern, ambiguous, none_among, uid_prefix_note};
use super::node::Description;
use super::pod::{Pod, Pods};
use crate::shared::output::note;

/// Selects the VMs with reasons of degradation, whatever their state.
const DEGRADED: &str = "degraded";

/// What a state may be called.
fn states() -> PossibleValuesParser {
    PossibleValuesParser::new(State::NAMES.into_iter().chain([DEGRADED]))
}

/// Without anything all VMs are selected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct Selection {
    /// Only these VMs: the namespace/name or name of the pod, the name of a KubeVirt VM, a UID or its beginning, or a pattern with *, ?
    /// or [a-z]. Default: all
    #[arg(value_name = "PATTERN", add = ArgValueCandidates::new(vms))]
    patterns: Vec<VmPattern>,
    /// Only VMs in this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Only VMs in one of these states, separated by commas: waiting, isolated, pinned, shared, evicted or releasing; degraded selects
    /// every VM with a problem
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', value_parser = states(), hide_possible_values = true)]
    states: Vec<String>,
}

impl Selection {
    /// Every VM, by a pattern, for what has to be asked about some.
    pub(crate) fn every() -> Self {
        Self {
            patterns: "*".parse::<VmPattern>().into_iter().collect(),
            ..Self::default()
        }
    }

    /// Whether every VM is selected.
    pub(crate) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it is one word, which names one VM, and nothing else.
    pub(crate) fn is_name(&self) -> bool {
        let is_word = |one: &[VmPattern]| matches!(one, [name] if name.word().is_some());
        is_word(&self.patterns) && self.namespace.is_none() && self.states.is_empty()
    }

    /// Whether a state is selected.
    pub(crate) fn has_state(&self, state: &str, degraded: bool) -> bool {
        let is = |one: &String| one == state || (one == DEGRADED && degraded);
        self.states.is_empty() || self.states.iter().any(is)
    }

    /// Whether states are named.
    pub(crate) fn names_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// The namespace that is asked for without patterns, if none of these pods is in it: that is no error, as with kubectl.
    pub(crate) fn empty_namespace<'a>(&self, mut pods: impl Iterator<Item = &'a Pod>) -> Option<&str> {
        let namespace = self.namespace.as_deref().filter(|_| self.patterns.is_empty())?;
        (!pods.any(|pod| pod.pod_namespace == namespace)).then_some(namespace)
    }

    /// What the patterns and the namespace select among these pods.
    fn chosen<'a>(&self, pods: impl Iterator<Item = &'a Pod>) -> Chosen {
        let all: Vec<&Pod> = pods.collect();
        let in_namespace = |pod: &&Pod| self.namespace.as_ref().is_none_or(|one| *one == pod.pod_namespace);
        let pods: Vec<&Pod> = all.iter().copied().filter(in_namespace).collect();
        let mut chosen = Chosen::default();
        if self.patterns.is_empty() {
            chosen.add(&pods);
        }
        for pattern in &self.patterns {
            let fitting = pattern.among(pods.clone(), |pod| pod);
            // A name in several namespaces selects all of these; the beginning of a UID must be of one.
            let note = pattern.word().zip(fitting.first());
            let note = note.and_then(|(word, pod)| uid_prefix_note(pod, word));
            match &note {
                Some(_) if fitting.len() > 1 => chosen.fail(ambiguous(pattern.as_str(), fitting.iter().copied())),
                _ if fitting.is_empty() => chosen.fail(none_among(pattern.as_str(), all.iter().copied())),
                _ => chosen.add(&fitting),
            }
            chosen.notes.extend(note);
        }
        chosen
    }

    /// Whether a pod is selected, by its name alone; `known` are all pods, of which an exact name selects one.
    pub(crate) fn has<'a>(&'a self, pod: &'a Pod, known: impl Iterator<Item = &'a Pod>) -> bool {
        self.chosen(known.chain([pod])).uids.contains(&pod.pod_uid)
    }

    /// Keeps the selected instances of a description; the rest of it stays.
    ///
    /// # Errors
    /// A pattern fits none, or is the beginning of several UIDs.
    pub(crate) fn restrict(&self, description: &mut Description) -> Result<(), Failure> {
        if self.is_all() {
            return Ok(());
        }
        let uids = self.chosen(Pods::of(description).iter()).told()?;
        self.keep(description, &uids);
        Ok(())
    }

    /// The same where a VM may have ended meanwhile.
    pub(crate) fn retain(&self, description: &mut Description) {
        let uids = self.chosen(Pods::of(description).iter()).uids;
        self.keep(description, &uids);
    }

    /// Keeps those of these that have a selected state.
    fn keep(&self, description: &mut Description, uids: &BTreeSet<String>) {
        let instances = &mut description.node.instances;
        instances.retain(|uid, one| {
            uids.contains(uid.as_str()) && self.has_state(one.state.name(), !one.degraded.is_empty())
        });
    }

    /// The UIDs of the selected instances; `None`: of all.
    ///
    /// # Errors
    /// A pattern fits none, or is the beginning of several UIDs.
    pub(crate) fn among(&self, description: &Description) -> Result<Option<BTreeSet<String>>, Failure> {
        if self.is_all() {
            return Ok(None);
        }
        let mut selected = description.clone();
        self.restrict(&mut selected)?;
        let uids = selected.node.instances.keys();
        Ok(Some(uids.map(ToString::to_string).collect()))
    }
}

/// The selected VMs.
#[derive(Debug, Default)]
struct Chosen {
    uids: BTreeSet<String>,
    /// Which words are only the beginning of a UID.
    notes: Vec<String>,
    /// Why the first wrong pattern does not select as it should.
    failure: Option<Failure>,
}

impl Chosen {
    fn add(&mut self, pods: &[&Pod]) {
        self.uids.extend(pods.iter().map(|pod| pod.pod_uid.clone()));
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// The UIDs; notes are printed.
    fn told(self) -> Result<BTreeSet<String>, Failure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        self.notes.iter().for_each(|text| note(text));
        Ok(self.uids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
    use stelia_kubelet::PodName;

    fn selection(patterns: &[&str]) -> Selection {
        Selection {
            patterns: patterns.iter().map(|one| one.parse().unwrap()).collect(),
            ..Selection::default()
        }
    }

    /// The first VM is isolated, the second one waits and is degraded.
    fn named() -> Description {
        let mut node = node();
        for (uid, name) in PODS
            .iter()
            .zip(["virt-launcher-web-x7k2p", "virt-launcher-web-2-abcde"])
        {
            instance_mut(&mut node, uid).pod_name = PodName::new("team-a", name);
        }
        node
    }

    fn uids(selection: &Selection) -> Vec<String> {
        let uids = selection.among(&named()).unwrap();
        uids.into_iter().flatten().collect()
    }

    #[test]
    fn a_vm_is_selected_by_name_pattern_or_uid_and_by_no_beginning_of_a_name() {
        for (pattern, expected) in [
            // KubeVirt's name of the VM: not the other one, whose name only begins so.
            ("web", &PODS[..1]),
            ("web-2", &PODS[1..2]),
            ("team-a/web", &PODS[..1]),
            ("virt-launcher-web-x7k2p", &PODS[..1]),
            ("virt-launcher*", &PODS[..2]),
            ("team-a/*", &PODS[..2]),
            ("*-x7k2p", &PODS[..1]),
            // KubeVirt's names of both.
            ("we?*", &PODS[..2]),
            ("web-?", &PODS[1..2]),
            ("team-?/*", &PODS[..2]),
            ("bbbb", &PODS[1..2]),
        ] {
            assert_eq!(uids(&selection(&[pattern])), expected, "{pattern}");
        }
        assert_eq!(uids(&selection(&["web", "bbbb"])), &PODS[..2]);
        let refused = |pattern: &str| selection(&[pattern]).among(&named()).unwrap_err();
        for beginning in [
            "virt-launcher",
            "virt-launcher-web-x7k2",
            "we",
            "team-a",
            "team-a/",
            "team-a/we",
        ] {
            assert_eq!(refused(beginning).exit_code(), 3, "{beginning}");
        }
        assert!(
            refused("we")
                .to_string()
                .contains("did you mean team-a/virt-launcher-web-2-abcde, ")
        );
    }

    #[test]
    fn the_beginning_of_a_uid_is_told_and_that_of_several_is_refused() {
        let two = [PODS[0].to_owned(), PODS[0].replace('-', "0")].map(|uid| Pod::unnamed(&uid));
        let chosen = |word: &str, pods: &[Pod]| selection(&[word]).chosen(pods.iter());
        let one = chosen("aaaaaaaa", &two[..1]);
        let note = format!("aaaaaaaa is the beginning of the UID of {}", PODS[0]);
        assert_eq!((one.notes, one.uids.len(), one.failure), (vec![note], 1, None));
        let whole = chosen(PODS[0], &two);
        assert_eq!((whole.notes.len(), whole.uids.len()), (0, 1));
        let several = chosen("aaaaaaaa", &two).told().unwrap_err();
        assert!(
            several.exit_code() == 2 && several.to_string().contains(PODS[0]),
            "{several}"
        );
    }

    #[test]
    fn a_namespace_and_states_narrow_it() {
        let of = |namespace: &str, states: &[&str]| Selection {
            namespace: Some(namespace.to_owned()),
            states: states.iter().map(|one| (*one).to_owned()).collect(),
            ..Selection::default()
        };
        assert_eq!(uids(&of("team-a", &[])), &PODS[..2]);
        assert_eq!(uids(&of("team-a", &["isolated"])), &PODS[..1]);
        assert_eq!(uids(&of("team-a", &["pinned", "degraded"])), &PODS[1..2]);
        assert_eq!(uids(&of("team-b", &[])), [""; 0]);
        let empty = |selection: &Selection| {
            let pods = Pods::of(&named());
            selection.empty_namespace(pods.iter()).map(str::to_owned)
        };
        assert_eq!(empty(&of("team-b", &[])).as_deref(), Some("team-b"));
        // Its VMs have other states.
        assert_eq!(empty(&of("team-a", &["releasing"])), None);
        assert_eq!(empty(&selection(&["web"])), None);
    }

    #[test]
    fn what_fits_nothing_is_an_error_and_everything_is_none() {
        assert_eq!(Selection::default().among(&named()).unwrap(), None);
        for pattern in ["db", "db*"] {
            let failure = selection(&["web", pattern]).among(&named()).unwrap_err();
            assert_eq!(failure.exit_code(), 3, "{pattern}");
        }
        // While top runs a VM may end.
        let mut node = named();
        let ended = selection(&["db"]);
        ended.retain(&mut node);
        assert!(node.node.instances.is_empty());
    }

    #[test]
    fn one_word_that_is_no_pattern_is_a_name() {
        assert!(selection(&["web"]).is_name());
        assert!(!selection(&["web*"]).is_name() && !selection(&["web", "db"]).is_name());
    }
}
