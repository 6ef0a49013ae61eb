//! What the tests of several jobs use.

pub(super) mod adopted;
pub(super) mod image;

use std::fs;

/// The stand-in's state is of another configuration: kubelet would not start with it.
pub(super) fn remove_stand_in_state() {
    for name in ["cpu_manager_state", "memory_manager_state"] {
        let _ = fs::remove_file(format!("/var/lib/kubelet/{name}"));
    }
}
