//! kubelet's `kubelet_internal_checkpoint`.
#![no_main]

use kubelet_planner::devices::DeviceState;
use libfuzzer_sys::fuzz_target;
use stelia_kubelet::{DeviceManagerState, PodUid};
use steliad_fuzz::{checkpoint, same};

fuzz_target!(|file: &[u8]| checkpoint(file, DeviceManagerState::parse, check));

fn check(state: &DeviceManagerState) {
    let known = DeviceState::from(state);
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
