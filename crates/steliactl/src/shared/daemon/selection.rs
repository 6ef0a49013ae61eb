//! The VMs that a command is about: by patterns and by namespace.

use std::collections::BTreeSet;
use std::sync::Arc;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use stelia_model::Instance;

use super::condition::order;
use super::failure::Failure;
use super::names::{VmPattern, is_glob, none_on, vms};
use super::node::{Description, former_in_words, former_vms};
use super::pod::{Pod, Pods};

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
}

impl Selection {
    /// Whether every VM is selected.
    pub(crate) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a pod of these is selected.
    pub(crate) fn has(&self, pod: &Pod, among: &Pods) -> bool {
        let is_named = self.patterns.is_empty() || self.patterns.iter().any(|one| pod.fits(one, among));
        is_named && self.has_namespace(pod)
    }

    fn has_namespace(&self, pod: &Pod) -> bool {
        self.namespace.as_ref().is_none_or(|one| *one == pod.pod_namespace)
    }

    /// Keeps the selected instances of a description, of which some may have ended; the rest of it stays.
    pub(crate) fn retain(&self, description: &mut Description) {
        let all = Pods::of(description);
        description
            .node
            .instances
            .retain(|uid, vm| self.has(&Pod::of(uid, vm), &all));
    }

    /// The selected ones of [`former_vms`].
    pub(crate) fn former(&self, description: &Description) -> Vec<(Pod, u64)> {
        let pods: Pods = former_vms(description).map(|(pod, _)| pod).collect();
        former_vms(description)
            .filter(|(pod, _)| self.has(pod, &pods))
            .collect()
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
            released: Vec::new(),
        }
    }

    /// # Errors
    /// No VM is in the namespace, or none has or had one of the names and patterns: with what may be meant.
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
        if !missing.is_empty() {
            return Err(Failure::NoSuchInstance(missing.join("; ")));
        }
        let mut selected = Self::all(described);
        selected.vms.retain(|vm| selection.has(&Pod::of(&vm.pod, vm), &all));
        Ok(Self {
            selection: selection.clone(),
            former,
            released,
            ..selected
        })
    }

    /// For a command to which the name of a VM that was released is that of none.
    ///
    /// # Errors
    /// A name is that of a VM that was released or ended.
    pub(super) fn without_released(self) -> Result<Self, Failure> {
        let released = former_in_words(&self.described, &self.released);
        released.map_or(Ok(self), |words| Err(Failure::NoSuchInstance(words)))
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
        let Selection { patterns, namespace } = &self.selection;
        matches!(patterns.as_slice(), [one] if !is_glob(one.as_str())) && namespace.is_none()
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
    fn vms_are_selected_by_name_pattern_uid_and_namespace_and_come_in_the_order_of_a_list() {
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
            // Nothing is done for the others.
            let failure = selected(&["web", none]).unwrap_err();
            assert!(
                failure.exit_code() == 3 && failure.to_string().contains(none),
                "{failure}"
            );
        }
        assert_eq!(selected(&["-n", "team-b"]).unwrap_err().exit_code(), 3);
        let meant = selected(&["we"]).unwrap_err().to_string();
        says(&meant, &["did you mean team-a/virt-launcher-web-2-abcde, "]);
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
    }
}
