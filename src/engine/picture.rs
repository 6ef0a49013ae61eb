//! What is known of the node, what of it may be out of date, and the reading anew of just that.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use stelia_allocator::CpuSource;
use stelia_cpus::{CpuSet, Topology};
use stelia_kubelet::{CpuManagerState, PodUid};
use stelia_node::System;
use stelia_node::cgroup::{CgroupError, CgroupPath, File};
use stelia_record::{Phase, Record};
use stelia_settings::{Partition, Policies, Settings};

use super::dirty::{Dirty, Limits, Stale};
use super::home::KubeletRoot;
use super::lasting::Lasting;
use super::limits::{KnownLimits, Side};
use super::observe::{self, Adopted, Version};
use super::watch::Watcher;
use super::{container, siblings};
use crate::decide::drift::Finding;
use crate::decide::entitlement::Entitlement;
use crate::decide::workers::Workers;
use crate::decide::{
    Assessment, Facts, Instance, Slice, Snapshot, Tree, drift, limits_are_carried, pod_pool, too_much_memory,
};

/// How long kubelet may have no entry for a live instance before that is said.
const SETTLE: Duration = Duration::from_secs(1);
/// How long systemd has for removing an empty scope.
const EMPTY: Duration = Duration::from_millis(500);
/// How long an instance's tasks have for standing still.
const FREEZE: Duration = Duration::from_millis(500);

/// What a look at the node's own facts found.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// It concerns everybody.
    pub(super) everyone: bool,
    /// What kubelet said before, where it says something else now.
    pub(super) kubelet_before: Option<Result<CpuManagerState, String>>,
    /// What somebody else changed.
    pub(super) findings: Vec<Finding>,
    /// What could not be read.
    pub(super) problems: Vec<String>,
    /// Instances that were found.
    pub(super) found: Vec<PodUid>,
}

/// What a look at one instance found.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// It concerns others too.
    pub(super) everyone: bool,
    /// As it was left, where somebody else changed it, and what.
    pub(super) drifted: Option<(Box<Instance>, Vec<Finding>)>,
    /// It is gone.
    pub(super) gone: bool,
}

/// What is known.
pub(super) struct Picture {
    pub(super) snapshot: Snapshot,
    pub(super) facts: Facts,
    pub(super) version: Option<Version>,
    /// Where it is read.
    pub(super) kubelet: KubeletRoot,
    pub(super) offline: CpuSet,
    online: Vec<u8>,
    outside_is_known: bool,
    /// This program wrote down anew what is taken from the kernel's workers, or tried to.
    moved_workers: bool,
    /// What there is outside was read once: a former daemon may have restricted it.
    looked_outside: bool,
    /// Admitted, and their scopes are being made.
    pub(super) starting: BTreeSet<PodUid>,
    /// Scopes without a record in which nobody is.
    bare: BTreeSet<CgroupPath>,
    gone: Lasting,
    empty: Lasting,
    freezing: Lasting,
    /// Instances that were last asked to become a partition.
    asked: BTreeSet<PodUid>,
    /// Instances of which the last audit looked at the container's limits: the next one looks at the scope's.
    half_audited: BTreeSet<PodUid>,
    /// What is everybody's is not what it was when that was last asked.
    news: bool,
}

impl Picture {
    /// Nothing is known yet.
    pub(super) fn new(system: &System, settings: &Settings) -> Self {
        let unread = Err("it was not read yet".to_owned());
        let mut snapshot = observe::empty(unread, settings.policies.allocator.source, Topology::default());
        snapshot.safe_partition = observe::safe_partition(system);
        Self {
            facts: Facts::of(&snapshot, &settings.policies),
            snapshot,
            version: None,
            kubelet: KubeletRoot::new(),
            offline: CpuSet::new(),
            online: Vec::new(),
            outside_is_known: false,
            looked_outside: false,
            moved_workers: false,
            starting: BTreeSet::new(),
            bare: BTreeSet::new(),
            gone: Lasting::new(SETTLE),
            empty: Lasting::new(EMPTY),
            freezing: Lasting::new(FREEZE),
            asked: BTreeSet::new(),
            half_audited: BTreeSet::new(),
            news: true,
        }
    }

    /// Decisions depend on other settings now.
    pub(super) fn use_settings(&mut self, settings: &Settings) {
        self.snapshot.source = settings.policies.allocator.source;
        self.facts = Facts::of(&self.snapshot, &settings.policies);
        self.news = true;
    }

    /// Whether what is everybody's has changed since this was last asked.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// The live instance of a pod.
    pub(super) fn find(&self, pod: &PodUid) -> Option<&Instance> {
        self.snapshot.instances.get(pod).filter(|instance| instance.populated)
    }

    /// Read what of the node may be out of date.
    pub(super) fn look_at_node(&mut self, system: &System, settings: &Settings, dirty: &mut Dirty) -> Node {
        let mut node = Node::default();
        let policies = &settings.policies;
        let mut anew = false;
        if std::mem::take(&mut dirty.topology) {
            match self.look_at_topology(system) {
                Ok(changed) => anew |= changed,
                Err(error) => node.problems.push(error.to_string()),
            }
        }
        if std::mem::take(&mut dirty.kubelet) {
            let source = policies.allocator.source;
            node.kubelet_before = self.look_at_kubelet(source);
            anew |= node.kubelet_before.is_some();
            dirty.leftover |= node.kubelet_before.is_some();
        }
        if std::mem::take(&mut dirty.scopes) {
            match observe::scopes(&*system.cgroups) {
                Ok(names) => self.compare_scopes(names, dirty),
                Err(error) => node.problems.push(error.to_string()),
            }
        }
        let unknown = std::mem::take(&mut dirty.unknown);
        if !unknown.is_empty() {
            node.found = self.look_at_unknown(system, policies, &unknown, &mut node.problems);
            node.everyone |= !node.found.is_empty();
            dirty.slice = true;
            dirty.shared = true;
        }
        if std::mem::take(&mut dirty.slice) {
            match observe::slice(&*system.cgroups) {
                Ok(slice) => {
                    let workers = self.look_at_workers(system);
                    self.moved_workers = false;
                    let slice = Slice { workers, ..slice };
                    node.findings.extend(drift::of_slice(&self.snapshot.slice, &slice));
                    self.snapshot.slice = slice;
                }
                Err(error) => node.problems.push(error.to_string()),
            }
            dirty.shared = true;
        }
        // Left-over CPUs are looked for where they count, and only when somebody may have come or gone.
        if std::mem::take(&mut dirty.leftover) {
            match observe::leftovers(&*system.cgroups, &self.snapshot) {
                Ok(leftover) => {
                    anew |= leftover != self.snapshot.leftover;
                    self.snapshot.leftover = leftover;
                }
                Err(error) => node.problems.push(error.to_string()),
            }
        }
        if anew {
            self.facts = Facts::of(&self.snapshot, policies);
            self.news = true;
            node.everyone = true;
        }
        if std::mem::take(&mut dirty.outside) {
            self.look_outside(system, policies, &mut node);
            dirty.shared = true;
        }
        node
    }

    /// The kernel's unbound workers. Where nobody depends on them they are as they were. Where they cannot be read they may run
    /// anywhere: what is to be done about that fails with the reason, and is tried again.
    fn look_at_workers(&self, system: &System) -> Option<Workers> {
        let known = self.snapshot.slice.workers.clone();
        let closed = self.facts.totals().closed_to_workers();
        if closed.is_empty() && known.as_ref().is_some_and(|known| known.taken.is_empty()) {
            return known;
        }
        // Nobody else writes that down.
        let known_taken = known
            .as_ref()
            .map(|known| known.taken.clone())
            .filter(|_| !self.moved_workers);
        let unread = || Workers {
            cpus: closed.clone(),
            ..known.unwrap_or_default()
        };
        observe::workers(system, closed, known_taken).unwrap_or_else(|_| Some(unread()))
    }

    fn look_at_topology(&mut self, system: &System) -> Result<bool, CgroupError> {
        let online = Topology::online_text(&system.sys).map_err(|cause| CgroupError {
            operation: format!("read the CPU topology below {}", system.sys.display()),
            cause,
        })?;
        if online == self.online {
            return Ok(false);
        }
        self.snapshot.topology = observe::topology(system)?;
        self.offline = Topology::offline(&system.sys);
        self.online = online;
        Ok(true)
    }

    /// kubelet's file, where it is another than the one that was read; what it said before.
    fn look_at_kubelet(&mut self, source: CpuSource) -> Option<Result<CpuManagerState, String>> {
        // Before the file itself: what is written meanwhile is younger than that, and seen at the next look.
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

    /// kubelet's file is read whatever its version says.
    pub(super) fn forget_version(&mut self) {
        self.version = None;
    }

    fn look_outside(&mut self, system: &System, policies: &Policies, node: &mut Node) {
        match observe::outside(&*system.cgroups, policies.allocator.source) {
            Ok((outside, gone)) => {
                let findings = drift::of_outside(&self.snapshot.outside, &outside);
                node.findings.extend(findings);
                (self.snapshot.outside, self.snapshot.outside_gone) = (outside, gone);
                (self.outside_is_known, self.looked_outside) = (true, true);
            }
            Err(error) => node.problems.push(error.to_string()),
        }
    }

    /// Before somebody is contained it must be known what there is outside; else it is nobody's business.
    pub(super) fn needs_outside(&self) -> bool {
        !self.outside_is_known && self.facts.has_contained()
    }

    /// What is taken from the kernel's workers is read anew.
    pub(super) fn moved_workers(&mut self) {
        self.moved_workers = true;
    }

    /// It is read anew before it counts.
    pub(super) fn forget_outside(&mut self) {
        self.outside_is_known = false;
    }

    /// What there is outside is looked at by every audit where it matters.
    pub(super) fn outside_matters(&self) -> bool {
        let saved = |outside: &crate::decide::Outside| outside.saved.is_some();
        let was = self.snapshot.outside.values().any(saved) || !self.snapshot.outside_gone.is_empty();
        self.facts.has_contained() || was || !self.looked_outside
    }

    fn compare_scopes(&mut self, names: Vec<String>, dirty: &mut Dirty) {
        let here: BTreeSet<PodUid> = names.iter().filter_map(|name| PodUid::from_scope(name)).collect();
        for pod in &here {
            if !self.snapshot.instances.contains_key(pod) {
                dirty.unknown.insert(pod.clone());
            }
        }
        let gone = self.snapshot.instances.keys().filter(|pod| !here.contains(*pod));
        let gone: Vec<PodUid> = gone.filter(|pod| !self.starting.contains(*pod)).cloned().collect();
        gone.into_iter().for_each(|pod| dirty.changed(pod));
        self.bare
            .retain(|scope| PodUid::from_scope(scope.name()).is_some_and(|pod| here.contains(&pod)));
        let unreadable = self.snapshot.unreadable.iter();
        let lost = unreadable.filter_map(|(name, _)| PodUid::from_scope(name));
        dirty.unknown.extend(lost);
    }

    /// Read scopes that nobody knows; the pods of those that are instances.
    fn look_at_unknown(
        &mut self,
        system: &System,
        policies: &Policies,
        unknown: &BTreeSet<PodUid>,
        problems: &mut Vec<String>,
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
            match observe::adopt(system, &name) {
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
                Err(error) => problems.push(error.to_string()),
            }
        }
        if changed {
            self.snapshot.unreadable.sort();
            match observe::left_alone(&*system.cgroups, &self.snapshot.unreadable) {
                Ok(left_alone) => self.snapshot.left_alone = left_alone,
                Err(error) => problems.push(error.to_string()),
            }
            self.facts = Facts::of(&self.snapshot, policies);
            self.news = true;
        }
        for pod in &found {
            self.read_siblings(system, pod);
        }
        self.list_abandoned();
        found
    }

    fn put(&mut self, policies: &Policies, instance: Instance) -> bool {
        let pod = instance.record.pod.clone();
        let before = self.snapshot.put(instance);
        let now = self.snapshot.instances.get(&pod);
        let mut facts = std::mem::take(&mut self.facts);
        let others = facts.replace(&self.snapshot, policies, before.as_ref(), now);
        self.news |= others && facts.pools().is_some();
        self.facts = facts;
        others
    }

    /// Take an instance out; whether that concerns others.
    pub(super) fn remove(&mut self, policies: &Policies, pod: &PodUid) -> bool {
        let before = self.snapshot.instances.remove(pod);
        let mut facts = std::mem::take(&mut self.facts);
        let others = facts.replace(&self.snapshot, policies, before.as_ref(), None);
        self.news |= others && facts.pools().is_some();
        self.facts = facts;
        self.snapshot.siblings.remove(pod);
        self.snapshot.unsettled.remove(pod);
        let now = Instant::now();
        for lasting in [&mut self.gone, &mut self.empty, &mut self.freezing] {
            lasting.is(pod, false, now);
        }
        self.asked.remove(pod);
        self.half_audited.remove(pod);
        self.list_abandoned();
        others
    }

    /// A container was admitted: nobody else gets its CPUs while its scope is made.
    pub(super) fn admit(&mut self, policies: &Policies, record: Record) -> bool {
        let scope = CgroupPath::slice().child(&record.pod.scope());
        self.starting.insert(record.pod.clone());
        self.put(policies, Instance::admitted(record, Tree::in_scope(scope)))
    }

    /// The record of an instance is another now; whether that concerns others.
    pub(super) fn record(&mut self, policies: &Policies, before: &Instance) -> bool {
        let now = self.snapshot.instances.get(&before.record.pod);
        let mut facts = std::mem::take(&mut self.facts);
        let others = facts.replace(&self.snapshot, policies, Some(before), now);
        self.news |= others && facts.pools().is_some();
        self.facts = facts;
        others
    }

    /// Read an instance anew: so much of it.
    ///
    /// # Errors
    /// It cannot be read, which is no proof that it is gone.
    pub(super) fn look_at(
        &mut self,
        system: &System,
        policies: &Policies,
        watcher: &mut Watcher,
        pod: &PodUid,
        stale: Stale,
    ) -> Result<Look, CgroupError> {
        let Some(known) = self.snapshot.instances.get(pod) else {
            return Ok(Look::default());
        };
        if self.starting.contains(pod) {
            return Ok(Look::default());
        }
        let leaves = known.record.phase == Phase::Leaving;
        let (record, tree) = (known.record.clone(), known.tree.clone());
        let limits = self.known_limits(pod, stale.limits);
        let mut now = match observe::instance(system, record, tree, leaves, limits) {
            Ok(now) => now,
            Err(error) if error.is_gone() => {
                watcher.forget(pod);
                let everyone = self.remove(policies, pod);
                return Ok(Look {
                    everyone,
                    gone: true,
                    drifted: None,
                });
            }
            Err(error) => return Err(error),
        };
        let float = now.inner.as_ref().map(|_| now.tree.float().as_str());
        let float = float.map(|float| system.cgroup_root.join(float.trim_start_matches('/')));
        let watched = watcher.instance(pod, &self.watched(system, &now));
        let limits = watcher.limits(pod, &self.limited(system, &now));
        now.unwatched = watched.and(watcher.float(pod, float)).and(limits).err();
        let asked = self.asked.remove(pod);
        let Some(known) = self.snapshot.instances.get(pod) else {
            return Ok(Look::default());
        };
        now.refusals = refusals(known, &now, asked);
        now.does_not_freeze = known.does_not_freeze;
        let findings = if stale.ours {
            Vec::new()
        } else {
            drift::of_instance(known, &now)
        };
        let drifted = (!findings.is_empty()).then(|| (Box::new(known.clone()), findings));
        let everyone = self.put(policies, now);
        self.read_siblings(system, pod);
        Ok(Look {
            everyone,
            drifted,
            gone: false,
        })
    }

    /// Read nothing of an instance but float's CPUs; as it was left and what differs, unless that is this program's doing.
    pub(super) fn look_at_float(
        &mut self,
        system: &System,
        pod: &PodUid,
        ours: bool,
        dirty: &mut Dirty,
    ) -> Option<(Box<Instance>, Vec<Finding>)> {
        let instance = self.snapshot.instances.get_mut(pod)?;
        let path = instance.tree.float().clone();
        let Ok(now) = stelia_node::cgroup::set(&*system.cgroups, &path, File::Cpus) else {
            dirty.changed(pod.clone());
            return None;
        };
        let float = instance.inner.as_ref().and_then(|inner| inner.float.as_ref())?;
        if float.cpus == now {
            return None;
        }
        let before = (!ours).then(|| Box::new(instance.clone()));
        let float = instance.inner.as_mut().and_then(|inner| inner.float.as_mut())?;
        float.cpus = now;
        let before = before?;
        let findings = drift::of_instance(&before, instance);
        Some((before, findings))
    }

    /// The limits of an instance that need not be read now; `None` where all are to be.
    fn known_limits(&mut self, pod: &PodUid, stale: Limits) -> Option<KnownLimits> {
        let known = self.snapshot.instances.get(pod)?;
        // What has to wait for memory to be given up, and what nothing tells of, is looked at whenever there is an occasion.
        let untold = known.unwatched.is_some() || too_much_memory(known).is_some();
        let everything = !limits_are_carried(known) || stale == Limits::All || stale == Limits::Untold && untold;
        if everything {
            self.half_audited.remove(pod);
            return None;
        }
        let but = match stale {
            Limits::Untold if self.half_audited.remove(pod) => Some(Side::Scope),
            Limits::Untold => {
                self.half_audited.insert(pod.clone());
                Some(Side::Origin)
            }
            _ => None,
        };
        Some(KnownLimits {
            scope: known.scope_limits.clone(),
            origin: known.origin_limits.clone(),
            memory_held: known.memory_held,
            but,
        })
    }

    /// The directories of the cgroups whose limits are an instance's. Not kubepods', which all share.
    fn limited(&self, system: &System, instance: &Instance) -> Vec<PathBuf> {
        let directory = |cgroup: &CgroupPath| system.cgroup_root.join(cgroup.as_str().trim_start_matches('/'));
        let mut of_container = stelia_node::containers::levels(&instance.record.origin);
        of_container.extend(of_container.last().and_then(CgroupPath::parent));
        of_container.push(instance.scope().clone());
        of_container.iter().map(directory).collect()
    }

    /// What tells of an instance's changes: its death, and the directories that only this program writes in.
    fn watched(&self, system: &System, instance: &Instance) -> Vec<PathBuf> {
        let directory = |cgroup: &CgroupPath| system.cgroup_root.join(cgroup.as_str().trim_start_matches('/'));
        let mut paths = vec![directory(instance.scope()).join(File::Events.name())];
        if instance.inner.is_some() {
            paths.push(directory(instance.tree.vcpu()));
        }
        if instance.record.phase == Phase::Leaving {
            paths.push(directory(instance.tree.inner()).join(File::Events.name()));
        }
        paths
    }

    /// A partition was asked for.
    pub(super) fn asked(&mut self, pod: &PodUid) {
        self.asked.insert(pod.clone());
    }

    fn read_siblings(&mut self, system: &System, pod: &PodUid) {
        let Some(instance) = self.snapshot.instances.get(pod) else {
            return;
        };
        let state = self.snapshot.kubelet.as_ref();
        if state.is_ok_and(|state| pod_pool::is_open(state, &instance.record)) {
            let siblings = siblings::of(system, &instance.record);
            self.snapshot.siblings.insert(pod.clone(), siblings);
        } else {
            self.snapshot.siblings.remove(pod);
        }
    }

    /// Read the containers of every pod that has CPUs of its own and does not tell yet which of them its containers share.
    pub(super) fn read_all_siblings(&mut self, system: &System) {
        let Ok(state) = &self.snapshot.kubelet else { return };
        let open = |instance: &&Instance| pod_pool::is_open(state, &instance.record);
        let pods = self.snapshot.instances.values().filter(open);
        let pods: Vec<PodUid> = pods.map(|instance| instance.record.pod.clone()).collect();
        for pod in pods {
            self.read_siblings(system, &pod);
        }
    }

    /// What is derived of one instance now, with what counts only once it has lasted.
    pub(super) fn assess(&mut self, policies: &Policies, pod: &PodUid, now: Instant) -> Option<Assessment> {
        let instance = self.snapshot.instances.get(pod)?;
        let empty = !instance.populated && !self.starting.contains(pod);
        let inner = instance.inner.as_ref();
        let freezing =
            instance.record.phase == Phase::Leaving && inner.is_some_and(|inner| inner.freeze && !inner.frozen);
        self.empty.is(pod, empty, now);
        self.list_abandoned();
        let does_not_freeze = self.freezing.is(pod, freezing, now);
        if let Some(instance) = self.snapshot.instances.get_mut(pod) {
            instance.does_not_freeze |= does_not_freeze;
        }
        let instance = self.snapshot.instances.get(pod)?;
        let live = instance.populated;
        let assessment = Assessment::of(&self.snapshot, &self.facts, policies, instance);
        // kubelet writes one change as two files: an entry that is gone counts once it stays gone.
        let gone = live && assessment.entitlement == Entitlement::Gone;
        let unsettled = gone && !self.gone.is(pod, true, now);
        if !gone {
            self.gone.is(pod, false, now);
        }
        let was = self.snapshot.unsettled.contains(pod);
        if unsettled != was {
            if unsettled {
                self.snapshot.unsettled.insert(pod.clone());
            } else {
                self.snapshot.unsettled.remove(pod);
            }
            let instance = self.snapshot.instances.get(pod)?;
            return Some(Assessment::of(&self.snapshot, &self.facts, policies, instance));
        }
        Some(assessment)
    }

    /// Scopes in which nobody is, and that systemd does not remove.
    fn list_abandoned(&mut self) {
        let empty = self
            .empty
            .counts
            .iter()
            .filter_map(|pod| self.snapshot.instances.get(pod));
        let empty = empty.map(|instance| instance.scope().clone());
        self.snapshot.abandoned = self.bare.iter().cloned().chain(empty).collect();
    }

    /// An empty scope was removed.
    pub(super) fn removed(&mut self, scope: &str) {
        self.bare.retain(|known| known.name() != scope);
        self.list_abandoned();
    }

    /// What has lasted now: those instances are to be looked at.
    pub(super) fn ripen(&mut self, now: Instant, dirty: &mut Dirty) {
        for pod in self.gone.ripe(now) {
            dirty.plan.insert(pod);
        }
        for pod in self.freezing.ripe(now) {
            dirty.plan.insert(pod);
        }
        for pod in self.empty.ripe(now) {
            dirty.again(pod);
            dirty.shared = true;
        }
    }

    /// When something has lasted next.
    pub(super) fn next(&self) -> Option<Instant> {
        [&self.gone, &self.empty, &self.freezing]
            .into_iter()
            .filter_map(Lasting::next)
            .min()
    }
}

/// How often in a row the kernel gave no partition; `asked`: it was asked since it was last looked at.
fn refusals(known: &Instance, now: &Instance, asked: bool) -> u32 {
    let record = &now.record;
    let wants = record.phase == Phase::Attaching && record.partition != Partition::Member;
    if !wants || now.vcpu().is_some_and(|vcpu| vcpu.partition == record.partition.name()) {
        return 0;
    }
    known.refusals + u32::from(asked)
}
