//! Which part of a record the daemon believes when it starts: only what kubelet's state, the kernel or the cgroup's own path confirm.
//! [`Record::of_container`] has already compared the path with whose record it is.
//!
//! [`Record::of_container`]: stelia_model::record::Record::of_container

use stelia_cpus::CpuSet;
use stelia_kubelet::{ContainerCgroup, CpuManagerState, PodUid};
use stelia_model::record::Phase;

use super::entitlement::entry;
use super::{Instance, Snapshot};

/// What is known of an instance apart from its record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveState {
    /// The container's name by the runtime's configuration, where that was found.
    pub container: Option<String>,
    /// The CPUs that the kernel has in the instance's partition.
    pub in_force: CpuSet,
}

/// The instance with the part of its record that is believed.
///
/// # Errors
/// Why the record cannot be used.
pub fn validated(snapshot: &Snapshot, mut instance: Instance, known: &LiveState) -> Result<Instance, String> {
    let record = &instance.record;
    let of_container = ContainerCgroup::parse(record.origin.as_str());
    if of_container.is_none_or(|container| container.pod != record.pod) {
        return Err(format!("{} is no container of pod {}", record.origin, record.pod));
    }
    for (thread, now) in record.vcpus.iter().zip(&instance.vcpus) {
        if let Some(now) = now.as_ref().filter(|now| !instance.has(&now.cgroup)) {
            return Err(format!(
                "the thread {} of {} is in {}, outside of the instance and its container",
                thread.task.id, thread.role, now.cgroup
            ));
        }
    }
    let own = record.own();
    if !own.is_subset(&record.entry) {
        return Err(format!("it has the CPUs {own} of an entry of {}", record.entry));
    }
    let named = known.container.as_ref().filter(|name| **name != record.container);
    let by_name = record.allocation.is_none() && !instance.behaviour().protects_record() && snapshot.kubelet.is_ok();
    if let Some(name) = named.filter(|_| by_name) {
        return Err(format!("it is of container {}, and this is {name}", record.container));
    }
    let (exclusive, spare) = match believed_cpus(snapshot, &instance, known) {
        // An instance that leaves goes on leaving, and claims only the CPUs that the kernel has in its partition.
        Err(_) if record.phase == Phase::Leaving => (record.exclusive.intersection(&known.in_force), CpuSet::new()),
        cpus => cpus?,
    };
    (instance.record.exclusive, instance.record.spare) = (exclusive, spare);
    Ok(instance)
}

/// The exclusive CPUs and the spare ones that are believed.
fn believed_cpus(snapshot: &Snapshot, instance: &Instance, known: &LiveState) -> Result<(CpuSet, CpuSet), String> {
    let record = &instance.record;
    let recorded = || (record.exclusive.clone(), record.spare.clone());
    let stands = is_in_force(instance, known) || instance.behaviour().protects_record();
    if record.allocation.is_some() {
        return if stands {
            Ok(recorded())
        } else {
            is_free(snapshot, instance).map(|()| recorded())
        };
    }
    // A VM that never had a partition, or has none any more, keeps those of its container's CPUs that nobody else has, as it does while
    // the daemon runs: kubelet wrote that list. A record that says isolated without a partition says what is not so.
    let may_keep = !matches!(record.phase, Phase::Isolated | Phase::Leaving);
    let keeps = || {
        if may_keep && record.own().is_subset(&instance.origin_cpus) {
            unclaimed(snapshot, instance).map(|()| recorded())
        } else {
            Err(format!("it has no partition of the CPUs {}", record.own()))
        }
    };
    let state = match &snapshot.kubelet {
        Ok(state) => state,
        Err(_) if stands => return Ok(recorded()),
        Err(reason) => return keeps().map_err(|why| format!("kubelet's state cannot be used ({reason}), and {why}")),
    };
    match entry(state, record) {
        Some(entry) => Ok((record.exclusive.intersection(entry), record.spare.intersection(entry))),
        None if stands => Ok(recorded()),
        None => keeps().map_err(|why| format!("kubelet has no entry for container {}, and {why}", record.container)),
    }
}

/// Whether the kernel has the CPUs of the record in the instance's partition: nobody loses them because the record is believed. Such
/// records are validated before others, which are believed only where no other instance has their CPUs.
pub fn is_in_force(instance: &Instance, known: &LiveState) -> bool {
    let record = &instance.record;
    record.exclusive.is_subset(&known.in_force) && record.spare.is_subset(&instance.origin_cpus)
}

/// Whether CPUs that steliad's allocator chose are neither kubelet's nor another instance's.
fn is_free(snapshot: &Snapshot, instance: &Instance) -> Result<(), String> {
    match &snapshot.kubelet {
        Ok(_) => unclaimed(snapshot, instance),
        Err(reason) => Err(format!("kubelet's state cannot be used: {reason}")),
    }
}

/// Whether the CPUs of the record are neither another instance's nor, as far as kubelet's state is known, in one of its entries.
fn unclaimed(snapshot: &Snapshot, instance: &Instance) -> Result<(), String> {
    let record = &instance.record;
    let others = snapshot
        .instances
        .values()
        .filter(|other| other.record.pod != record.pod);
    let mut of_others: CpuSet = others
        .flat_map(|other| other.owned().iter().collect::<Vec<_>>())
        .collect();
    if let Ok(state) = &snapshot.kubelet {
        of_others.union_with(&state.assigned());
    }
    let twice = record.own().intersection(&of_others);
    if twice.is_empty() {
        Ok(())
    } else {
        Err(format!("the CPUs {twice} that it names are assigned otherwise"))
    }
}

/// Which CPUs of a container whose record cannot be used stay in the lists of the levels above: those that kubelet gave its pod.
/// Without an entry, those that the kernel has in a partition there and that kubelet gave to no other pod.
pub fn claim_without_record(snapshot: &Snapshot, pod: &PodUid, list: &CpuSet, in_force: &CpuSet) -> CpuSet {
    let state = snapshot.kubelet.as_ref().ok();
    let containers = state.and_then(|state| state.entries.get(pod));
    let of_pod = state.and_then(|state| state.pod_entries.get(pod));
    let entries = containers.into_iter().flat_map(|containers| containers.values());
    let mut given = CpuSet::new();
    entries.chain(of_pod).for_each(|entry| given.union_with(entry));
    if given.is_empty() {
        let assigned = state.map(CpuManagerState::assigned).unwrap_or_default();
        list.intersection(in_force).difference(&assigned)
    } else {
        list.intersection(&given)
    }
}

#[cfg(test)]
mod tests {
    use stelia_kernel::cgroup::CgroupPath;
    use stelia_model::record::{Home, Tree};

    use super::*;
    use crate::steps::tests::isolated;
    use crate::testing::snapshot;

    fn cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    const ORIGIN: &str =
        "/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice/cri-containerd-50ab.scope";

    /// An isolated instance in place with CPUs 2-3, and a node on which kubelet gave its container these.
    fn found(entry: Option<&str>) -> (Snapshot, Instance) {
        let mut instance = isolated().first().clone();
        instance.record.home = Home::InPlace;
        instance.record.origin = CgroupPath::parse(ORIGIN).unwrap();
        instance.tree = Tree::of(&instance.record);
        for now in instance.vcpus.iter_mut().flatten() {
            now.cgroup = instance.tree.vcpu().clone();
        }
        let mut snapshot = snapshot(vec![]);
        let state = snapshot.kubelet.as_mut().unwrap();
        state.entries.clear();
        if let Some(entry) = entry {
            let containers = state.entries.entry(instance.record.pod.clone()).or_default();
            containers.insert(instance.record.container.clone(), cpus(entry));
        }
        (snapshot, instance)
    }

    fn in_force(list: &str) -> LiveState {
        LiveState {
            in_force: cpus(list),
            ..LiveState::default()
        }
    }

    fn exclusive(result: Result<Instance, String>) -> Result<String, String> {
        result.map(|instance| instance.record.exclusive.to_string())
    }

    #[test]
    fn nothing_beyond_kubelets_present_entry_is_claimed() {
        for (entry, left) in [("2-3", "2-3"), ("2-5", "2-3"), ("3-4", "3"), ("6-7", "")] {
            let (snapshot, instance) = found(Some(entry));
            let record = instance.record.clone();
            let now = validated(&snapshot, instance, &in_force("2-3")).unwrap();
            assert_eq!(now.record.exclusive, cpus(left), "{entry}");
            // The entry of before tells that another one is to be recorded.
            assert_eq!(now.record.entry, record.entry);
        }
    }

    #[test]
    fn without_an_entry_an_instance_in_place_keeps_what_the_kernel_has_in_its_partition() {
        for broken in [false, true] {
            let (mut snapshot, instance) = found(None);
            if broken {
                snapshot.kubelet = Err("broken".into());
            }
            let kept = validated(&snapshot, instance.clone(), &in_force("2-3"));
            assert_eq!(exclusive(kept), Ok("2-3".into()));
            for less in ["", "2", "4-7"] {
                assert!(
                    validated(&snapshot, instance.clone(), &in_force(less)).is_err(),
                    "{less}"
                );
            }
        }
    }

    /// Root alone can write it.
    #[test]
    fn the_record_of_a_scope_is_believed_without_an_entry_or_a_partition() {
        for broken in [false, true] {
            let (mut snapshot, mut instance) = found(None);
            instance.record.home = Home::Scope;
            instance.tree = Tree::of(&instance.record);
            for now in instance.vcpus.iter_mut().flatten() {
                now.cgroup = instance.tree.vcpu().clone();
            }
            if broken {
                snapshot.kubelet = Err("broken".into());
            }
            assert_eq!(
                exclusive(validated(&snapshot, instance, &LiveState::default())),
                Ok("2-3".into())
            );
        }
    }

    #[test]
    fn without_an_entry_a_vm_without_a_partition_keeps_what_its_container_has_and_nobody_else() {
        for broken in [false, true] {
            let (mut snapshot, mut instance) = found(None);
            instance.record.phase = Phase::Pinned;
            instance.origin_cpus = cpus("2-4");
            if broken {
                snapshot.kubelet = Err("broken".into());
            }
            let now = |snapshot: &Snapshot, instance: &Instance| {
                exclusive(validated(snapshot, instance.clone(), &LiveState::default()))
            };
            assert_eq!(now(&snapshot, &instance), Ok("2-3".into()));
            let other = PodUid::parse("416de7c2-21de-472d-817c-fa9d4306cb7d").unwrap();
            if let Ok(state) = &mut snapshot.kubelet {
                let containers = state.entries.entry(other).or_default();
                containers.insert("web".into(), cpus("3"));
                assert!(now(&snapshot, &instance).is_err());
            }
            instance.origin_cpus = cpus("3-4");
            assert!(now(&snapshot, &instance).is_err());
        }
    }

    #[test]
    fn a_record_that_contradicts_itself_or_names_others_is_not_used() {
        let (snapshot, good) = found(Some("2-3"));
        let good_one = || good.clone();
        let refused = |instance: Instance, known: &LiveState| validated(&snapshot, instance, known).unwrap_err();
        let mut more = good_one();
        more.record.exclusive = cpus("2-7");
        assert_eq!(
            refused(more, &LiveState::default()),
            "it has the CPUs 2-7 of an entry of 2-3"
        );
        let mut elsewhere = good_one();
        elsewhere.vcpus[1].as_mut().unwrap().cgroup = CgroupPath::parse("/init.scope").unwrap();
        assert_eq!(
            refused(elsewhere, &LiveState::default()),
            "the thread 51 of vCPU 1 is in /init.scope, outside of the instance and its container"
        );
        let sidecar = LiveState {
            container: Some("sidecar".into()),
            ..LiveState::default()
        };
        assert_eq!(
            refused(good_one(), &sidecar),
            "it is of container instance, and this is sidecar"
        );
        let mut host = good_one();
        host.record.origin = CgroupPath::root();
        assert!(refused(host, &LiveState::default()).contains("is no container of pod"));
    }

    #[test]
    fn an_instance_that_leaves_goes_on_leaving_and_claims_only_what_the_kernel_has() {
        let (snapshot, mut instance) = found(None);
        instance.record.phase = Phase::Leaving;
        let left = validated(&snapshot, instance.clone(), &in_force("2,6"));
        assert_eq!(exclusive(left), Ok("2".into()));
        let nothing = validated(&snapshot, instance, &in_force(""));
        assert_eq!(exclusive(nothing), Ok(String::new()));
    }

    #[test]
    fn cpus_that_steliad_chose_are_believed_unless_kubelet_or_another_instance_has_them() {
        let (mut snapshot, mut instance) = found(None);
        instance.record.allocation = stelia_model::record::testing::allocated().allocation;
        let now = |snapshot: &Snapshot| exclusive(validated(snapshot, instance.clone(), &LiveState::default()));
        assert_eq!(now(&snapshot), Ok("2-3".into()));
        let mut other = isolated().first().clone();
        other.record.pod = PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap();
        snapshot.instances.insert(other.record.pod.clone(), other.clone());
        assert!(now(&snapshot).is_err());
        snapshot.instances.clear();
        let state = snapshot.kubelet.as_mut().unwrap();
        let containers = state.entries.entry(other.record.pod).or_default();
        containers.insert("web".into(), cpus("3-4"));
        assert_eq!(
            now(&snapshot),
            Err("the CPUs 3 that it names are assigned otherwise".into())
        );
    }

    #[test]
    fn a_container_without_a_usable_record_keeps_no_more_than_kubelet_gave_its_pod() {
        let (with, instance) = found(Some("4-5"));
        let pod = &instance.record.pod;
        let claim = |snapshot: &Snapshot, in_force: &str| {
            claim_without_record(snapshot, pod, &cpus("4,6-7"), &cpus(in_force)).to_string()
        };
        assert_eq!(claim(&with, "6-7"), "4");
        let (mut without, _) = found(None);
        assert_eq!(claim(&without, ""), "");
        assert_eq!(claim(&without, "6"), "6");
        let state = without.kubelet.as_mut().unwrap();
        let other = PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap();
        state.entries.entry(other).or_default().insert("web".into(), cpus("6"));
        assert_eq!(claim(&without, "6-7"), "7");
    }
}
