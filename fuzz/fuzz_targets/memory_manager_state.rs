//! kubelet's `memory_manager_state`, every schema.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stelia_kubelet::memory::MemorySchema;
use stelia_kubelet::{MemoryManagerState, PodUid};
use steliad_fuzz::{checkpoint, same};

fuzz_target!(|file: &[u8]| checkpoint(file, MemoryManagerState::parse, check));

fn check(state: &MemoryManagerState) {
    assert!(state.schema != MemorySchema::V1 || state.pod_entries.is_empty());
    for pod in state.entries.keys().chain(state.pod_entries.keys()) {
        same(&PodUid::parse(pod.as_str()).as_ref(), &Ok(pod), "a pod's UID");
    }
}
