//! What kubelet's file says of the CPUs an instance was registered with. The file decides; the record says what the cgroups
//! were built for.

use stelia_allocator::CpuSource;
use stelia_cpus::CpuSet;
use stelia_kubelet::{ContainerCgroup, CpuManagerState, PodUid};
use stelia_record::Record;

use super::{Facts, Instance, Snapshot};

/// kubelet's file compared with an instance's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entitlement {
    /// kubelet's state cannot be used: everything stays as it is.
    Unknown,
    Same,
    /// The entry is gone, and no other entry has the CPUs: the VM keeps them.
    Gone,
    /// The container has other CPUs now (a resize in place).
    Changed {
        entry: CpuSet,
        /// The CPUs of the entry that are this container's own.
        own: CpuSet,
    },
    /// Some CPUs are another pod's now: the VM's threads must leave before the new owner runs.
    Lost {
        cpus: CpuSet,
        to: PodUid,
    },
}

/// The entry of a record's container.
pub(super) fn entry<'a>(state: &'a CpuManagerState, record: &Record) -> Option<&'a CpuSet> {
    let by_name = || state.entries.get(&record.pod)?.get(&record.container);
    let by_id = || {
        let id = ContainerCgroup::parse(record.origin.as_str())?.container_id;
        state.container_entries.get(&id)
    };
    by_name().or_else(by_id)
}

/// The CPUs of `wanted` that are in another pod's entry, and that pod.
fn lost(state: &CpuManagerState, facts: &Facts, record: &Record, wanted: &CpuSet) -> Option<(CpuSet, PodUid)> {
    let owner = facts.other_owner(&record.pod, wanted)?;
    let containers = state.entries.get(owner).into_iter().flat_map(|own| own.values());
    let named: CpuSet = containers
        .chain(state.pod_entries.get(owner))
        .flat_map(CpuSet::iter)
        .collect();
    Some((named.intersection(wanted), owner.clone()))
}

/// Compare an instance's record with kubelet's file.
pub(crate) fn entitlement(snapshot: &Snapshot, facts: &Facts, instance: &Instance) -> Entitlement {
    let Ok(state) = &snapshot.kubelet else {
        return Entitlement::Unknown;
    };
    let record = &instance.record;
    if record.allocation.is_some() {
        // steliad chose the CPUs; if kubelet's static policy gave them to another pod, kubelet's file counts, and after it the
        // other pod's instance, which keeps them.
        let lost = lost(state, facts, record, &record.exclusive);
        return match lost.or_else(|| facts.given_to(&record.pod, &record.exclusive)) {
            Some((cpus, to)) => Entitlement::Lost { cpus, to },
            None => Entitlement::Same,
        };
    }
    let own = record.own();
    let entry = entry(state, record);
    // CPUs that are in this entry and in another pod's are kubelet's contradiction: nothing is taken from either.
    let without_entry = entry.map_or_else(|| own.clone(), |entry| own.difference(entry));
    if let Some((cpus, to)) = lost(state, facts, record, &without_entry) {
        return Entitlement::Lost { cpus, to };
    }
    match entry {
        // Assigned before kubelet's policy became `none`: the VM keeps its CPUs.
        None if snapshot.source == CpuSource::Steliad => Entitlement::Same,
        None => Entitlement::Gone,
        Some(entry) if *entry == record.entry => Entitlement::Same,
        Some(entry) => {
            // CPUs of the entry that other containers of the pod use stay theirs.
            let theirs = record.entry.difference(&own);
            let own = entry.difference(&theirs);
            if own.is_empty() {
                return Entitlement::Gone;
            }
            Entitlement::Changed {
                entry: entry.clone(),
                own,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stelia_record::testing::record;

    use super::*;
    use crate::decide::steps::tests::{instance, snapshot};

    const OTHER: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

    /// kubelet's state with these entries: (pod, container, CPUs).
    fn says(entries: &[(&str, &str, &str)]) -> Entitlement {
        let mut snapshot = snapshot(vec![instance()]);
        let state = snapshot.kubelet.as_mut().unwrap();
        state.entries.clear();
        for (pod, container, cpus) in entries {
            let pod = PodUid::parse(pod).unwrap();
            let containers = state.entries.entry(pod).or_default();
            containers.insert((*container).to_owned(), cpus.parse().unwrap());
        }
        entitlement(&snapshot, &snapshot.facts(), snapshot.first())
    }

    #[test]
    fn every_word_of_kubelet_is_understood() {
        let own = record().pod.to_string();
        let other: PodUid = PodUid::parse(OTHER).unwrap();
        let cpus = |text: &str| text.parse::<CpuSet>().unwrap();
        assert_eq!(says(&[(&own, "instance", "2-3")]), Entitlement::Same);
        assert_eq!(says(&[]), Entitlement::Gone);
        let changed = Entitlement::Changed {
            entry: cpus("2-5"),
            own: cpus("2-5"),
        };
        assert_eq!(says(&[(&own, "instance", "2-5")]), changed);
        let lost = Entitlement::Lost {
            cpus: cpus("3"),
            to: other.clone(),
        };
        assert_eq!(says(&[(OTHER, "x", "3-4")]), lost);
        assert_eq!(says(&[(&own, "instance", "2"), (OTHER, "x", "3-4")]), lost);
        // A contradiction is not acted on.
        assert_eq!(
            says(&[(&own, "instance", "2-3"), (OTHER, "x", "3-4")]),
            Entitlement::Same
        );
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
        let Entitlement::Changed { own, .. } = entitlement(&snapshot, &snapshot.facts(), snapshot.first()) else {
            panic!("not changed")
        };
        assert_eq!(own.to_string(), "2-3,5");
    }
}
