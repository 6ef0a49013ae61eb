//! Reading again what of the node may be out of date.

use std::collections::BTreeSet;

use stelia_cpus::{CpuSet, Topology};
use stelia_decide::drift_findings::Finding;
use stelia_decide::workers::Workers;
use stelia_decide::{
    Derived, Instance, LiveState, Outside, Slice, Snapshot, claim_without_record, drift_findings, is_in_force,
    validated,
};
use stelia_kernel::System;
use stelia_kernel::cgroup::{CgroupError, CgroupPath, Cgroups, File};
use stelia_koordinator::allocator::CpuSource;
use stelia_kubelet::{ContainerCgroup, CpuManagerState, PodUid};
use stelia_settings::{Policies, Settings};

use super::Picture;
use crate::engine::out_of_date::Dirty;
use crate::engine::read_cgroups::{self, Adopted};
use crate::engine::{in_place, outside_units};

/// What a look at the node found.
#[derive(Debug, Default)]
pub(in crate::engine) struct NodeReading {
    /// kubelet's former state, if it differs from the present one.
    pub(in crate::engine) kubelet_before: Option<Result<CpuManagerState, String>>,
    /// Drift in the slice and in units outside.
    pub(in crate::engine) findings: Vec<Finding>,
    /// Instances found in scopes and on pods' cgroups, of a former daemon.
    pub(in crate::engine) found: Vec<PodUid>,
    /// Whether the slice was read, and the units outside where they were to be: what this program wrote there is known.
    pub(in crate::engine) read_shared: bool,
}

impl Picture {
    /// Read what of the node may be out of date.
    pub(in crate::engine) fn look_at_node(
        &mut self,
        system: &System,
        settings: &Settings,
        dirty: &mut Dirty,
    ) -> NodeReading {
        self.problems.clear();
        let policies = &settings.policies;
        let mut node = NodeReading::default();
        // Whether what is derived of all instances is out of date.
        let mut derive_again = false;
        if std::mem::take(&mut dirty.topology) {
            let changed = self.look_at_topology(system);
            derive_again |= self.noted(changed).unwrap_or(false);
        }
        if std::mem::take(&mut dirty.kubelet) {
            node.kubelet_before = self.look_at_kubelet(policies.allocator.source);
        }
        if node.kubelet_before.is_some() {
            derive_again = true;
            dirty.leftover = true;
            self.refused.end_pauses();
        }
        // With an audit, or a change of kubelet's file, what could not be used of a container may have ended, or be used now.
        let may_differ = dirty.scopes || node.kubelet_before.is_some();
        if std::mem::take(&mut dirty.scopes)
            && let Some(names) = self.noted(read_cgroups::scopes(&*system.cgroups))
        {
            self.compare_scopes(names, dirty);
        }
        let unknown = std::mem::take(&mut dirty.unknown);
        if !unknown.is_empty() {
            node.found = self.look_at_unknown(system, policies, &unknown, dirty);
            dirty.slice = true;
        }
        if !self.searched_pods || may_differ && self.is_unusable_on_pods() {
            let searched = self.search_pods(system, policies, dirty);
            if let Some((found, changed)) = self.noted(searched) {
                dirty.slice |= !self.searched_pods || changed || !found.is_empty();
                derive_again |= changed;
                self.searched_pods = true;
                node.found.extend(found);
            }
        }
        dirty.everyone |= !node.found.is_empty();
        node.read_shared = dirty.slice;
        dirty.shared |= dirty.slice || dirty.outside;
        if std::mem::take(&mut dirty.slice) {
            self.look_at_slice(system, &mut node);
        }
        // CPUs left over from kubelet's static policy change only when a pod came or went.
        if std::mem::take(&mut dirty.leftover)
            && let Some(leftover) = self.noted(read_cgroups::leftovers(&*system.cgroups, &self.snapshot))
        {
            derive_again |= leftover != self.snapshot.leftover;
            self.snapshot.leftover = leftover;
        }
        if derive_again {
            self.facts = Derived::of(&self.snapshot, policies);
            self.node_changed = true;
            dirty.everyone = true;
        }
        if std::mem::take(&mut dirty.outside) {
            self.look_outside(system, policies, &mut node);
        }
        node
    }

    /// What was read; `None` with the problem noted where it could not be.
    fn noted<T>(&mut self, read: Result<T, CgroupError>) -> Option<T> {
        read.map_err(|error| self.problems.push(error.to_string())).ok()
    }

    /// Read the lists above all instances.
    fn look_at_slice(&mut self, system: &System, node: &mut NodeReading) {
        if let Some(level) = self.noted(in_place::kubepods(&*system.cgroups)) {
            let finding = drift_findings::of_kubepods(self.snapshot.kubepods.as_ref(), level.as_ref());
            node.findings.extend(finding);
            self.snapshot.kubepods = level;
        }
        if let Some(slice) = self.noted(read_cgroups::slice(&*system.cgroups)) {
            let workers = self.look_at_workers(system);
            self.moved_workers = false;
            let slice = Slice { workers, ..slice };
            let findings = drift_findings::of_slice(&self.snapshot.slice, &slice);
            node.findings.extend(findings);
            self.snapshot.slice = slice;
        } else {
            node.read_shared = false;
        }
    }

    /// The kernel's unbound workers. Where no instance depends on them they are not read again. If they cannot be read
    /// they are assumed to run anywhere: the step planned for that fails with the reason, and is retried.
    fn look_at_workers(&self, system: &System) -> Option<Workers> {
        let known = self.snapshot.slice.workers.clone();
        let closed = self.facts.closed_to_workers();
        if closed.is_empty() && known.as_ref().is_some_and(|known| known.withheld.is_empty()) {
            return known;
        }
        // Only this program writes that record.
        let known_withheld = known
            .as_ref()
            .map(|known| known.withheld.clone())
            .filter(|_| !self.moved_workers);
        let unread = || Workers {
            cpus: closed.clone(),
            ..known.unwrap_or_default()
        };
        outside_units::workers(system, closed, known_withheld).unwrap_or_else(|_| Some(unread()))
    }

    fn look_at_topology(&mut self, system: &System) -> Result<bool, CgroupError> {
        let online = Topology::online_text(&system.sys).map_err(|cause| read_cgroups::topology_error(system, cause))?;
        if online == self.online {
            return Ok(false);
        }
        self.snapshot.topology = read_cgroups::topology(system)?;
        self.offline = Topology::offline(&system.sys);
        // If the list changed while the topology was read, the topology may not match it, so the next look at it reads both again.
        let now = Topology::online_text(&system.sys).map_err(|cause| read_cgroups::topology_error(system, cause))?;
        self.online = if now == online { online } else { Vec::new() };
        Ok(true)
    }

    /// Read kubelet's file where its version changed; its content before, where that differs.
    fn look_at_kubelet(&mut self, source: CpuSource) -> Option<Result<CpuManagerState, String>> {
        // Before the file itself: a write in between gives another version, which the next look sees.
        let version = self.kubelet.version(source);
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

    fn look_outside(&mut self, system: &System, policies: &Policies, node: &mut NodeReading) {
        let read = outside_units::outside(&*system.cgroups, policies.allocator.source);
        if let Some((outside, gone)) = self.noted(read) {
            let findings = drift_findings::of_outside(&self.snapshot.outside, &outside);
            node.findings.extend(findings);
            (self.snapshot.outside, self.snapshot.outside_gone) = (outside, gone);
            (self.outside_is_known, self.looked_outside) = (true, true);
        } else {
            node.read_shared = false;
        }
    }

    /// Before an instance is pinned the units outside must be known.
    pub(in crate::engine) fn needs_outside(&self) -> bool {
        !self.outside_is_known && self.facts.has_pinned()
    }

    /// The record of what is withheld from the kernel's workers is to be read again.
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
        self.facts.has_pinned() || was || !self.looked_outside
    }

    /// Find what a former daemon left on kubelet's cgroups: records of instances in place, and CPUs added to pods' lists. Returns the
    /// pods of the instances, and whether anything else is known now that was not.
    fn search_pods(
        &mut self,
        system: &System,
        policies: &Policies,
        dirty: &mut Dirty,
    ) -> Result<(Vec<PodUid>, bool), CgroupError> {
        let cgroups = &*system.cgroups;
        let in_place::FormerState {
            containers,
            half_registered,
            pods,
        } = in_place::find(cgroups)?;
        let (mut found, mut unreadable, mut left) = (Vec::new(), Vec::new(), CpuSet::new());
        let is_unknown = |container: &CgroupPath| {
            let mut instances = self.snapshot.instances.values();
            !instances.any(|known| known.tree.outer() == container)
        };
        let unknown = containers.into_iter().filter(is_unknown);
        let mut unknown: Vec<_> = unknown
            .map(|container| {
                (
                    read_cgroups::read_in_place(system, &self.limit_files, &container),
                    container,
                )
            })
            .collect();
        unknown.sort_by_key(|(read, _)| !matches!(read, Ok(Some((instance, known))) if is_in_force(instance, known)));
        for (read, container) in unknown {
            let adopted = read.and_then(|read| read.map(|read| self.adopt_in_place(read)).transpose());
            match adopted {
                Ok(Some(instance)) => {
                    found.push(instance.record.pod.clone());
                    self.put(policies, instance, dirty);
                }
                Ok(None) => {}
                Err(reason) => {
                    left.union_with(&left_in_place(cgroups, &self.snapshot, &container)?);
                    unreadable.push((container.as_str().to_owned(), reason));
                }
            }
        }
        let instances = self.snapshot.instances.values();
        let used: BTreeSet<CgroupPath> = instances.filter_map(|instance| instance.tree.pod()).collect();
        let is_left = |pod: &CgroupPath| {
            let mut unreadable = unreadable.iter();
            !used.contains(pod) && !unreadable.any(|(name, _)| name.starts_with(pod.as_str()))
        };
        let with_ours_left: BTreeSet<CgroupPath> = pods.into_iter().filter(is_left).collect();
        for pod in &found {
            self.read_siblings(system, pod);
        }
        let snapshot = &mut self.snapshot;
        let (scopes, was): (Vec<_>, Vec<_>) = std::mem::take(&mut snapshot.unreadable)
            .into_iter()
            .partition(|(name, _)| !name.starts_with('/'));
        let changed = (&was, &snapshot.left_in_place) != (&unreadable, &left)
            || !with_ours_left.is_subset(&snapshot.with_ours_left)
            || !half_registered.is_subset(&snapshot.half_registered);
        snapshot.unreadable = scopes.into_iter().chain(unreadable).collect();
        snapshot.unreadable.sort();
        snapshot.left_in_place = left;
        snapshot.with_ours_left.extend(with_ours_left);
        snapshot.half_registered.extend(half_registered);
        Ok((found, changed))
    }

    /// The instance as far as its record is believed.
    fn adopt_in_place(&self, (instance, known): (Instance, LiveState)) -> Result<Instance, String> {
        if self.snapshot.instances.contains_key(&instance.record.pod) {
            return Err(format!("pod {} has another instance", instance.record.pod));
        }
        validated(&self.snapshot, instance, &known)
    }

    /// Whether something of a container could not be used.
    fn is_unusable_on_pods(&self) -> bool {
        self.snapshot.unreadable.iter().any(|(name, _)| name.starts_with('/'))
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
            .filter(|instance| instance.tree.pod().is_none());
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
    fn look_at_unknown(
        &mut self,
        system: &System,
        policies: &Policies,
        unknown: &BTreeSet<PodUid>,
        dirty: &mut Dirty,
    ) -> Vec<PodUid> {
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
            match read_cgroups::adopt(system, &self.snapshot, &self.limit_files, &name) {
                Ok(Adopted::Instance(instance)) => {
                    self.put(policies, *instance, dirty);
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
            let left_alone = read_cgroups::left_alone(&*system.cgroups, &self.snapshot.unreadable);
            if let Some(left_alone) = self.noted(left_alone) {
                self.snapshot.left_alone = left_alone;
            }
            self.facts = Derived::of(&self.snapshot, policies);
            self.node_changed = true;
        }
        for pod in &found {
            self.read_siblings(system, pod);
        }
        self.list_abandoned();
        found
    }
}

/// What stays in the lists above a container whose record cannot be used.
fn left_in_place(cgroups: &dyn Cgroups, snapshot: &Snapshot, container: &CgroupPath) -> Result<CpuSet, CgroupError> {
    let Some(known) = ContainerCgroup::parse(container.as_str()) else {
        return Ok(CpuSet::new());
    };
    let read = || -> Result<CpuSet, CgroupError> {
        let list = stelia_kernel::cgroup::read_cpus(cgroups, container, File::CpusExclusive)?;
        let in_force = in_place::in_force_of_container(cgroups, container)?;
        Ok(claim_without_record(snapshot, &known.pod, &list, &in_force))
    };
    match read() {
        Err(error) if error.is_gone() => Ok(CpuSet::new()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::{fs, thread};

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use stelia_testnode::{Kernel, Model, topology};

    use super::*;

    #[test]
    fn a_topology_that_changed_while_it_was_read_is_read_again() {
        // given: CPU 7 goes offline after the list was read and before the topology is
        let directory = tempfile::tempdir().unwrap();
        let model = Model::node(&topology(2, 2, 2), directory.path(), Kernel::V6_12).unwrap();
        let (system, settings) = (model.system(), Settings::default());
        let list = system.sys.join("devices/system/cpu/online");
        let (fifo, without_7) = (list.with_extension("fifo"), list.with_extension("new"));
        fs::write(&without_7, "0-6\n").unwrap();
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        fs::rename(&fifo, &list).unwrap();
        let change = thread::spawn({
            let list = list.clone();
            move || {
                // Opened once the list is being read, whose text is then written.
                let mut reader = fs::OpenOptions::new().write(true).open(&list).unwrap();
                fs::rename(&without_7, &list).unwrap();
                reader.write_all(b"0-7\n").unwrap();
            }
        });
        let mut picture = Picture::new(&system, &settings);
        let look = |picture: &mut Picture| {
            let mut dirty = Dirty::default();
            dirty.topology = true;
            picture.look_at_node(&system, &settings, &mut dirty);
            assert_eq!(picture.problems, [""; 0]);
            picture.snapshot.topology.online().to_string()
        };
        assert_eq!(look(&mut picture), "0-6");
        change.join().unwrap();
        // when: it is back, so the list is the one that was read first
        fs::write(&list, "0-7\n").unwrap();
        // then
        assert_eq!(look(&mut picture), "0-7");
    }
}
