//! Reading again what of the node may be out of date.

use std::collections::BTreeSet;

use stelia_allocator::CpuSource;
use stelia_cpus::Topology;
use stelia_kubelet::{CpuManagerState, PodUid};
use stelia_node::System;
use stelia_node::cgroup::{CgroupError, CgroupPath, File};
use stelia_settings::{Policies, Settings};

use super::Picture;
use crate::decide::drift::Finding;
use crate::decide::workers::Workers;
use crate::decide::{Facts, Instance, Outside, Slice, drift};
use crate::engine::dirty::Dirty;
use crate::engine::observe::{self, Adopted};
use crate::engine::{in_place, outside};

/// What a look at the node found.
#[derive(Debug, Default)]
pub(in crate::engine) struct NodeLook {
    /// All instances are to be planned for.
    pub(in crate::engine) everyone: bool,
    /// kubelet's former state, if it differs from the present one.
    pub(in crate::engine) kubelet_before: Option<Result<CpuManagerState, String>>,
    /// Drift in the slice and in units outside.
    pub(in crate::engine) findings: Vec<Finding>,
    pub(in crate::engine) found: Vec<PodUid>,
}

impl Picture {
    /// Read what of the node may be out of date.
    pub(in crate::engine) fn look_at_node(
        &mut self,
        system: &System,
        settings: &Settings,
        dirty: &mut Dirty,
    ) -> NodeLook {
        self.problems.clear();
        let mut node = NodeLook::default();
        let policies = &settings.policies;
        let mut anew = false;
        if std::mem::take(&mut dirty.topology) {
            match self.look_at_topology(system) {
                Ok(changed) => anew |= changed,
                Err(error) => self.problems.push(error.to_string()),
            }
        }
        if std::mem::take(&mut dirty.kubelet) {
            let source = policies.allocator.source;
            node.kubelet_before = self.look_at_kubelet(source);
            anew |= node.kubelet_before.is_some();
            dirty.leftover |= node.kubelet_before.is_some();
            if node.kubelet_before.is_some() {
                self.refused.end_pauses();
            }
        }
        if std::mem::take(&mut dirty.scopes) {
            match observe::scopes(&*system.cgroups) {
                Ok(names) => self.compare_scopes(names, dirty),
                Err(error) => self.problems.push(error.to_string()),
            }
        }
        if !self.searched_pods {
            match self.search_pods(system, policies) {
                Ok(found) => {
                    self.searched_pods = true;
                    node.everyone |= !found.is_empty();
                    node.found.extend(found);
                    dirty.slice = true;
                    dirty.shared = true;
                }
                Err(error) => self.problems.push(error.to_string()),
            }
        }
        let unknown = std::mem::take(&mut dirty.unknown);
        if !unknown.is_empty() {
            let found = self.look_at_unknown(system, policies, &unknown);
            node.everyone |= !found.is_empty();
            node.found.extend(found);
            dirty.slice = true;
            dirty.shared = true;
        }
        if std::mem::take(&mut dirty.slice) {
            match in_place::kubepods(&*system.cgroups) {
                Ok(level) => {
                    let finding = drift::of_kubepods(self.snapshot.kubepods.as_ref(), level.as_ref());
                    node.findings.extend(finding);
                    self.snapshot.kubepods = level;
                }
                Err(error) => self.problems.push(error.to_string()),
            }
            match observe::slice(&*system.cgroups) {
                Ok(slice) => {
                    let workers = self.look_at_workers(system);
                    self.moved_workers = false;
                    let slice = Slice { workers, ..slice };
                    node.findings.extend(drift::of_slice(&self.snapshot.slice, &slice));
                    self.snapshot.slice = slice;
                }
                Err(error) => self.problems.push(error.to_string()),
            }
            dirty.shared = true;
        }
        // CPUs left over from kubelet's static policy change only when a pod came or went.
        if std::mem::take(&mut dirty.leftover) {
            match observe::leftovers(&*system.cgroups, &self.snapshot) {
                Ok(leftover) => {
                    anew |= leftover != self.snapshot.leftover;
                    self.snapshot.leftover = leftover;
                }
                Err(error) => self.problems.push(error.to_string()),
            }
        }
        if anew {
            self.facts = Facts::of(&self.snapshot, policies);
            self.node_changed = true;
            node.everyone = true;
        }
        if std::mem::take(&mut dirty.outside) {
            self.look_outside(system, policies, &mut node);
            dirty.shared = true;
        }
        node
    }

    /// The kernel's unbound workers. Where no instance depends on them they are not read again. If they cannot be read
    /// they are taken to run anywhere: the step planned for that fails with the reason, and is retried.
    fn look_at_workers(&self, system: &System) -> Option<Workers> {
        let known = self.snapshot.slice.workers.clone();
        let closed = self.facts.totals().closed_to_workers();
        if closed.is_empty() && known.as_ref().is_some_and(|known| known.taken.is_empty()) {
            return known;
        }
        // Only this program writes that record.
        let known_taken = known
            .as_ref()
            .map(|known| known.taken.clone())
            .filter(|_| !self.moved_workers);
        let unread = || Workers {
            cpus: closed.clone(),
            ..known.unwrap_or_default()
        };
        outside::workers(system, closed, known_taken).unwrap_or_else(|_| Some(unread()))
    }

    fn look_at_topology(&mut self, system: &System) -> Result<bool, CgroupError> {
        let online = Topology::online_text(&system.sys).map_err(|cause| observe::topology_error(system, cause))?;
        if online == self.online {
            return Ok(false);
        }
        self.snapshot.topology = observe::topology(system)?;
        self.offline = Topology::offline(&system.sys);
        self.online = online;
        Ok(true)
    }

    /// Read kubelet's file where its version changed; its content before, where that differs.
    fn look_at_kubelet(&mut self, source: CpuSource) -> Option<Result<CpuManagerState, String>> {
        // Before the file itself: a write in between gives another version, which the next look sees.
        let version = self.kubelet.version();
        if version.is_some() && version == self.version {
            return None;
        }
        let now = self.kubelet.state(source);
        self.version = version;
        if now == self.snapshot.kubelet {
            return None;
        }
        Some(std::mem::replace(&mut self.snapshot.kubelet, now))
    }

    /// Have kubelet's file read again even if its version is the same.
    pub(in crate::engine) fn forget_version(&mut self) {
        self.version = None;
    }

    fn look_outside(&mut self, system: &System, policies: &Policies, node: &mut NodeLook) {
        match outside::outside(&*system.cgroups, policies.allocator.source) {
            Ok((outside, gone)) => {
                let findings = drift::of_outside(&self.snapshot.outside, &outside);
                node.findings.extend(findings);
                (self.snapshot.outside, self.snapshot.outside_gone) = (outside, gone);
                (self.outside_is_known, self.looked_outside) = (true, true);
            }
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    /// Before an instance is contained the units outside must be known.
    pub(in crate::engine) fn needs_outside(&self) -> bool {
        !self.outside_is_known && self.facts.has_contained()
    }

    /// The record of what is taken from the kernel's workers is to be read again.
    pub(in crate::engine) fn moved_workers(&mut self) {
        self.moved_workers = true;
    }

    /// Units outside are read again before they matter.
    pub(in crate::engine) fn forget_outside(&mut self) {
        self.outside_is_known = false;
    }

    /// Whether an audit must read the units outside.
    pub(in crate::engine) fn outside_matters(&self) -> bool {
        let saved = |outside: &Outside| outside.saved.is_some();
        let was = self.snapshot.outside.values().any(saved) || !self.snapshot.outside_gone.is_empty();
        self.facts.has_contained() || was || !self.looked_outside
    }

    /// Find what a former daemon left in kubelet's cgroups: instances in place, and CPUs added to pods' lists.
    fn search_pods(&mut self, system: &System, policies: &Policies) -> Result<Vec<PodUid>, CgroupError> {
        let cgroups = &*system.cgroups;
        let in_place::Found {
            containers,
            half_registered,
            pods,
        } = in_place::find(cgroups)?;
        self.snapshot.half_registered = half_registered;
        let mut found = Vec::new();
        for origin in containers {
            match observe::adopt_in_place(system, &self.limit_files, &origin) {
                Ok(Some(instance)) => {
                    found.push(instance.record.pod.clone());
                    self.put(policies, *instance);
                }
                Ok(None) => {}
                Err(reason) => {
                    let list = stelia_node::cgroup::set(cgroups, &origin, File::CpusExclusive)?;
                    self.snapshot.left_in_place.union_with(&list);
                    self.snapshot.unreadable.push((origin.as_str().to_owned(), reason));
                }
            }
        }
        let of = |instance: &Instance| instance.pod_level.as_ref().map(|level| level.path.clone());
        let used: BTreeSet<CgroupPath> = self.snapshot.instances.values().filter_map(of).collect();
        let left = |pod: &CgroupPath| {
            let mut unreadable = self.snapshot.unreadable.iter();
            !used.contains(pod) && !unreadable.any(|(name, _)| name.starts_with(pod.as_str()))
        };
        self.snapshot.unclaimed = pods.into_iter().filter(left).collect();
        for pod in &found {
            self.read_siblings(system, pod);
        }
        Ok(found)
    }

    fn compare_scopes(&mut self, names: Vec<String>, dirty: &mut Dirty) {
        let here: BTreeSet<PodUid> = names.iter().filter_map(|name| PodUid::from_scope(name)).collect();
        for pod in &here {
            if !self.snapshot.instances.contains_key(pod) {
                dirty.unknown.insert(pod.clone());
            }
        }
        let in_slice = self
            .snapshot
            .instances
            .values()
            .filter(|instance| !instance.is_in_place());
        let gone = in_slice
            .map(|instance| &instance.record.pod)
            .filter(|pod| !here.contains(*pod));
        let gone: Vec<PodUid> = gone.filter(|pod| !self.starting.contains(*pod)).cloned().collect();
        gone.into_iter().for_each(|pod| dirty.changed(pod));
        self.bare
            .retain(|scope| PodUid::from_scope(scope.name()).is_some_and(|pod| here.contains(&pod)));
        let unreadable = self.snapshot.unreadable.iter();
        let lost = unreadable.filter_map(|(name, _)| PodUid::from_scope(name));
        dirty.unknown.extend(lost);
    }

    /// Read scopes that are not known instances; returns the pods of those that are instances.
    fn look_at_unknown(&mut self, system: &System, policies: &Policies, unknown: &BTreeSet<PodUid>) -> Vec<PodUid> {
        let mut found = Vec::new();
        let had = self.snapshot.unreadable.len();
        let names: BTreeSet<String> = unknown.iter().map(PodUid::scope).collect();
        self.snapshot.unreadable.retain(|(name, _)| !names.contains(name));
        let mut changed = self.snapshot.unreadable.len() != had;
        for pod in unknown {
            if self.starting.contains(pod) {
                continue;
            }
            let name = pod.scope();
            let scope = CgroupPath::slice().child(&name);
            self.bare.remove(&scope);
            match observe::adopt(system, &self.limit_files, &name) {
                Ok(Adopted::Instance(instance)) => {
                    self.put(policies, *instance);
                    found.push(pod.clone());
                }
                Ok(Adopted::Unreadable(reason)) => {
                    self.snapshot.unreadable.push((name, reason));
                    changed = true;
                }
                Ok(Adopted::Abandoned(scope)) => drop(self.bare.insert(scope)),
                Ok(Adopted::Nothing) => {}
                Err(error) => self.problems.push(error.to_string()),
            }
        }
        if changed {
            self.snapshot.unreadable.sort();
            match observe::left_alone(&*system.cgroups, &self.snapshot.unreadable) {
                Ok(left_alone) => self.snapshot.left_alone = left_alone,
                Err(error) => self.problems.push(error.to_string()),
            }
            self.facts = Facts::of(&self.snapshot, policies);
            self.node_changed = true;
        }
        for pod in &found {
            self.read_siblings(system, pod);
        }
        self.list_abandoned();
        found
    }
}
