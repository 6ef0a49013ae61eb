//! Which entry of kubelet's state is a container's, and which of its CPUs are exclusive to the container.

use std::collections::BTreeMap;

use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_kernel::containers::LiveContainer;
use stelia_kubelet::CpuManagerState;
use stelia_kubelet::cpu_manager_state::Use;

use super::Candidate;

/// A container's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KubeletEntry {
    /// The container's name.
    pub container: String,
    pub entry: CpuSet,
    /// Those of them that no other live container of the pod may use.
    pub exclusive: CpuSet,
}

/// Find the container's entry and narrow it.
///
/// # Errors
/// `NotGuaranteed`, `CpusetMismatch`, `AmbiguousContainer`, `CpusetConflict`.
pub(super) fn find(candidate: &Candidate, kubelet: &CpuManagerState) -> Result<KubeletEntry, Error> {
    let (container, entry) = by_cpus(candidate, kubelet)?;
    // Entries of a pod may overlap: a finished init container keeps its own, and the others use its CPUs again. Only
    // containers with processes use them.
    let theirs = of_live_containers(candidate, kubelet, &container);
    let in_use: CpuSet = theirs.values().flat_map(CpuSet::iter).collect();
    let exclusive = entry.difference(&in_use);
    if exclusive.is_empty() {
        let text = format!(
            "no CPU of {entry} is left for container {container} of pod {} alone: its other containers run on them ({})",
            candidate.container.pod,
            list(&theirs)
        );
        return Err(ErrorKind::CpusetConflict.because(text).of(&candidate.container.pod));
    }
    Ok(KubeletEntry {
        container,
        entry,
        exclusive,
    })
}

/// The one entry of the pod that is this container's: by the CPUs the container has, then by the runtime's name for it.
fn by_cpus(candidate: &Candidate, kubelet: &CpuManagerState) -> Result<(String, CpuSet), Error> {
    let pod = &candidate.container.pod;
    let Some(entries) = kubelet.entries.get(pod) else {
        return Err(ErrorKind::NotGuaranteed.because(format!(
            "kubelet gave pod {pod} no exclusive CPUs (CPU manager policy {}; it must be a Guaranteed pod with whole CPUs)",
            kubelet.policy
        )));
    };
    let cpus = &candidate.cpus;
    if let Some(refusal) = sharer(candidate, kubelet) {
        return Err(refusal);
    }
    let name = match with_cpus(entries, cpus).as_slice() {
        [] => {
            let text = format!(
                "{} has cpuset.cpus {:?}, which is not an entry of pod {pod} in kubelet's state ({})",
                candidate.origin,
                cpus.to_string(),
                list(entries)
            );
            return Err(ErrorKind::CpusetMismatch.because(text));
        }
        [only] => *only,
        several => several
            .iter()
            .find(|name| Some(**name) == candidate.annotated_name.as_ref())
            .ok_or_else(|| {
                let text = format!("containers {} of pod {pod} have the same CPUs {cpus}", join(several));
                ErrorKind::AmbiguousContainer.because(text)
            })?,
    };
    Ok((name.clone(), cpus.clone()))
}

/// The refusal of a container that runs on its pod's shared pool; `None` of another.
pub(super) fn sharer(candidate: &Candidate, kubelet: &CpuManagerState) -> Option<Error> {
    let (pod, cpus) = (&candidate.container.pod, &candidate.cpus);
    let fits = with_cpus(kubelet.entries.get(pod)?, cpus);
    let itself = LiveContainer {
        id: candidate.container.container_id.clone(),
        name: candidate.annotated_name.clone(),
        cpus: cpus.clone(),
        request: candidate.request,
    };
    let others = candidate.live_containers.iter().cloned();
    let running: Vec<LiveContainer> = std::iter::once(itself).chain(others).collect();
    let uses = stelia_kernel::containers::entry_uses(kubelet, pod, &running);
    let named = candidate.annotated_name.as_ref().and_then(|name| uses.get(name));
    // A container with the same CPUs as one that shares is on the pool too, unless it requests exactly as many CPUs.
    let told = fits.iter().any(|name| uses.get(*name) == Some(&Use::Shared));
    let shares = named != Some(&Use::Exclusive) && (told || kubelet.several_share(pod, cpus));
    let text = || {
        format!(
            "the CPUs {cpus} are the shared pool of pod {pod}, for its containers {}: none of them has CPUs of its own",
            join(&fits)
        )
    };
    shares.then(|| ErrorKind::NotGuaranteed.because(text()))
}

/// The containers whose entry is exactly this.
fn with_cpus<'a>(entries: &'a BTreeMap<String, CpuSet>, cpus: &CpuSet) -> Vec<&'a String> {
    let fits = entries.iter().filter(|(_, entry)| *entry == cpus);
    fits.map(|(name, _)| name).collect()
}

/// The entries of the pod's other live containers, by name.
fn of_live_containers(candidate: &Candidate, kubelet: &CpuManagerState, own: &str) -> BTreeMap<String, CpuSet> {
    let mut found = BTreeMap::new();
    let nothing = BTreeMap::new();
    let entries = kubelet.entries.get(&candidate.container.pod).unwrap_or(&nothing);
    for other in &candidate.live_containers {
        // Without a name it may be any container with these CPUs. One that has no entry runs on the shared pool: its list
        // may be some seconds old, and is no claim to exclusive CPUs.
        let is_it = |name: &str, entry: &CpuSet| match &other.name {
            Some(known) => known == name,
            None => *entry == other.cpus,
        };
        // A container of the same name is this one before it was restarted.
        let theirs = entries
            .iter()
            .filter(|(name, entry)| *name != own && is_it(name, entry));
        found.extend(theirs.map(|(name, entry)| (name.clone(), entry.clone())));
    }
    found
}

fn list(entries: &BTreeMap<String, CpuSet>) -> String {
    let known: Vec<String> = entries.iter().map(|(name, cpus)| format!("{name}: {cpus}")).collect();
    known.join("; ")
}

fn join(names: &[&String]) -> String {
    names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use stelia_kubelet::cpu_manager_state::Schema;
    use stelia_kubelet::{CpuRequest, PodUid};

    use super::*;
    use crate::admission::tests::{POD, candidate, kubelet};

    fn live(id: &str, name: Option<&str>, cpus: &str) -> LiveContainer {
        LiveContainer {
            id: id.into(),
            name: name.map(str::to_owned),
            cpus: cpus.parse().unwrap(),
            request: CpuRequest::default(),
        }
    }

    fn of_shares(shares: u64) -> CpuRequest {
        CpuRequest {
            shares: Some(shares),
            weight: None,
        }
    }

    fn candidate_on(cpus: &str, live_containers: Vec<LiveContainer>) -> Candidate {
        Candidate {
            cpus: cpus.parse().unwrap(),
            live_containers,
            ..candidate()
        }
    }

    /// kubelet's state: container entries of the pod, and the pod's own CPUs.
    fn pod_level(own: &str, entries: &[(&str, &str)]) -> CpuManagerState {
        CpuManagerState {
            schema: Schema::V4,
            pod_entries: [(PodUid::parse(POD).unwrap(), own.parse().unwrap())].into(),
            ..kubelet(entries).unwrap()
        }
    }

    /// (container, entry, exclusive), or the kind of the refusal.
    fn found(candidate: &Candidate, kubelet: &CpuManagerState) -> Result<(String, String, String), ErrorKind> {
        let entry = find(candidate, kubelet).map_err(|refusal| refusal.kind)?;
        Ok((entry.container, entry.entry.to_string(), entry.exclusive.to_string()))
    }

    fn ok(container: &str, entry: &str, exclusive: &str) -> Result<(String, String, String), ErrorKind> {
        Ok((container.into(), entry.into(), exclusive.into()))
    }

    #[test]
    fn a_finished_init_container_takes_nothing_from_the_vm() {
        let state = kubelet(&[("init", "2"), ("vm", "2-3")]).unwrap();
        assert_eq!(found(&candidate_on("2-3", vec![]), &state), ok("vm", "2-3", "2-3"));
    }

    #[test]
    fn what_a_live_container_may_use_is_not_exclusive() {
        let state = kubelet(&[("sidecar", "2"), ("vm", "2-3")]).unwrap();
        // By its name, whatever its cgroup says now; by its CPUs, where there is no name.
        for other in [live("b2", Some("sidecar"), ""), live("b2", None, "2")] {
            assert_eq!(found(&candidate_on("2-3", vec![other]), &state), ok("vm", "2-3", "3"));
        }
        // The sandbox, a container on the shared pool, and the VM's own container before a restart.
        for other in [
            live("b2", None, ""),
            live("b2", None, "0-7"),
            live("b2", Some("frac"), "2"),
            live("b2", Some("vm"), "2-3"),
        ] {
            assert_eq!(found(&candidate_on("2-3", vec![other]), &state), ok("vm", "2-3", "2-3"));
        }
    }

    #[test]
    fn a_container_that_has_no_cpu_left_to_itself_is_refused_by_name() {
        let state = kubelet(&[("sidecar", "2-4"), ("vm", "2-3")]).unwrap();
        let refusal = find(&candidate_on("2-3", vec![live("b2", Some("sidecar"), "2-4")]), &state).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::CpusetConflict);
        assert!(
            refusal.text.contains("sidecar: 2-4") && refusal.text.contains("2-3"),
            "{refusal}"
        );
    }

    #[test]
    fn a_container_on_its_pods_shared_pool_has_no_cpus_of_its_own() {
        let state = pod_level("2-5", &[("dns", "4-5"), ("fs", "4-5"), ("vm", "2-3")]);
        assert_eq!(
            found(&candidate_on("4-5", vec![]), &state),
            Err(ErrorKind::NotGuaranteed)
        );
        // Nor does its name help.
        let named = Candidate {
            annotated_name: Some("fs".into()),
            ..candidate_on("4-5", vec![])
        };
        let refusal = find(&named, &state).unwrap_err();
        assert!(refusal.text.contains("dns, fs"), "{refusal}");
        assert_eq!(found(&candidate_on("2-3", vec![]), &state), ok("vm", "2-3", "2-3"));
    }

    #[test]
    fn the_one_sidecar_on_its_pods_pool_is_refused_and_the_vm_beside_it_is_not() {
        let state = pod_level("1-3", &[("side", "1"), ("vm", "2-3")]);
        // Its pod is limited to 3 CPUs, and it asks for none.
        let side = Candidate {
            request: of_shares(3072),
            ..candidate_on("1", vec![])
        };
        let refusal = find(&side, &state).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::NotGuaranteed);
        assert!(
            refusal.text.contains("shared pool") && refusal.text.contains("side"),
            "{refusal}"
        );
        let vm = Candidate {
            request: of_shares(2048),
            ..candidate_on("2-3", vec![live("b2", Some("side"), "1")])
        };
        assert_eq!(found(&vm, &state), ok("vm", "2-3", "2-3"));
        // One that asked for its one CPU has it.
        let alone = Candidate {
            request: of_shares(1024),
            ..candidate_on("1", vec![])
        };
        assert_eq!(found(&alone, &state), ok("side", "1", "1"));
    }

    #[test]
    fn a_vm_with_a_finished_init_containers_cpus_is_not_a_sharer() {
        let state = pod_level("2-4", &[("init", "2-3"), ("vm", "2-3"), ("side", "4")]);
        let vm = Candidate {
            annotated_name: Some("vm".into()),
            request: of_shares(2048),
            ..candidate_on("2-3", vec![])
        };
        assert_eq!(found(&vm, &state), ok("vm", "2-3", "2-3"));
    }

    #[test]
    fn two_alike_that_are_not_all_that_is_left_of_the_pods_cpus_are_told_apart_by_name() {
        let state = pod_level("2-5", &[("init", "2-3"), ("vm", "2-3")]);
        assert_eq!(
            found(&candidate_on("2-3", vec![]), &state),
            Err(ErrorKind::AmbiguousContainer)
        );
        let named = Candidate {
            annotated_name: Some("vm".into()),
            ..candidate_on("2-3", vec![])
        };
        assert_eq!(found(&named, &state), ok("vm", "2-3", "2-3"));
    }
}
