//! kubelet's `kubelet_internal_checkpoint`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use steliad::kubelet::checkpoint::MAX_BYTES;
use steliad::kubelet::{CheckpointError, DeviceManagerState, PodUid};
use steliad::planner::devices::State;
use steliad_fuzz::{fits, same, with_checksum};

fuzz_target!(|file: &[u8]| {
    match DeviceManagerState::parse(file) {
        Ok(state) => check(&state, file),
        Err(error) => {
            fits(&error);
            if let CheckpointError::Checksum { found, computed } = error
                && let Some(good) = with_checksum(file, found, computed)
            {
                match DeviceManagerState::parse(&good) {
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

fn check(state: &DeviceManagerState, file: &[u8]) {
    assert!(file.len() <= MAX_BYTES && !file.trim_ascii().is_empty());
    let padded = [b" \n".as_slice(), file, b"\n".as_slice()].concat();
    same(
        &DeviceManagerState::parse(&padded).as_ref(),
        &Ok(state),
        "blanks around it",
    );
    let known = State::from(state);
    for (resource, ids) in &state.registered {
        let given = known.given(resource);
        for id in known.available(resource) {
            assert!(ids.contains(id) && !given.contains(id), "{resource} {id}");
        }
    }
    for entry in &state.entries {
        let pod = &entry.pod;
        same(&PodUid::parse(pod.as_str()).as_ref(), &Ok(pod), "a pod's UID");
    }
}
