//! The VMs that a command is about: by patterns, by namespace and by state.

use std::collections::BTreeSet;
use std::sync::Arc;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap_complete::engine::ArgValueCandidates;
use stelia_api::State;
use stelia_model::Instance;

use super::condition::order;
use super::failure::Failure;
use super::names::{VmPattern, is_glob, none_on, vms};
use super::node::{Description, former_in_words, former_vms};
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

    /// Whether a state is selected.
    pub(crate) fn has_state(&self, state: &str, degraded: bool) -> bool {
        let is = |one: &String| one == state || (one == DEGRADED && degraded);
        self.states.is_empty() || self.states.iter().any(is)
    }

    /// Whether states are named.
    pub(crate) fn names_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// Whether a pod of these is selected, whatever its state.
    pub(crate) fn has(&self, pod: &Pod, among: &Pods) -> bool {
        let is_named = self.patterns.is_empty() || self.patterns.iter().any(|one| pod.fits(one, among));
        is_named && self.has_namespace(pod)
    }

    fn has_namespace(&self, pod: &Pod) -> bool {
        self.namespace.as_ref().is_none_or(|one| *one == pod.pod_namespace)
    }

    fn selects(&self, vm: &Instance, among: &Pods) -> bool {
        let is_degraded = !vm.degraded.is_empty();
        self.has(&Pod::of(&vm.pod, vm), among) && self.has_state(vm.state.name(), is_degraded)
    }

    /// Keeps the selected instances of a description, of which some may have ended; the rest of it stays.
    pub(crate) fn retain(&self, description: &mut Description) {
        let all = Pods::of(description);
        description.node.instances.retain(|_, vm| self.selects(vm, &all));
    }

    /// The selected ones of [`former_vms`]. They have no state.
    pub(crate) fn former(&self, description: &Description) -> Vec<(Pod, u64)> {
        let pods: Pods = former_vms(description).map(|(pod, _)| pod).collect();
        let is_selected = |(pod, _): &(Pod, u64)| self.states.is_empty() && self.has(pod, &pods);
        former_vms(description).filter(is_selected).collect()
    }
}

/// What a selection means on a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Selected {
    pub selection: Selection,
    /// The node, with all of its VMs.
    pub described: Description,
    /// In the order of a list.
    pub vms: Vec<Arc<Instance>>,
    /// Those that were released or ended and may run on, each with when that was.
    pub former: Vec<(Pod, u64)>,
    /// Of each name and pattern that no VM has or had, what may be meant.
    missing: Vec<String>,
    /// Those of `former` that were asked for by name, which no other VM has.
    pub released: Vec<(Pod, u64)>,
}

impl Selected {
    /// All VMs.
    pub(crate) fn all(described: Description) -> Self {
        let mut vms: Vec<Arc<Instance>> = described.node.instances.values().cloned().collect();
        vms.sort_by_cached_key(|vm| order(vm));
        Self {
            selection: Selection::default(),
            vms,
            former: former_vms(&described).collect(),
            described,
            missing: Vec::new(),
            released: Vec::new(),
        }
    }

    /// # Errors
    /// No VM is in the namespace, or none has or had any of the names and patterns.
    pub(crate) fn of(selection: &Selection, described: Description) -> Result<Self, Failure> {
        let (all, former) = (Pods::of(&described), selection.former(&described));
        let pods = || former.iter().map(|(pod, _)| pod).chain(all.iter());
        if let Some(namespace) = &selection.namespace
            && !pods().any(|pod| selection.has_namespace(pod))
        {
            return Err(Failure::NoSuchInstance(format!(
                "no VM on this node is in namespace {namespace}"
            )));
        }
        let fits = |one: &VmPattern, pod: &Pod| selection.has_namespace(pod) && pod.fits(one, &all);
        let (mut missing, mut released) = (Vec::new(), Vec::new());
        for one in &selection.patterns {
            if all.iter().any(|pod| fits(one, pod)) {
                continue;
            }
            let mut gone = former.iter().filter(|(pod, _)| fits(one, pod)).cloned().peekable();
            if gone.peek().is_none() {
                missing.push(none_on(&described, one.as_str()));
            } else if !is_glob(one.as_str()) {
                released.extend(gone);
            }
        }
        let mut selected = Self::all(described);
        selected.vms.retain(|vm| selection.selects(vm, &all));
        let selected = Self {
            selection: selection.clone(),
            former,
            missing,
            released,
            ..selected
        };
        selected.if_any_is_known()
    }

    /// For a command to which the name of a VM that was released is that of none.
    ///
    /// # Errors
    /// No VM has any of the names and patterns.
    pub(super) fn without_released(mut self) -> Result<Self, Failure> {
        let released = self.released.iter().map(std::slice::from_ref);
        let released = released.filter_map(|one| former_in_words(&self.described, one));
        self.missing.extend(released);
        self.if_any_is_known()
    }

    /// These, unless no given name or pattern is one of them.
    fn if_any_is_known(self) -> Result<Self, Failure> {
        let is_any = self.missing.is_empty() || self.missing.len() < self.selection.patterns.len();
        if is_any || !self.vms.is_empty() {
            return Ok(self);
        }
        Err(Failure::NoSuchInstance(self.missing.join("; ")))
    }

    /// Which were released or ended, and what to do.
    pub(crate) fn former_in_words(&self) -> Option<String> {
        former_in_words(&self.described, &self.former)
    }

    /// The UIDs; `None`: of all.
    pub(crate) fn uids(&self) -> Option<BTreeSet<String>> {
        let uids = self.vms.iter().map(|vm| vm.pod.to_string());
        (!self.selection.is_all()).then(|| uids.collect())
    }

    /// Whether it is one word, which names one VM, and nothing else.
    pub(crate) fn is_name(&self) -> bool {
        let Selection {
            patterns,
            namespace,
            states,
        } = &self.selection;
        matches!(patterns.as_slice(), [one] if !is_glob(one.as_str())) && namespace.is_none() && states.is_empty()
    }

    /// The outcome of a command about these. It fails if a given name matches no VM.
    ///
    /// # Errors
    /// [`Failure::Partial`] with the outcome, or the outcome's own.
    pub(crate) fn with_missing_names(&self, outcome: Result<String, Failure>) -> Result<String, Failure> {
        let (printed, reason) = match outcome {
            _ if self.missing.is_empty() => return outcome,
            Ok(printed) => (printed, None),
            Err(Failure::Partial { printed, reason, .. }) => (printed, Some(reason)),
            Err(failure) => return Err(failure),
        };
        let reasons: Vec<String> = self.missing.iter().cloned().chain(reason).collect();
        let (reason, code) = (reasons.join("; "), 3);
        Err(Failure::Partial { printed, reason, code })
    }
}

#[cfg(test)]
mod tests {
    use stelia_kubelet::PodName;
    use stelia_model::FormerVm;

    use super::*;
    use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
    use crate::tests::fixtures::{says, selection};

    /// The first VM is isolated, the second one waits and is degraded.
    fn named() -> Description {
        let mut node = node();
        let names = ["virt-launcher-web-x7k2p", "virt-launcher-web-2-abcde"];
        for (uid, name) in PODS.iter().zip(names) {
            instance_mut(&mut node, uid).pod_name = PodName::new("team-a", name);
        }
        node
    }

    fn selected(line: &[&str]) -> Result<Selected, Failure> {
        Selected::of(&selection(line), named())
    }

    #[test]
    fn vms_are_selected_by_name_pattern_uid_namespace_and_state_and_come_in_the_order_of_a_list() {
        let both = [PODS[1], PODS[0]];
        for (line, expected) in [
            (&[][..], &both[..]),
            // KubeVirt's name of the VM: not the other one, whose name only begins so.
            (&["web"], &PODS[..1]),
            (&["web-2"], &PODS[1..2]),
            (&["team-a/web"], &PODS[..1]),
            (&["virt-launcher-web-x7k2p"], &PODS[..1]),
            (&["virt-launcher*"], &both),
            (&["team-a/*"], &both),
            (&["*-x7k2p"], &PODS[..1]),
            // KubeVirt's names of both.
            (&["we?*"], &both),
            (&["web-?"], &PODS[1..2]),
            (&["team-?/*"], &both),
            (&[PODS[1]], &PODS[1..2]),
            (&["web", PODS[1]], &both),
            (&["-n", "team-a"], &both),
            (&["-n", "team-a", "--state=isolated"], &PODS[..1]),
            (&["--state=pinned,degraded"], &PODS[1..2]),
            // Its VMs have other states.
            (&["-n", "team-a", "--state=releasing"], &[]),
        ] {
            let selected = selected(line).unwrap();
            let uids: Vec<&str> = selected.vms.iter().map(|vm| vm.pod.as_str()).collect();
            assert_eq!(uids, expected, "{line:?}");
            assert_eq!(selected.uids().is_none(), line.is_empty(), "{line:?}");
        }
        for (line, is_name) in [
            (&["web"][..], true),
            (&[PODS[1]], true),
            (&["web*"], false),
            (&["web", "web-2"], false),
            (&["-n", "team-a", "web"], false),
        ] {
            assert_eq!(selected(line).unwrap().is_name(), is_name, "{line:?}");
        }
        let mut named_like_another = named();
        instance_mut(&mut named_like_another, PODS[0]).pod_name = PodName::new("team-a", PODS[1]);
        let selected = Selected::of(&selection(&[PODS[1]]), named_like_another).unwrap();
        assert_eq!((selected.vms.len(), selected.vms[0].pod.as_str()), (1, PODS[1]));
        // While top runs a VM may end.
        let mut node = named();
        selection(&["db"]).retain(&mut node);
        assert!(node.node.instances.is_empty());
    }

    #[test]
    fn a_name_of_no_vm_is_told_and_the_beginning_of_a_name_is_none() {
        for none in [
            "virt-launcher",
            "virt-launcher-web-x7k2",
            "we",
            "team-a",
            "team-a/",
            "team-a/we",
            &PODS[1][..8],
            "db",
            "db*",
        ] {
            assert_eq!(selected(&[none]).unwrap_err().exit_code(), 3, "{none}");
            // The others are the answer.
            let some = selected(&["web", none]).unwrap();
            assert_eq!(some.vms.len(), 1, "{none}");
            let Err(Failure::Partial {
                printed,
                reason,
                code: 3,
            }) = some.with_missing_names(Ok("answer".to_owned()))
            else {
                panic!("{none}")
            };
            assert!(printed == "answer" && reason.contains(none), "{reason}");
        }
        assert_eq!(selected(&["-n", "team-b"]).unwrap_err().exit_code(), 3);
        let meant = selected(&["we"]).unwrap_err().to_string();
        says(&meant, &["did you mean team-a/virt-launcher-web-2-abcde, "]);
        assert_eq!(
            selected(&["web"]).unwrap().with_missing_names(Ok(String::new())),
            Ok(String::new())
        );
    }

    #[test]
    fn a_vm_that_was_released_is_told_with_its_age() {
        let mut node = named();
        let (uid, one) = node.node.instances.pop_first().unwrap();
        let former = FormerVm {
            pod: uid,
            pod_name: one.pod_name.clone(),
            ended_us: crate::shared::output::now() - 43_000_000,
            ..Default::default()
        };
        node.node.former = vec![former].into();
        let of = |line: &[&str]| Selected::of(&selection(line), node.clone());
        let words = "team-a/virt-launcher-web-x7k2p (43s ago): released or ended, not isolated if still running; \
                     recreate the pod: kubectl delete pod -n team-a virt-launcher-web-x7k2p";
        let failure = of(&["web"]).unwrap().without_released().unwrap_err();
        assert_eq!(failure.exit_code(), 3);
        says(&failure.to_string(), &[words]);
        for line in [&["virt*"][..], &["-n", "team-a"], &[]] {
            says(&of(line).unwrap().former_in_words().unwrap(), &[words]);
        }
        // They have no state.
        assert!(of(&["--state=isolated"]).unwrap().former.is_empty());
    }
}
