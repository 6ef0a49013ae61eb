//! What is known of the node: the snapshot and the facts derived from it, kept up as parts of it are read again.

mod read_instance;
mod read_node;
mod refused_partitions;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use stelia_cpus::{CpuSet, Topology};
use stelia_decide::entitlement::{Entitlement, is_crowded};
use stelia_decide::{Assessment, Concerned, Derived, Instance, Snapshot, Step, Tree};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::{System, clock};
use stelia_kubelet::{PodName, PodUid};
use stelia_model::record::{Phase, Record};
use stelia_settings::{Policies, Settings};

use super::delayed_condition::DelayedCondition;
use super::kubelet_file::{KubeletRoot, Version};
use super::out_of_date::Dirty;
use super::read_cgroups;
use super::read_limits::LimitFiles;
pub(super) use read_node::NodeReading;
use refused_partitions::Refused;

/// How long a live instance may be without an entry of kubelet's before that counts: kubelet writes in two steps.
const MISSING_ENTRY_DELAY: Duration = Duration::from_secs(1);
/// How long systemd may take to remove an empty scope.
const EMPTY_SCOPE_DELAY: Duration = Duration::from_millis(500);
/// How long an instance's tasks may take to freeze.
const FREEZE_DELAY: Duration = Duration::from_millis(500);

/// What is known of the node.
pub(super) struct Picture {
    pub(super) snapshot: Snapshot,
    pub(super) facts: Derived,
    pub(super) version: Option<Version>,
    pub(super) kubelet: KubeletRoot,
    pub(super) offline: CpuSet,
    pub(super) limit_files: LimitFiles,
    /// What could not be read of the node at the last look.
    pub(super) problems: Vec<String>,
    online: Vec<u8>,
    outside_is_known: bool,
    /// The record of what is withheld from the kernel's workers may have changed, by this program.
    moved_workers: bool,
    /// Units outside were read once: a former daemon may have restricted them.
    looked_outside: bool,
    /// Admitted instances whose scopes are being made.
    pub(super) starting: BTreeSet<PodUid>,
    /// kubelet's cgroups were searched for what a former daemon left in them.
    searched_pods: bool,
    /// Scopes without a record and without a process.
    bare: BTreeSet<CgroupPath>,
    /// kubelet's file has no entry of a live instance.
    gone: DelayedCondition,
    /// A scope has no process.
    empty: DelayedCondition,
    freezing: DelayedCondition,
    /// An instance waits for its vCPUs to be unplugged.
    unplugging: DelayedCondition,
    /// One moment of the monotonic clock, also in microseconds of `CLOCK_MONOTONIC`.
    clock: (Instant, u64),
    /// Instances whose partition was written since they were last read.
    partition_requested: BTreeSet<PodUid>,
    /// Instances whose partition the kernel refused.
    refused: Refused,
    /// Instances of which the last audit looked at the container's limits: the next one looks at the scope's.
    half_audited: BTreeSet<PodUid>,
    /// What concerns the whole node has changed since [`Self::take_node_changed`] was last called.
    node_changed: bool,
}

impl Picture {
    pub(super) fn new(system: &System, settings: &Settings) -> Self {
        let unread = Err("it was not read yet".to_owned());
        let mut snapshot = Snapshot::empty(unread, settings.policies.allocator.source, Topology::default());
        snapshot.safe_partition = read_cgroups::safe_partition(system);
        Self {
            facts: Derived::of(&snapshot, &settings.policies),
            snapshot,
            version: None,
            kubelet: KubeletRoot::new(),
            offline: CpuSet::new(),
            limit_files: LimitFiles::find(system),
            problems: Vec::new(),
            online: Vec::new(),
            outside_is_known: false,
            looked_outside: false,
            moved_workers: false,
            starting: BTreeSet::new(),
            searched_pods: false,
            bare: BTreeSet::new(),
            gone: DelayedCondition::new(MISSING_ENTRY_DELAY),
            empty: DelayedCondition::new(EMPTY_SCOPE_DELAY),
            freezing: DelayedCondition::new(FREEZE_DELAY),
            unplugging: DelayedCondition::new(settings.unplug_timeout),
            clock: (Instant::now(), clock::monotonic_us()),
            partition_requested: BTreeSet::new(),
            refused: Refused::default(),
            half_audited: BTreeSet::new(),
            node_changed: true,
        }
    }

    /// Everything read at once, for a dry run.
    ///
    /// # Errors
    /// What of the node could not be read first. An instance that cannot be read is in [`Snapshot::unreadable`].
    pub(super) fn read(system: &System, settings: &Settings, kubelet: KubeletRoot) -> Result<Self, String> {
        let mut picture = Self {
            kubelet,
            ..Self::new(system, settings)
        };
        let mut dirty = Dirty::default();
        dirty.node();
        dirty.outside = true;
        picture.look_at_node(system, settings, &mut dirty);
        match picture.problems.first() {
            None => Ok(picture),
            Some(problem) => Err(problem.clone()),
        }
    }

    /// Follow a Reload. Whatever of the settings is kept in the snapshot or the facts is replaced here.
    pub(super) fn use_settings(&mut self, settings: &Settings) {
        self.snapshot.source = settings.policies.allocator.source;
        self.unplugging.set_delay(settings.unplug_timeout);
        self.facts = Derived::of(&self.snapshot, &settings.policies);
        self.node_changed = true;
    }

    pub(super) fn take_node_changed(&mut self) -> bool {
        std::mem::take(&mut self.node_changed)
    }

    /// Whether events report every change of the node and its instances.
    pub(super) fn is_watched(&self) -> bool {
        let mut instances = self.snapshot.instances.values();
        self.snapshot.unwatched.is_none() && instances.all(|instance| instance.unwatched.is_none())
    }

    /// The live instance of a pod.
    pub(super) fn find(&self, pod: &PodUid) -> Option<&Instance> {
        self.snapshot.instances.get(pod).filter(|instance| instance.populated)
    }

    fn put(&mut self, policies: &Policies, instance: Instance, dirty: &mut Dirty) {
        let pod = instance.record.pod.clone();
        if let Some(level) = instance.tree.pod() {
            self.snapshot.with_ours_left.remove(&level);
            self.snapshot.half_registered.remove(instance.tree.outer());
        }
        let before = self.snapshot.put(instance);
        self.changed(policies, before.as_ref(), &pod, dirty);
    }

    pub(super) fn remove(&mut self, policies: &Policies, pod: &PodUid, dirty: &mut Dirty) {
        let before = self.snapshot.instances.remove(pod);
        // A container takes its own list along, not what was added to its pod's, nor the record there.
        let container = before.as_ref().filter(|before| before.tree.pod().is_some());
        let container = container.map(|before| before.tree.outer().clone());
        self.snapshot.half_registered.extend(container);
        let level = before.as_ref().and_then(|before| before.pod_level.as_ref());
        let ours_left = level.filter(|level| !level.ours.is_empty());
        let ours_left = ours_left.map(|level| level.path.clone());
        self.snapshot.with_ours_left.extend(ours_left);
        self.changed(policies, before.as_ref(), pod, dirty);
        self.snapshot.siblings.remove(pod);
        self.snapshot.unsettled.remove(pod);
        self.snapshot.unplug_overdue.remove(pod);
        self.snapshot.to_keep.remove(pod);
        let now = Instant::now();
        for condition in self.conditions() {
            condition.update(pod, false, now);
        }
        self.partition_requested.remove(pod);
        self.half_audited.remove(pod);
        self.refused.forget(pod);
        self.refused.end_pauses();
        self.list_abandoned();
    }

    /// Add an admitted container: its CPUs are assigned while its scope is made.
    pub(super) fn admit(&mut self, policies: &Policies, record: Record, pod_name: Option<PodName>, dirty: &mut Dirty) {
        self.starting.insert(record.pod.clone());
        let tree = Tree::of(&record);
        self.put(policies, Instance::admitted(record, pod_name, tree), dirty);
    }

    /// Add a container that was admitted in place.
    pub(super) fn admit_in_place(
        &mut self,
        policies: &Policies,
        record: Record,
        pod_name: Option<PodName>,
        dirty: &mut Dirty,
    ) {
        let tree = Tree::of(&record);
        let instance = Instance {
            populated: true,
            ..Instance::admitted(record, pod_name, tree)
        };
        self.put(policies, instance, dirty);
    }

    /// How often the partition that the kernel refused to an instance was asked for again at an audit.
    pub(super) fn retries(&self, pod: &PodUid) -> u32 {
        self.refused.retries(pod)
    }

    /// Follow a change of an instance's record.
    pub(super) fn follow_record(&mut self, policies: &Policies, before: &Instance, dirty: &mut Dirty) {
        self.changed(policies, Some(before), &before.record.pod, dirty);
    }

    /// Update the facts for one instance that changed, came or went, and mark the others where that concerns them.
    fn changed(&mut self, policies: &Policies, before: Option<&Instance>, pod: &PodUid, dirty: &mut Dirty) {
        let now = self.snapshot.instances.get(pod);
        if self.facts.follow_instance(&self.snapshot, policies, before, now) == Concerned::Everyone {
            dirty.everyone = true;
            self.node_changed |= self.facts.pools().is_some();
        }
    }

    /// Derive what decisions need of one instance, with conditions that count only after a time.
    pub(super) fn assess(&mut self, policies: &Policies, pod: &PodUid, now: Instant) -> Option<Assessment> {
        let instance = self.snapshot.instances.get(pod)?;
        let empty = !instance.populated && !self.starting.contains(pod);
        let inner = instance.inner.as_ref();
        let freezing =
            instance.record.phase == Phase::Leaving && inner.is_some_and(|inner| inner.freeze && !inner.frozen);
        self.empty.update(pod, empty, now);
        self.list_abandoned();
        let does_not_freeze = self.freezing.update(pod, freezing, now);
        if let Some(instance) = self.snapshot.instances.get_mut(pod) {
            instance.does_not_freeze |= does_not_freeze;
        }
        let instance = self.snapshot.instances.get(pod)?;
        let live = instance.populated;
        let assessment = Assessment::of(&self.snapshot, &self.facts, policies, instance);
        // kubelet writes one change as two files: an entry that is gone counts once it stays gone.
        let gone = live && assessment.entitlement == Entitlement::Gone;
        let unsettled = gone && !self.gone.update(pod, true, now);
        if !gone {
            self.gone.update(pod, false, now);
        }
        let changed = set(&mut self.snapshot.unsettled, pod, unsettled)
            | self.follow_unplugging(pod, &assessment.entitlement, now);
        if !changed {
            return Some(assessment);
        }
        let instance = self.snapshot.instances.get(pod)?;
        Some(Assessment::of(&self.snapshot, &self.facts, policies, instance))
    }

    /// Follow an instance that waits for its vCPUs to be unplugged: whether its time is over, and whether a resize of steliad's has ended.
    /// Returns whether one of these has changed.
    fn follow_unplugging(&mut self, pod: &PodUid, entitlement: &Entitlement, now: Instant) -> bool {
        let Some(instance) = self.snapshot.instances.get(pod) else {
            return false;
        };
        let waits = matches!(entitlement, Entitlement::Shrinks(_));
        // When the time is over, the record gets the new entry, and the instance waits no longer. It stays overdue while its vCPUs share
        // CPUs: that is why it is degraded.
        let is_changed = matches!(entitlement, Entitlement::Changed { .. });
        let shares = is_crowded(instance) && instance.record.allocation.is_none();
        let stays = self.snapshot.unplug_overdue.contains(pod) && (is_changed || shares);
        let overdue = self.unplugging.update(pod, instance.populated && (waits || stays), now);
        // A resize of steliad's ends when the VM has left the CPUs, has moved to other CPUs, or has not left them in time.
        let exclusive = &instance.record.exclusive;
        let keeps = self.snapshot.to_keep.get(pod);
        let is_over = overdue || keeps.is_some_and(|keeps| keeps == exclusive || !keeps.is_subset(exclusive));
        let ended = is_over && self.snapshot.to_keep.remove(pod).is_some();
        set(&mut self.snapshot.unplug_overdue, pod, overdue) | ended
    }

    /// Until when an instance waits for its vCPUs to be unplugged, in microseconds of `CLOCK_MONOTONIC`.
    pub(super) fn unplug_deadline_us(&self, pod: &PodUid) -> Option<u64> {
        let (moment, us) = self.clock;
        let time_left = self.unplugging.counts_at(pod)?.saturating_duration_since(moment);
        Some(us.saturating_add(time_left.as_micros().try_into().unwrap_or(u64::MAX)))
    }

    /// The CPUs that an instance is to keep when its vCPUs are unplugged; `None` ends a resize that waits. The time for that begins anew, also
    /// after a resize that was refused.
    pub(super) fn keep(&mut self, pod: &PodUid, cpus: Option<CpuSet>) {
        self.unplugging.update(pod, false, Instant::now());
        self.snapshot.unplug_overdue.remove(pod);
        match cpus {
            Some(cpus) => self.snapshot.to_keep.insert(pod.clone(), cpus),
            None => self.snapshot.to_keep.remove(pod),
        };
    }

    fn conditions(&mut self) -> [&mut DelayedCondition; 4] {
        [
            &mut self.gone,
            &mut self.empty,
            &mut self.freezing,
            &mut self.unplugging,
        ]
    }

    /// Empty scopes that systemd did not remove in time.
    fn list_abandoned(&mut self) {
        let empty = self
            .empty
            .counts
            .iter()
            .filter_map(|pod| self.snapshot.instances.get(pod));
        // A container's own cgroup is the runtime's to remove.
        let empty = empty.filter(|instance| instance.tree.pod().is_none());
        let empty = empty.map(|instance| instance.scope().clone());
        self.snapshot.abandoned = self.bare.iter().cloned().chain(empty).collect();
    }

    /// The step of this subject was applied: nothing is left on that cgroup of kubelet's.
    pub(super) fn cleared(&mut self, subject: &str) {
        let is_it = |step: Step| step.subject() == subject;
        let (pods, containers) = (&mut self.snapshot.with_ours_left, &mut self.snapshot.half_registered);
        pods.retain(|pod| !is_it(Step::SetOurs(pod.clone(), CpuSet::new())));
        containers.retain(|container| !is_it(Step::Unregister(container.clone())));
    }

    pub(super) fn removed(&mut self, scope: &str) {
        self.bare.retain(|known| known.name() != scope);
        self.list_abandoned();
    }

    /// Mark the instances for which a condition begins to count.
    pub(super) fn apply_delayed(&mut self, now: Instant, dirty: &mut Dirty) {
        for pod in self.gone.begins_to_count(now) {
            dirty.plan.insert(pod);
        }
        for pod in self.freezing.begins_to_count(now) {
            dirty.plan.insert(pod);
        }
        for pod in self.unplugging.begins_to_count(now) {
            dirty.plan.insert(pod);
        }
        for pod in self.empty.begins_to_count(now) {
            dirty.again(pod);
            dirty.shared = true;
        }
    }

    /// When the next condition begins to count.
    pub(super) fn next(&self) -> Option<Instant> {
        [&self.gone, &self.empty, &self.freezing, &self.unplugging]
            .into_iter()
            .filter_map(DelayedCondition::next)
            .min()
    }
}

/// Put a pod into a set or take it out. Returns whether the set has changed.
fn set(pods: &mut BTreeSet<PodUid>, pod: &PodUid, is_in: bool) -> bool {
    if is_in {
        pods.insert(pod.clone())
    } else {
        pods.remove(pod)
    }
}
