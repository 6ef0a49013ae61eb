//! kubelet's `memory_manager_state`, every schema.
#![no_main]

use libfuzzer_sys::fuzz_target;
use steliad::kubelet::checkpoint::MAX_BYTES;
use steliad::kubelet::memory::MemorySchema;
use steliad::kubelet::{CheckpointError, MemoryManagerState, PodUid};
use steliad_fuzz::{fits, same, with_checksum};

fuzz_target!(|file: &[u8]| {
    match MemoryManagerState::parse(file) {
        Ok(state) => check(&state, file),
        Err(error) => {
            fits(&error);
            if let CheckpointError::Checksum { found, computed } = error
                && let Some(good) = with_checksum(file, found, computed)
            {
                match MemoryManagerState::parse(&good) {
                    Ok(state) => check(&state, &good),
                    Err(error) => {
                        fits(&error);
                        assert!(!matches!(error, CheckpointError::Checksum { .. }), "{error}");
                    }
                }
            }
        }
    }
});

fn check(state: &MemoryManagerState, file: &[u8]) {
    assert!(file.len() <= MAX_BYTES && !file.trim_ascii().is_empty());
    let padded = [b" \n".as_slice(), file, b"\n".as_slice()].concat();
    same(
        &MemoryManagerState::parse(&padded).as_ref(),
        &Ok(state),
        "blanks around it",
    );
    assert!(state.schema != MemorySchema::V1 || state.pod_entries.is_empty());
    for pod in state.entries.keys().chain(state.pod_entries.keys()) {
        same(&PodUid::parse(pod.as_str()).as_ref(), &Ok(pod), "a pod's UID");
    }
}
