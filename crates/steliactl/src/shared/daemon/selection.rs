//! The VMs that a command is about: by patterns, by namespace and by state.

use std::collections::BTreeSet;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap_complete::engine::ArgValueCandidates;
use stelia_api::State;

use super::candidates::vms;
use super::client::Failure;
use super::node::Description;
use super::not_there::{excerpt, no_instance_among};
use super::pattern::VmPattern;
use super::pod::{ListedInstance, Pod, Pods, chosen};
use crate::shared::output::texts_of;

/// Selects the VMs with reasons of degradation, whatever their state.
const DEGRADED: &str = "degraded";

/// What a state may be called.
fn states() -> PossibleValuesParser {
    PossibleValuesParser::new(State::NAMES.into_iter().chain([DEGRADED]))
}

/// Without anything all VMs are selected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct Selection {
    /// Only these VMs: the namespace/name or name of the pod, the name of a KubeVirt VM, a UID, the beginning of any of
    /// these, or a pattern with *, ? or [a-z]. Default: all
    #[arg(value_name = "PATTERN", add = ArgValueCandidates::new(vms))]
    patterns: Vec<VmPattern>,
    /// Only VMs in this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Only VMs in one of these states, separated by commas: registered, floating, contained, isolated, leaving, or degraded for
    /// every VM with a problem
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', value_parser = states(), hide_possible_values = true)]
    states: Vec<String>,
}

impl Selection {
    /// Whether every VM is selected.
    pub(crate) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// The only word, if it is a name and nothing else is asked for.
    pub(crate) fn name(&self) -> Option<&str> {
        match self.patterns.as_slice() {
            [name] if self.namespace.is_none() && self.states.is_empty() => name.word(),
            _ => None,
        }
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

    /// The UIDs that the patterns and the namespace select among these pods, and the first pattern that selects none.
    fn uids<'a, 'b>(&'b self, pods: impl Iterator<Item = &'a Pod>) -> (BTreeSet<String>, Option<&'b VmPattern>) {
        let in_namespace = |pod: &&Pod| self.namespace.as_ref().is_none_or(|one| *one == pod.pod_namespace);
        let pods: Vec<&Pod> = pods.filter(in_namespace).collect();
        if self.patterns.is_empty() {
            return (pods.into_iter().map(|pod| pod.pod_uid.clone()).collect(), None);
        }
        let (mut uids, mut without) = (BTreeSet::new(), None);
        for pattern in &self.patterns {
            let fitting = chosen(&pods, pattern);
            if fitting.is_empty() {
                without = without.or(Some(pattern));
            }
            uids.extend(fitting.into_iter().map(|pod| pod.pod_uid.clone()));
        }
        (uids, without)
    }

    /// Whether a pod is selected, by its name alone; `known` are all pods, of which an exact name selects one.
    pub(crate) fn has<'a>(&'a self, pod: &'a Pod, known: impl Iterator<Item = &'a Pod>) -> bool {
        let (uids, _) = self.uids(known.chain([pod]));
        uids.contains(&pod.pod_uid)
    }

    /// Keeps the selected instances.
    ///
    /// # Errors
    /// A pattern fits none.
    pub(crate) fn of_listed(&self, mut all: Vec<ListedInstance>) -> Result<Vec<ListedInstance>, Failure> {
        let (uids, without) = self.uids(all.iter().map(|one| &one.pod));
        fits_one(without, all.iter().map(|one| &one.pod))?;
        let degraded = |one: &ListedInstance| {
            let properties = one.properties.iter();
            properties
                .flat_map(|properties| texts_of(properties, "Degraded"))
                .next()
                .is_some()
        };
        let selected: Vec<bool> = all
            .iter()
            .map(|one| uids.contains(&one.pod.pod_uid) && self.has_state(&one.row.3, degraded(one)))
            .collect();
        let mut selected = selected.into_iter();
        all.retain(|_| selected.next().unwrap_or_default());
        Ok(all)
    }

    /// Keeps the selected instances of a description; the rest of it stays.
    ///
    /// # Errors
    /// A pattern fits none.
    pub(crate) fn restrict(&self, description: &mut Description) -> Result<(), Failure> {
        let pods = Pods::of(description);
        fits_one(self.retain(description), pods.iter())
    }

    /// The same where a VM may have ended meanwhile; returns the first pattern that fits none.
    pub(crate) fn retain(&self, description: &mut Description) -> Option<&VmPattern> {
        if self.is_all() {
            return None;
        }
        let instances = &mut description.node.instances;
        let pods: Vec<Pod> = instances.iter().map(|(uid, one)| Pod::of(uid, one)).collect();
        let (uids, without) = self.uids(pods.iter());
        instances.retain(|uid, one| {
            uids.contains(uid.as_str()) && self.has_state(one.state.name(), !one.degraded.is_empty())
        });
        without
    }

    /// The UIDs of the selected instances; `None`: of all.
    ///
    /// # Errors
    /// A pattern fits none.
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

fn fits_one<'a>(without: Option<&VmPattern>, pods: impl Iterator<Item = &'a Pod>) -> Result<(), Failure> {
    match without {
        Some(pattern) => Err(match pattern.word() {
            Some(name) => no_instance_among(name, pods),
            None => Failure::NoSuchInstance(format!("no VM on this node fits {}", excerpt(pattern.as_str()))),
        }),
        None => Ok(()),
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

    /// The first VM is isolated, the second one floats and is degraded.
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
    fn a_vm_is_selected_by_name_beginning_pattern_or_uid() {
        for (pattern, expected) in [
            // KubeVirt's name of the VM: not the other one, whose name only begins so.
            ("web", &PODS[..1]),
            ("web-2", &PODS[1..2]),
            ("team-a/web", &PODS[..1]),
            ("virt-launcher-web-x7k2p", &PODS[..1]),
            ("virt-launcher", &PODS[..2]),
            ("we", &PODS[..2]),
            ("team-a/", &PODS[..2]),
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
        assert_eq!(uids(&of("team-a", &["contained", "degraded"])), &PODS[1..2]);
        assert_eq!(uids(&of("team-b", &[])), [""; 0]);
        let empty = |selection: &Selection| {
            let pods = Pods::of(&named());
            selection.empty_namespace(pods.iter()).map(str::to_owned)
        };
        assert_eq!(empty(&of("team-b", &[])).as_deref(), Some("team-b"));
        // Its VMs have other states.
        assert_eq!(empty(&of("team-a", &["leaving"])), None);
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
        assert_eq!(ended.retain(&mut node).map(VmPattern::as_str), Some("db"));
        assert!(node.node.instances.is_empty());
    }

    #[test]
    fn one_word_that_is_no_pattern_is_a_name() {
        assert_eq!(selection(&["web"]).name(), Some("web"));
        assert_eq!(selection(&["web*"]).name(), None);
        assert_eq!(selection(&["web", "db"]).name(), None);
    }
}
