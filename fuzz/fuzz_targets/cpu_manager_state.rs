//! kubelet's `cpu_manager_state`, every schema.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stelia_cpus::CpuSet;
use stelia_kubelet::cpu_manager_state::{MAX_LISTED, Schema, Uses};
use stelia_kubelet::{CpuManagerState, PodUid};
use steliad_fuzz::{checkpoint, same};

fuzz_target!(|file: &[u8]| checkpoint(file, CpuManagerState::parse, check));

fn check(state: &CpuManagerState) {
    // Each schema has what it can say and nothing else.
    let (by_pod, pods) = (&state.entries, &state.pod_entries);
    assert!(state.schema != Schema::V2 || pods.is_empty());
    let lists: Vec<&CpuSet> = by_pod
        .values()
        .flat_map(|containers| containers.values())
        .chain(pods.values())
        .collect();
    assert!(lists.iter().map(|list| list.len()).sum::<usize>() + state.default_cpus.len() <= MAX_LISTED);
    // No CPU of the shared pool is assigned.
    let (assigned, pool) = (state.assigned(), state.shared_pool());
    assert!(
        lists
            .iter()
            .all(|list| list.is_subset(&assigned) && list.is_disjoint(&pool))
    );
    assert!(pool.is_subset(&state.default_cpus) && state.default_cpus.is_subset(&pool.union(&assigned)));
    for pod in by_pod.keys().chain(pods.keys()) {
        same(&PodUid::parse(pod.as_str()).as_ref(), &Ok(pod), "a pod's UID");
        // What a pod shares is within its own CPUs, is not empty, and has no CPU of a container with exclusive CPUs.
        let Some(shared) = state.pod_shared_pool(pod, &Uses::new()) else {
            continue;
        };
        assert!(!shared.is_empty() && shared.is_subset(&pods[pod]));
        let mut containers = by_pod.get(pod).into_iter().flat_map(|containers| containers.values());
        assert!(containers.all(|cpus| *cpus == shared || cpus.is_disjoint(&shared)));
    }
}
