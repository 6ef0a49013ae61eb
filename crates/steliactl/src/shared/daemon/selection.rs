//! The VMs that a command is about: by patterns, by namespace and by state.

use std::collections::BTreeSet;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap_complete::engine::ArgValueCandidates;
use stelia_api::State;
use stelia_kubelet::PodUid;
use stelia_model::Instance;

use super::failure::Failure;
use super::names::{VmPattern, is_glob, none_among, or_former, vms};
use super::node::{Description, former_vms};
use super::pod::{Pod, Pods};

/// Selects the VMs with reasons of degradation, whatever their state.
const DEGRADED: &str = "degraded";

/// What a state may be called.
fn states() -> PossibleValuesParser {
    PossibleValuesParser::new(State::NAMES.into_iter().chain([DEGRADED]))
}

/// Without anything all VMs are selected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct Selection {
    /// Only these VMs: the namespace/name or name of the pod, the name of a KubeVirt VM, a UID, or a pattern with *, ? or [a-z]. Default:
    /// all
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
    /// Whether every VM is selected.
    pub(crate) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it is one word, which names one VM, and nothing else.
    pub(crate) fn is_name(&self) -> bool {
        matches!(self.patterns.as_slice(), [one] if !is_glob(one.as_str()))
            && self.namespace.is_none()
            && self.states.is_empty()
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

    fn has_namespace(&self, pod: &Pod) -> bool {
        self.namespace.as_ref().is_none_or(|one| *one == pod.pod_namespace)
    }

    /// The namespace that is asked for without patterns, if none of these pods is in it: that is no error, as with kubectl.
    pub(super) fn empty_namespace(&self, pods: &Pods) -> Option<&str> {
        let namespace = self.namespace.as_deref().filter(|_| self.patterns.is_empty())?;
        (!pods.iter().any(|pod| self.has_namespace(pod))).then_some(namespace)
    }

    /// Whether a pod of these is selected, whatever its state.
    pub(crate) fn has(&self, pod: &Pod, among: &Pods) -> bool {
        let is_named = self.patterns.is_empty() || self.patterns.iter().any(|one| pod.fits(one, among));
        is_named && self.has_namespace(pod)
    }

    /// The selected ones of [`former_vms`]. They have no state.
    pub(crate) fn former(&self, description: &Description) -> Vec<(Pod, u64)> {
        let pods: Pods = former_vms(description).map(|(pod, _)| pod).collect();
        let is_selected = |(pod, _): &(Pod, u64)| self.states.is_empty() && self.has(pod, &pods);
        former_vms(description).filter(is_selected).collect()
    }

    fn selects(&self, uid: &PodUid, instance: &Instance, among: &Pods) -> bool {
        let is_degraded = !instance.degraded.is_empty();
        self.has(&Pod::of(uid, instance), among) && self.has_state(instance.state.name(), is_degraded)
    }

    /// Keeps the selected instances of a description, of which some may have ended; the rest of it stays.
    pub(crate) fn retain(&self, description: &mut Description) {
        let all = Pods::of(description);
        let instances = &mut description.node.instances;
        instances.retain(|uid, one| self.selects(uid, one, &all));
    }

    /// The UIDs of the selected instances; `None`: of all.
    ///
    /// # Errors
    /// A pattern fits none.
    pub(crate) fn among(&self, description: &Description) -> Result<Option<BTreeSet<String>>, Failure> {
        if self.is_all() {
            return Ok(None);
        }
        let all = Pods::of(description);
        let former = self.former(description);
        let fits = |one: &VmPattern| {
            let is_former = is_glob(one.as_str()) && former.iter().any(|(pod, _)| pod.fits(one, &all));
            is_former || all.iter().any(|pod| self.has_namespace(pod) && pod.fits(one, &all))
        };
        if let Some(none) = self.patterns.iter().find(|one| !fits(one)) {
            let none = none.as_str();
            return Err(or_former(none_among(none, all.iter()), none, description));
        }
        let instances = description.node.instances.iter();
        let selected = instances.filter(|(uid, one)| self.selects(uid, one, &all));
        Ok(Some(selected.map(|(uid, _)| uid.to_string()).collect()))
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
    fn a_vm_is_selected_by_name_pattern_or_uid_and_by_no_beginning() {
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
            (PODS[1], &PODS[1..2]),
        ] {
            assert_eq!(uids(&selection(&[pattern])), expected, "{pattern}");
        }
        assert_eq!(uids(&selection(&["web", PODS[1]])), &PODS[..2]);
        let mut named_like_another = named();
        instance_mut(&mut named_like_another, PODS[0]).pod_name = PodName::new("team-a", PODS[1]);
        let selected = selection(&[PODS[1]]).among(&named_like_another).unwrap();
        assert_eq!(selected, Some(BTreeSet::from([PODS[1].to_owned()])));
        let refused = |pattern: &str| selection(&[pattern]).among(&named()).unwrap_err();
        for beginning in [
            "virt-launcher",
            "virt-launcher-web-x7k2",
            "we",
            "team-a",
            "team-a/",
            "team-a/we",
            &PODS[1][..8],
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
        let empty = |selection: &Selection| selection.empty_namespace(&Pods::of(&named())).map(str::to_owned);
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
        let mut node = named();
        let (uid, one) = node.node.instances.pop_first().unwrap();
        let former = stelia_model::FormerVm {
            pod: uid,
            pod_name: one.pod_name.clone(),
            ..Default::default()
        };
        node.node.former = vec![former].into();
        let failure = selection(&["web"]).among(&node).unwrap_err();
        assert!(failure.exit_code() == 3 && failure.to_string().contains("released or ended"));
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
