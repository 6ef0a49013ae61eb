//! What kubelet's file says of an instance's CPUs. Two questions are answered apart from each other: which CPUs the instance is to
//! have, by its container's entry ([`Entitlement`]); and which CPUs it must leave, by what its cgroups hold ([`Eviction`]). An
//! instance may have to leave its former CPUs and be given others at the same time.

use stelia_api::ThreadRole;
use stelia_cpus::CpuSet;
use stelia_kubelet::{CpuManagerState, PodUid};
use stelia_model::record::{Record, VcpuThread};

use super::{Derived, Instance, Snapshot, VcpuNow};

/// The entry of an instance's container compared with its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entitlement {
    /// kubelet's state cannot be used: everything stays as it is.
    Unknown,
    /// The entry is that of the record.
    Same,
    /// The container has no entry any more. The VM keeps the CPUs that are in no other entry.
    Gone,
    /// Other containers of the pod use every CPU of this new entry: the record stays as it is.
    Unusable(CpuSet),
    /// The container has other CPUs now (a resize in place).
    Changed {
        /// The container's entry.
        entry: CpuSet,
        /// The CPUs of the entry that are this container's own.
        own: CpuSet,
    },
    /// The container has fewer CPUs now than the VM has vCPUs, and no pod was given those that are gone. The VM keeps them until enough
    /// vCPUs are unplugged, or until the time for that is over ([`Snapshot::unplug_overdue`]). Then the entitlement is `Changed`; where
    /// steliad chose the CPUs and time is over, it is `Same`.
    Shrinks(Shrink),
}

/// A VM is to have fewer CPUs than it has vCPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shrink {
    /// The container's entry.
    pub entry: CpuSet,
    /// How many CPUs of its own the VM has.
    pub from: usize,
    /// How many of them remain.
    pub to: usize,
}

/// CPUs that are another pod's and that an instance must leave before the new owner runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// The CPUs to leave.
    pub cpus: CpuSet,
    /// The pod that they are given to.
    pub to: PodUid,
    /// They are the CPUs that the instance is to have, so it floats until kubelet says otherwise. Else it floats until its
    /// cgroups are off them, and then moves to the CPUs that it is to have.
    pub lasts: bool,
}

/// The entry of a record's container.
pub(super) fn entry<'a>(state: &'a CpuManagerState, record: &Record) -> Option<&'a CpuSet> {
    state.entries.get(&record.pod)?.get(&record.container)
}

/// The same where kubelet's file can be used.
pub fn entry_of<'a>(kubelet: &'a Result<CpuManagerState, String>, record: &Record) -> Option<&'a CpuSet> {
    entry(kubelet.as_ref().ok()?, record)
}

/// The CPUs of these that are in another pod's entry, and that pod.
fn assigned_to_other(
    state: &CpuManagerState,
    facts: &Derived,
    record: &Record,
    cpus: &CpuSet,
) -> Option<(CpuSet, PodUid)> {
    let owner = facts.other_owner(&record.pod, cpus)?;
    let containers = state.entries.get(owner).into_iter().flat_map(|own| own.values());
    let named: CpuSet = containers
        .chain(state.pod_entries.get(owner))
        .flat_map(CpuSet::iter)
        .collect();
    Some((named.intersection(cpus), owner.clone()))
}

/// The CPUs of the entry at registration that another container of the pod used, and that kubelet's file still gives to one.
fn used_by_other_containers(state: &CpuManagerState, record: &Record) -> CpuSet {
    let at_registration = record.entry.difference(&record.own());
    at_registration.intersection(&cpus_of_other_containers(state, record))
}

/// The CPUs in the entries of the pod's other containers.
fn cpus_of_other_containers(state: &CpuManagerState, record: &Record) -> CpuSet {
    let entries = state.entries.get(&record.pod).into_iter().flatten();
    let others = entries.filter(|(name, _)| **name != record.container);
    others.flat_map(|(_, cpus)| cpus.iter()).collect()
}

/// The instance's vCPUs that have a thread.
fn live_vcpus(instance: &Instance) -> usize {
    let threads = instance.record.vcpus.iter().zip(&instance.vcpus);
    let is_live =
        |(thread, now): &(&VcpuThread, &Option<VcpuNow>)| matches!(thread.role, ThreadRole::Vcpu(_)) && now.is_some();
    threads.filter(is_live).count()
}

/// Whether the VM has more vCPUs than CPUs of its own.
pub fn is_crowded(instance: &Instance) -> bool {
    live_vcpus(instance) > instance.record.exclusive.len()
}

/// Whether the VM has more vCPUs than this number of CPUs, so that it waits until vCPUs are unplugged before it leaves CPUs.
pub fn waits_for_vcpus(instance: &Instance, cpus: usize) -> bool {
    instance.record.phase.has_vcpus() && live_vcpus(instance) > cpus
}

/// Which CPUs an instance is to have where steliad chose them: fewer, once its vCPUs fit; if they are not unplugged in time, all.
fn of_steliad(snapshot: &Snapshot, instance: &Instance) -> Entitlement {
    let record = &instance.record;
    let keeps = snapshot.to_keep.get(&record.pod);
    match keeps.filter(|own| own.is_subset(&record.exclusive) && **own != record.exclusive) {
        None => Entitlement::Same,
        Some(own) if !waits_for_vcpus(instance, own.len()) => Entitlement::Changed {
            entry: own.clone(),
            own: own.clone(),
        },
        Some(_) if snapshot.unplug_overdue.contains(&record.pod) => Entitlement::Same,
        Some(own) => Entitlement::Shrinks(Shrink {
            entry: own.clone(),
            from: record.exclusive.len(),
            to: own.len(),
        }),
    }
}

/// Whether the instance is to wait for its vCPUs to be unplugged before it leaves CPUs: the entry has some of its CPUs and no others, the VM
/// has more vCPUs than these, each with a CPU of its own now, and no other pod and no other container of its pod has a CPU that it would keep.
///
/// In the container's own cgroup nothing waits: the runtime soon writes the smaller set to its `cpuset.cpus`, which the partition must be
/// within.
fn shrink(
    snapshot: &Snapshot,
    state: &CpuManagerState,
    facts: &Derived,
    instance: &Instance,
    entry: &CpuSet,
    own: &CpuSet,
) -> Option<Shrink> {
    let record = &instance.record;
    let now = record.own();
    let is_less = own.is_subset(&now) && *own != now;
    if !is_less
        || !instance.behaviour().waits_for_unplugging()
        || !record.phase.has_vcpus()
        || snapshot.unplug_overdue.contains(&record.pod)
    {
        return None;
    }
    let (from, to) = (
        record.exclusive.len(),
        record.clone().with_own(own.clone()).exclusive.len(),
    );
    let given_up = now.difference(own);
    let is_free = facts.other_owner(&record.pod, &given_up).is_none()
        && cpus_of_other_containers(state, record)
            .intersection(&given_up)
            .is_empty();
    (waits_for_vcpus(instance, to) && live_vcpus(instance) <= from && is_free).then(|| Shrink {
        entry: entry.clone(),
        from,
        to,
    })
}

/// Which CPUs an instance is to have.
pub(crate) fn entitlement(snapshot: &Snapshot, facts: &Derived, instance: &Instance) -> Entitlement {
    let Ok(state) = &snapshot.kubelet else {
        return Entitlement::Unknown;
    };
    let record = &instance.record;
    if record.allocation.is_some() {
        return of_steliad(snapshot, instance);
    }
    match entry(state, record) {
        // Assigned before kubelet's policy became `none`: the VM keeps its CPUs.
        None if snapshot.source.keeps_cpus_without_entry() => Entitlement::Same,
        None => Entitlement::Gone,
        Some(entry) if *entry == record.entry => Entitlement::Same,
        Some(entry) => {
            let own = entry.difference(&used_by_other_containers(state, record));
            if own.is_empty() {
                return Entitlement::Unusable(entry.clone());
            }
            if let Some(shrink) = shrink(snapshot, state, facts, instance, entry, &own) {
                return Entitlement::Shrinks(shrink);
            }
            Entitlement::Changed {
                entry: entry.clone(),
                own,
            }
        }
    }
}

/// Which CPUs an instance must leave; `None` as well while kubelet's file cannot be used.
pub(crate) fn eviction(
    snapshot: &Snapshot,
    facts: &Derived,
    instance: &Instance,
    entitlement: &Entitlement,
) -> Option<Eviction> {
    let state = snapshot.kubelet.as_ref().ok()?;
    let record = &instance.record;
    let anothers = |cpus: &CpuSet| {
        if record.allocation.is_some() {
            // steliad chose the CPUs; if kubelet's static policy gave them to another pod, kubelet's file counts, and after it
            // the other pod's instance, which keeps them.
            let assigned = assigned_to_other(state, facts, record, cpus);
            return assigned.or_else(|| facts.assigned_to(&record.pod, cpus));
        }
        // CPUs that are in this entry and in another pod's are kubelet's contradiction: neither loses them.
        let outside = entry(state, record).map_or_else(|| cpus.clone(), |entry| cpus.difference(entry));
        assigned_to_other(state, facts, record, &outside)
    };
    let next = match entitlement {
        Entitlement::Changed { own, .. } => Some(record.clone().with_own(own.clone())),
        _ => None,
    };
    let next = next.as_ref().unwrap_or(record);
    if let Some((cpus, to)) = anothers(&next.own()) {
        return Some(Eviction { cpus, to, lasts: true });
    }
    let held = instance.held();
    // One that only gives CPUs up does so without leaving its partition.
    if next.exclusive.is_subset(&held) {
        return None;
    }
    let (cpus, to) = anothers(&held)?;
    Some(Eviction { cpus, to, lasts: false })
}

/// Whether an instance must leave CPUs.
pub(crate) fn must_leave(snapshot: &Snapshot, facts: &Derived, instance: &Instance) -> bool {
    let entitlement = entitlement(snapshot, facts, instance);
    eviction(snapshot, facts, instance, &entitlement).is_some()
}

#[cfg(test)]
mod tests {
    use stelia_koordinator::allocator::CpuSource;
    use stelia_model::record::Phase;
    use stelia_model::record::testing::record;

    use super::*;
    use crate::steps::tests::isolated;
    use crate::testing::{instance, snapshot};

    const OTHER: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

    /// The entitlement of an instance whose partition has CPUs 2-3, by kubelet's state with these entries: (pod, container, CPUs).
    fn says(entries: &[(&str, &str, &str)]) -> (Entitlement, Option<Eviction>) {
        let mut snapshot = isolated();
        let state = snapshot.kubelet.as_mut().unwrap();
        state.entries.clear();
        for (pod, container, cpus) in entries {
            let pod = PodUid::parse(pod).unwrap();
            let containers = state.entries.entry(pod).or_default();
            containers.insert((*container).to_owned(), cpus.parse().unwrap());
        }
        let instance = snapshot.first();
        let facts = snapshot.facts();
        let entitled = entitlement(&snapshot, &facts, instance);
        let evicted = eviction(&snapshot, &facts, instance, &entitled);
        (entitled, evicted)
    }

    #[test]
    fn every_word_of_kubelet_is_understood() {
        let own = record().pod.to_string();
        let cpus = |text: &str| text.parse::<CpuSet>().unwrap();
        let changed = |entry: &str| Entitlement::Changed {
            entry: cpus(entry),
            own: cpus(entry),
        };
        let leaves = |text: &str, lasts: bool| {
            let to = PodUid::parse(OTHER).unwrap();
            let cpus = cpus(text);
            Some(Eviction { cpus, to, lasts })
        };
        assert_eq!(says(&[(&own, "instance", "2-3")]), (Entitlement::Same, None));
        assert_eq!(says(&[]), (Entitlement::Gone, None));
        assert_eq!(says(&[(&own, "instance", "2-5")]), (changed("2-5"), None));
        assert_eq!(says(&[(OTHER, "x", "3-4")]), (Entitlement::Gone, leaves("3", true)));
        // The former CPUs are another pod's, and others are this one's.
        let moved = [(own.as_str(), "instance", "4-5"), (OTHER, "x", "2-3")];
        assert_eq!(says(&moved), (changed("4-5"), leaves("2-3", false)));
        let grown = [(own.as_str(), "instance", "2,4-5"), (OTHER, "x", "3")];
        assert_eq!(says(&grown), (changed("2,4-5"), leaves("3", false)));
        // It gives CPUs up and needs no others: that is done without floating.
        let shrunk = [(own.as_str(), "instance", "2"), (OTHER, "x", "3-4")];
        assert_eq!(says(&shrunk), (changed("2"), None));
        // A contradiction is not acted on.
        let both = [(own.as_str(), "instance", "2-3"), (OTHER, "x", "3-4")];
        assert_eq!(says(&both), (Entitlement::Same, None));
    }

    #[test]
    fn a_vm_waits_for_its_vcpus_to_be_unplugged_but_not_in_place() {
        let mut snapshot = isolated();
        let fewer: CpuSet = "2".parse().unwrap();
        let state = snapshot.kubelet.as_mut().unwrap();
        let entry = [("instance".to_owned(), fewer.clone())].into();
        state.entries = [(record().pod, entry)].into();
        let of = |snapshot: &Snapshot| entitlement(snapshot, &snapshot.facts(), snapshot.first());
        assert!(matches!(of(&snapshot), Entitlement::Shrinks(_)), "{:?}", of(&snapshot));
        snapshot.first_mut().record.home = stelia_model::record::Home::InPlace;
        let at_once = Entitlement::Changed {
            entry: fewer.clone(),
            own: fewer,
        };
        assert_eq!(of(&snapshot), at_once);
    }

    /// One with CPUs 2-3 that steliad chose.
    fn allocated() -> Snapshot {
        let mut snapshot = isolated();
        snapshot.first_mut().record.allocation = stelia_model::record::testing::allocated().allocation;
        snapshot.kubelet.as_mut().unwrap().entries.clear();
        snapshot
    }

    #[test]
    fn of_cpus_that_steliad_chose_those_to_keep_remain_once_the_vcpus_fit() {
        let cpus = |text: &str| text.parse::<CpuSet>().unwrap();
        let of = |keeps: &str, change: fn(&mut Snapshot)| {
            let mut snapshot = allocated();
            snapshot.to_keep.insert(record().pod, cpus(keeps));
            change(&mut snapshot);
            entitlement(&snapshot, &snapshot.facts(), snapshot.first())
        };
        let shrinks = Entitlement::Shrinks(Shrink {
            entry: cpus("2"),
            from: 2,
            to: 1,
        });
        let changed = Entitlement::Changed {
            entry: cpus("2"),
            own: cpus("2"),
        };
        assert_eq!(of("2", |_| {}), shrinks);
        assert_eq!(of("2", |one| one.first_mut().vcpus[1] = None), changed);
        assert_eq!(of("2", |one| one.first_mut().record.phase = Phase::Floating), changed);
        let overdue = |one: &mut Snapshot| one.unplug_overdue.extend([record().pod]);
        assert_eq!(of("2", overdue), Entitlement::Same);
        assert_eq!(of("2-3", |_| {}), Entitlement::Same);
        assert_eq!(of("2,5", |_| {}), Entitlement::Same);
        assert_eq!(of("2", |one| one.to_keep.clear()), Entitlement::Same);
    }

    #[test]
    fn cpus_that_steliad_chose_are_left_to_whom_kubelet_gave_them() {
        let evicted = |snapshot: &Snapshot| {
            let instance = snapshot.instances.get(&record().pod).unwrap();
            let eviction = eviction(snapshot, &snapshot.facts(), instance, &Entitlement::Same)?;
            Some((eviction.cpus.to_string(), eviction.to.to_string(), eviction.lasts))
        };
        let by_other = |list: &str| Some((list.to_owned(), OTHER.to_owned(), true));
        let mut snapshot = allocated();
        assert_eq!(evicted(&snapshot), None);
        let state = snapshot.kubelet.as_mut().unwrap();
        let containers = state.entries.entry(PodUid::parse(OTHER).unwrap()).or_default();
        containers.insert("x".into(), "3-4".parse().unwrap());
        assert_eq!(evicted(&snapshot), by_other("3"));
        snapshot.kubelet = Err("it is damaged".into());
        assert_eq!(evicted(&snapshot), None);
        // kubelet gave them before its policy became "none", and has no entry any more.
        let mut snapshot = allocated();
        snapshot.source = CpuSource::Steliad;
        let mut other = instance();
        other.record.pod = PodUid::parse(OTHER).unwrap();
        other.record.exclusive = "2".parse().unwrap();
        snapshot.put(other.clone());
        assert_eq!(evicted(&snapshot), by_other("2"));
        other.populated = false;
        snapshot.put(other.clone());
        assert_eq!(evicted(&snapshot), None);
        (other.populated, other.record.exclusive) = (true, "4".parse().unwrap());
        snapshot.put(other);
        assert_eq!(evicted(&snapshot), None);
    }

    #[test]
    fn what_other_containers_of_the_pod_use_stays_theirs() {
        let mut snapshot = snapshot(vec![instance()]);
        let record = &mut snapshot.first_mut().record;
        record.entry = "2-4".parse().unwrap();
        let pod = record.pod.clone();
        let state = snapshot.kubelet.as_mut().unwrap();
        let containers = state.entries.entry(pod).or_default();
        containers.insert("instance".into(), "2-5".parse().unwrap());
        containers.insert("sidecar".into(), "4".parse().unwrap());
        let Entitlement::Changed { own, .. } = entitlement(&snapshot, &snapshot.facts(), snapshot.first()) else {
            panic!("not changed")
        };
        assert_eq!(own.to_string(), "2-3,5");
        // None is left of this one for the container alone.
        let four: CpuSet = "4".parse().unwrap();
        let pod = snapshot.first().record.pod.clone();
        let state = snapshot.kubelet.as_mut().unwrap();
        state.entries.insert(
            pod.clone(),
            [("instance", &four), ("sidecar", &four)]
                .map(|(name, cpus)| (name.to_owned(), cpus.clone()))
                .into(),
        );
        assert_eq!(
            entitlement(&snapshot, &snapshot.facts(), snapshot.first()),
            Entitlement::Unusable(four.clone())
        );
        // The other container ended, and kubelet's file gives the CPU to this one alone.
        let state = snapshot.kubelet.as_mut().unwrap();
        state
            .entries
            .insert(pod, [("instance".to_owned(), four.clone())].into());
        let alone = Entitlement::Changed {
            entry: four.clone(),
            own: four,
        };
        assert_eq!(entitlement(&snapshot, &snapshot.facts(), snapshot.first()), alone);
    }
}
